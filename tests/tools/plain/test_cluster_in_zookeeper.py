"""What is read of a cluster's nodes is what they say, for random clusters; what is written to them is written whole."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from unittest import mock

import anyio
import msgspec
import pytest

from kzconsumer.errors import NotDoneError, NotFoundError
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.operations import Create, Delete, SetData
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.cluster import cluster_reader
from kzconsumer_tools.cluster.cluster_reader import (
    cluster_of,
    controller_of,
    deleting,
    electing,
    moving,
    owning_groups,
    read_cluster_and_topics,
    set_config,
    submit,
    topics_of,
    wait_until_done,
)
from kzconsumer_tools.cluster.requests import encode_config, notification
from kzconsumer_tools.groups.group_reader import NodeTopicsRead, group_names, require_group
from tests.support.simulated.clients import Clients
from tests.support.simulated.network import CHROOT

NAMES = ("a", "b", "old", "odd", "gone")
BROKEN = b"{"
GONE = 9
"""A broker that is not registered any more."""


class Written:
    """A random cluster: what its nodes say, and the nodes."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.nodes: dict[str, bytes] = {}
        self.unreadable: set[str] = set()
        self.leaders: dict[tuple[str, int], int] = {}
        self.brokers = {number: chance.choice([None, "r1"]) for number in chance.sample(range(9), 3)}
        for number, rack in self.brokers.items():
            about = {
                "version": 4,
                "host": f"h{number}",
                "port": 9000 + number,
                "endpoints": [f"PLAINTEXT://h{number}:{9000 + number}"],
            }
            about |= {"listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"}, "timestamp": "7", "rack": rack}
            self.nodes[f"/brokers/ids/{number}"] = msgspec.json.encode(about)
        self.nodes["/brokers/ids/seqid"] = BROKEN
        self.cluster_id = chance.choice([None, "c1"])
        if self.cluster_id:
            self.nodes["/cluster/id"] = msgspec.json.encode({"version": "1", "id": self.cluster_id})
        self.controller = chance.choice([None, *self.brokers])
        self.kraft = self.controller is not None and chance.random() < 0.5
        self.epoch = chance.randrange(5) if self.controller is not None else None
        if self.controller is not None:
            about = {"brokerid": self.controller, "timestamp": "9", "kraftControllerEpoch": 3 if self.kraft else -1}
            self._node("/controller", msgspec.json.encode(about), chance)
            self._node("/controller_epoch", str(self.epoch).encode(), chance)
        self.topics = sorted(chance.sample(NAMES, 3))
        self.replicas = {name: self._topic(name, chance) for name in self.topics}
        self.deleting = {name for name in self.topics if chance.random() < 0.4}
        for name in self.deleting:
            self.nodes[f"/admin/delete_topics/{name}"] = b""
        self.asked = {
            path: {(name, chance.randrange(3)) for name in chance.sample(NAMES, 2)} if chance.random() < 0.7 else None
            for path in ("/admin/reassign_partitions", "/admin/preferred_replica_election")
        }
        for path, asked in self.asked.items():
            if asked is not None:
                named = [{"topic": name, "partition": number} for name, number in sorted(asked)]
                self.nodes[path] = msgspec.json.encode({"version": 1, "partitions": named})
        self.owners = {(name, group): chance.randrange(3) for name in self.topics for group in ("g1", "g2")}
        for (name, group), count in self.owners.items():
            for number in range(count):
                self.nodes[f"/consumers/{group}/owners/{name}/{number}"] = b"x"
        self.nodes["/consumers/g3/ids"] = b""

    def names(self, path: str) -> set[str]:
        return {f"{name}-{number}" for name, number in self.asked[path] or ()}

    def of_topic(self, name: str) -> set[str]:
        """The unreadable nodes of it."""
        return {path for path in self.unreadable if name in path.split("/")}

    def _node(self, path: str, data: bytes, chance: random.Random) -> None:
        if chance.random() < 0.15:
            data = BROKEN
            self.unreadable.add(path)
        self.nodes[path] = data

    def _topic(self, name: str, chance: random.Random) -> dict[int, list[int]]:
        path = f"/brokers/topics/{name}"
        if name == "old":
            self.nodes |= {f"{path}/{number}": b"%d" % (number + 1) for number in (1, 2)}
            return {}
        if name == "odd":
            self.nodes[path] = BROKEN
            self.unreadable.add(path)
            return {}
        replicas = {number: chance.sample([*self.brokers], 2) for number in range(chance.randint(1, 3))}
        self.nodes[path] = msgspec.json.encode({"version": 2, "partitions": {str(n): r for n, r in replicas.items()}})
        self.nodes[f"/config/topics/{name}"] = msgspec.json.encode({"version": 1, "config": {"retention.ms": name}})
        for number, of in replicas.items():
            self.leaders[name, number] = chance.choice([of[-1], GONE])
            state = {"leader": self.leaders[name, number], "leader_epoch": number, "controller_epoch": 2, "isr": of[:1]}
            self._node(f"{path}/partitions/{number}/state", msgspec.json.encode(state), chance)
        return replicas


@pytest.mark.parametrize("seed", range(6))
def test_what_is_read_is_what_the_nodes_say(seed: int) -> None:
    clients, has = Clients(), Written(seed)
    for path, data in has.nodes.items():
        if clients.ensemble.tree.data(path) is None:
            clients.ensemble.make(path, data)
        else:
            clients.ensemble.operate(SetData(path, data, -1))

    async def script(session: ZooKeeperSession) -> None:
        found, topics = await read_cluster_and_topics(session, "zk", None)
        assert found == await cluster_of(session)
        assert {each.id: (each.listeners[0].host, each.listeners[0].port, each.rack) for each in found.brokers} == {
            number: (f"h{number}", 9000 + number, rack) for number, rack in has.brokers.items()
        }
        assert [each.id for each in found.brokers] == sorted(has.brokers)
        assert (found.cluster_id, found.topics, found.deleting) == (
            has.cluster_id,
            len(has.topics),
            tuple(sorted(has.deleting)),
        )
        bad = "/controller" in has.unreadable
        assert found.controller == (None if bad else has.controller)
        assert found.kraft_controller is (has.kraft and not bad)
        assert found.controller_epoch == (None if "/controller_epoch" in has.unreadable else has.epoch)
        assert {each.path for each in found.unreadable} == {each for each in has.unreadable if "topics" not in each}
        controller = await controller_of(session)
        assert (controller.broker if controller else None) == found.controller
        reassigned, elected = has.asked
        assert (set(found.reassigning or ()), set(found.electing or ())) == (has.names(reassigned), has.names(elected))
        pending = {"a-0", "b-1", "odd-2", "x-1"}
        assert await moving(session, pending) == pending & has.names(reassigned)
        assert await electing(session, pending) == (pending if has.asked[elected] is not None else set())
        assert await deleting(session, {*NAMES}) == has.deleting

        assert [each.topic for each in topics] == has.topics
        assert await topics_of(session, [*has.topics, *has.topics]) == topics, "each once"
        for topic in topics:
            of = has.replicas[topic.topic]
            assert (topic.deleting, {each.path for each in topic.unreadable}) == (
                topic.topic in has.deleting,
                has.of_topic(topic.topic),
            )
            assert topic.config == ({"retention.ms": topic.topic} if of else {})
            assert topic.brokers_of_0_7 == ({1: 2, 2: 3} if topic.topic == "old" else {})
            assert {each.partition: list(each.replicas) for each in topic.partitions} == of
            for each in topic.partitions:
                known = f"/brokers/topics/{topic.topic}/partitions/{each.partition}/state" not in has.unreadable
                leader = has.leaders[topic.topic, each.partition]
                expected = (leader, leader != GONE, each.partition, 2, tuple(of[each.partition][:1]))
                shown = each.leader, each.leader_registered, each.leader_epoch, each.controller_epoch, each.isr
                assert shown == (expected if known else (None, False, None, None, ()))
        assert await owning_groups(session, has.topics) == {
            name: [group for group in ("g1", "g2") if has.owners[name, group]]
            for name in has.topics
            if any(has.owners[name, group] for group in ("g1", "g2"))
        }
        with pytest.raises(NotFoundError, match="there is no topic az; "):
            await topics_of(session, ["az"])

    clients.play(script)


def test_what_is_no_cluster_is_not_described() -> None:
    async def script(session: ZooKeeperSession) -> None:
        with pytest.raises(NotFoundError, match="zk: there is no Kafka cluster"):
            await read_cluster_and_topics(session, "zk", None)

    Clients().play(script)


def test_a_request_is_written_whole_or_not_at_all() -> None:
    """Also into a cluster that has never had one."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        wanted = [Create(f"/admin/delete_topics/{name}", b"") for name in "ab"]
        await submit(session, wanted[:1])
        assert await session.children("/admin/delete_topics") == ["a"]
        with pytest.raises(NotDoneError, match="there is such a request already"):
            await submit(session, [wanted[1], wanted[0]])
        assert await session.children("/admin/delete_topics") == ["a"]

    clients.play(script)


@pytest.mark.parametrize("had", [None, {}, {"retention.ms": "1"}])
@pytest.mark.parametrize("meanwhile", ["nothing", "before", "between"])
def test_settings_are_changed_unless_they_have_changed_meanwhile(had: dict[str, str] | None, meanwhile: str) -> None:
    clients = Clients()
    path = "/config/topics/a"
    clients.ensemble.make("/brokers/topics/a", b'{"version":1,"partitions":{"0":[1]}}')
    if had is not None:
        clients.ensemble.make(path, encode_config(had))
    other = encode_config({"retention.ms": "2"})

    def change() -> None:
        clients.ensemble.make(path, other) if clients.ensemble.tree.data(path) is None else clients.ensemble.operate(
            SetData(path, other, -1)
        )

    async def script(session: ZooKeeperSession) -> None:
        read = topics_of

        async def then_changed(*arguments: object) -> object:
            found = await read(*arguments)  # type: ignore[arg-type]
            change()
            return found

        wanted = {**(had or {}), "cleanup.policy": "compact"}
        if meanwhile == "before":
            change()
        writing = set_config(session, "a", had or {}, wanted, notification("a", [4]))
        if meanwhile == "nothing":
            await writing
            assert (await session.get(path)).data == msgspec.json.encode({"version": 1, "config": wanted})
            (name,) = await session.children("/config/changes")
            assert b"topics/a" in (await session.get(f"/config/changes/{name}")).data
            return
        refused = "the settings of a have been changed meanwhile; nothing was changed"
        with (
            mock.patch.object(cluster_reader, "topics_of", then_changed if meanwhile == "between" else read),
            pytest.raises(NotDoneError, match=refused),
        ):
            await writing
        assert (await session.get(path)).data == other
        assert await session.children("/config/changes") == [], "no broker is told of it"

    clients.play(script)


@pytest.mark.parametrize("done_after", [0.0, 3.0, 100.0])
def test_it_is_waited_until_nothing_is_pending_or_the_time_is_over(done_after: float) -> None:
    clients = Clients()
    clients.ensemble.make("/admin/delete_topics/a")
    clients.ensemble.make("/admin/delete_topics/b")
    settings = Settings.from_dict({"zookeeper": {"connect": f"zk0:2181{CHROOT}"}, "group": {"id": "g"}}).zookeeper
    shown: list[int] = []

    async def script(session: ZooKeeperSession) -> None:
        @asynccontextmanager
        async def same(*_: object):  # type: ignore[no-untyped-def]
            yield session

        clients.world.after(done_after / 2, lambda: clients.ensemble.operate(Delete("/admin/delete_topics/a", -1)))
        clients.world.after(done_after, lambda: clients.ensemble.operate(Delete("/admin/delete_topics/b", -1)))
        await anyio.sleep(0.1)
        began = clients.world.now
        with mock.patch.object(cluster_reader, "short_session", same):
            left = await wait_until_done(settings, deleting, {"a", "b"}, 20.0, shown.append)
        took = clients.world.now - began
        assert left == (set() if done_after < 20 else {"a", "b"})
        assert took == pytest.approx(min(done_after, 20.0), abs=2.0)
        assert set(shown) == {0.0: set(), 3.0: {1, 2}, 100.0: {2}}[done_after]

    clients.play(script)


def test_which_groups_there_are_and_whether_topics_are_in_zookeeper() -> None:
    """Before Kafka has registered, before it has a topic, before there is a group, and then."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        topics = NodeTopicsRead(session)
        assert (await topics.known(), await topics.names(), await topics.found(["a"], None)) == (False, [], {})
        await session.delete("/consumers", -1)
        with pytest.raises(NotFoundError, match=r"^zk: no Kafka cluster is registered there"):
            await group_names(session, "zk")
        await session.ensure("/brokers/topics")
        assert (await topics.known(), await topics.names()) == (True, [])
        assert await group_names(session, "zk") == []
        await session.create("/brokers/topics/a", b'{"version":1,"partitions":{"0":[1],"2":[1]}}')
        assert (await topics.known(), await topics.names()) == (True, ["a"])
        assert {name: each.partitions for name, each in (await topics.found(["a", "b"], None)).items()} == {"a": (0, 2)}
        for name in ("orders", "audit"):
            await session.ensure(f"/consumers/{name}/ids")
        assert await group_names(session, "zk") == ["audit", "orders"]
        await require_group(session, "zk", "orders")
        for name, hint in (("order", "did you mean orders?"), ("zzzzzz", "`kzconsumer groups list` lists the groups")):
            with pytest.raises(NotFoundError) as raised:
                await require_group(session, "zk", name)
            assert str(raised.value) == f"zk: there is no group {name}; {hint}"

    clients.play(script)
