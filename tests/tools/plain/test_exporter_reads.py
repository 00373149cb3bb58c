"""What a reading of the exporter asks: of groups that have changed, as little as that takes, and beside others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from kzconsumer.brokers.protocol.cluster_state import PartitionMetadata, TopicMetadata
from kzconsumer.errors import NotFoundError
from kzconsumer.registry import paths
from kzconsumer.registry.broker_topics import ClusterMetadata
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.operations import Create, SetData
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.exporter.exporter import PAGE, RECHECK, Exporter, FollowedGroups, WatchedNodes
from kzconsumer_tools.exporter.seen_groups import Histories, ReadGroup, group_of_nodes
from kzconsumer_tools.groups.group_lag import LogRange
from kzconsumer_tools.groups.group_nodes import GroupNodes
from kzconsumer_tools.groups.group_reader import BrokerTopicsRead, NodeTopicsRead, nodes_of
from tests.support.reachable import reachable
from tests.support.simulated.clients import Clients
from tests.tools.plain.test_exporter import GROUPS, INTERVAL, PARTITIONS, P, stored
from tests.tools.plain.test_group_description import group, topic


class Counted:
    """A session that counts its reads."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._session, name)

        async def counted(path: str) -> Any:
            self.reads += 1
            return await call(path)

        return counted


def test_a_group_that_is_gone_leaves_no_watches() -> None:
    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(paths.BROKER_TOPICS)
        nodes = WatchedNodes(session)
        left = []
        for name in ("g1", "g2"):
            for path in (f"/consumers/{name}/ids", f"/consumers/{name}/offsets/orders"):
                await session.ensure(path)
            await nodes.children(paths.CONSUMERS)
            await nodes_of(nodes, NodeTopicsRead(nodes), name)
            for path in ("ids", "offsets/orders", "offsets", ""):
                await session.delete(f"/consumers/{name}/{path}".rstrip("/"), -1)
            await nodes.children(paths.CONSUMERS)
            nodes.forget(name)
            known = reachable(nodes, without=[session])
            left.append([each for each in known if isinstance(each, str) and each.startswith(f"/consumers/{name}")])
        assert left == [[], []]

    Clients().play(script, 600)


def test_a_reading_costs_what_has_changed() -> None:
    """2,000 partitions: every node once, then nothing, then the nodes that changed, however often they did."""

    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(paths.BROKER_TOPICS)
        await session.create(paths.topic("orders"), topic(PARTITIONS).data)
        for number in range(GROUPS):
            root = f"/consumers/g{number}/offsets/orders"
            await session.ensure(root)
            for first in range(0, PARTITIONS, 100):
                await session.multi([Create(f"{root}/{n}", b"1") for n in range(first, first + 100)])
        counted: Any = Counted(session)
        nodes = WatchedNodes(counted)

        async def read() -> tuple[int, list[GroupNodes]]:
            counted.reads = 0
            groups = [
                await nodes_of(nodes, NodeTopicsRead(nodes), name) for name in await nodes.children(paths.CONSUMERS)
            ]
            return counted.reads, groups

        first, groups = await read()
        assert GROUPS * PARTITIONS <= first <= GROUPS * (PARTITIONS + 20) + 10
        assert [len(each.offsets) for each in groups] == [PARTITIONS] * GROUPS
        assert (await read())[0] <= 2 * GROUPS, "nothing has changed"
        for offset in range(2, 5):
            for number in range(50):
                await session.set(f"/consumers/g1/offsets/orders/{number}", b"%d" % offset, -1)
        again, groups = await read()
        assert 50 <= again <= 50 + 2 * GROUPS
        assert groups[1].offsets["/consumers/g1/offsets/orders/49"].data == b"4"

    Clients().play(script, 600)


@pytest.mark.parametrize("from_brokers", [False, True])
def test_only_groups_that_have_changed_are_read_again(from_brokers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one request and not one decoded group for the others, or ten thousand of them outlast a session."""
    decoded: list[str] = []

    def counted_group(nodes: GroupNodes) -> ReadGroup:
        decoded.append(nodes.group)
        return group_of_nodes(nodes)

    monkeypatch.setattr("kzconsumer_tools.exporter.exporter.group_of_nodes", counted_group)
    names = [f"g{number:03}" for number in range(100)]

    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(paths.BROKER_TOPICS)
        await session.create(paths.topic("orders"), topic(1).data)
        for name in names:
            await session.ensure(f"/consumers/{name}/offsets/orders/0")
            await session.set(f"/consumers/{name}/offsets/orders/0", b"1", -1)
        counted: Any = Counted(session)
        nodes = WatchedNodes(counted)
        followed = FollowedGroups(nodes, lambda name: name != "left-out")
        there = {"orders": TopicMetadata(0, {0: PartitionMetadata(0, 1, 0)})}

        async def read() -> tuple[int, list[str], dict[str, list[int | None]]]:
            counted.reads = 0
            decoded.clear()
            metadata: Any = SimpleNamespace(described=no_topics, hidden=none_hidden)
            topics = (
                BrokerTopicsRead(metadata, dict(there), nodes.identities) if from_brokers else NodeTopicsRead(nodes)
            )
            groups, unreadable = await followed.read(topics)
            assert not unreadable
            offsets = {name: [each.stored for each in read.partitions] for name, read in groups.items()}
            return counted.reads, sorted(decoded), offsets

        requests, first, offsets = await read()
        assert (first, offsets) == (names, {name: [1] for name in names})
        assert requests <= 15 * len(names)
        assert await read() == (0, [], offsets)
        await session.set("/consumers/g007/offsets/orders/0", b"2", -1)
        await session.create("/consumers/g008/ids")
        await session.ensure("/consumers/left-out/offsets/orders/0")
        requests, again, offsets = await read()
        assert (again, offsets["g007"]) == (["g007", "g008"], [2])
        assert requests <= 4
        if from_brokers:
            there["more"] = there["orders"]
        else:
            await session.set(paths.topic("orders"), topic(3).data, -1)
        requests, again, _ = await read()
        assert (again, requests <= PAGE) == (names, True), "groups of a page ask for the topic together"
        for path in ("/offsets/orders/0", "/offsets/orders", "/offsets", ""):
            await session.delete(f"/consumers/g009{path}", -1)
        requests, again, offsets = await read()
        assert (again, "g009" in offsets) == ([], False)
        await session.ensure("/consumers/g009/offsets/orders/0")
        _, again, offsets = await read()
        assert (again, set(offsets["g009"])) == (["g009"], {None})

    async def no_topics(names: list[str]) -> dict[str, TopicMetadata]:
        return {}

    async def none_hidden(names: list[str]) -> set[str]:
        return set()

    Clients().play(script, 600)


@pytest.mark.parametrize("from_brokers", [False, True])
def test_a_cluster_without_groups_is_none_only_if_nothing_of_kafka_is_there(from_brokers: bool) -> None:
    async def script(session: ZooKeeperSession) -> None:
        nodes = WatchedNodes(session)
        metadata = cast("ClusterMetadata", None)
        topics = BrokerTopicsRead(metadata, {}, nodes.identities) if from_brokers else NodeTopicsRead(nodes)
        followed = FollowedGroups(nodes, lambda name: True)
        assert await followed.read(topics) == ({}, {})
        await session.delete(paths.CONSUMERS, -1)
        if from_brokers:
            assert await followed.read(topics) == ({}, {})
        else:
            with pytest.raises(NotFoundError, match="no Kafka cluster is registered there"):
                await followed.read(topics)
        await session.create("/brokers")
        assert await followed.read(topics) == ({}, {})

    Clients().play(script)


def test_a_group_that_changes_while_it_is_read_is_read_again() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(paths.BROKER_TOPICS)
        for number in range(2):
            await session.ensure(f"/consumers/g/offsets/orders/{number}")
        nodes = WatchedNodes(session)
        followed = FollowedGroups(nodes, lambda name: True)
        for offset in range(100):
            await session.set("/consumers/g/offsets/orders/1", b"%d" % offset, -1)  # a reason to read the group
            stored = SetData("/consumers/g/offsets/orders/0", b"%d" % offset, -1)
            after = clients.world.random.uniform(0, 0.01)
            clients.world.after(after, lambda stored=stored: clients.ensemble.operate(stored))  # type: ignore[misc]
            await followed.read(NodeTopicsRead(nodes))
            await anyio.sleep(0.1)
            groups, _ = await followed.read(NodeTopicsRead(nodes))
            assert [each.stored for each in groups["g"].partitions] == [offset, offset]

    clients.play(script, 600)


def test_what_a_restored_zookeeper_has_lost_is_seen() -> None:
    """The session goes on: groups are read again in turn."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(paths.BROKER_TOPICS)
        await session.create(paths.topic("orders"), topic(1).data)
        names = ["g0", "g1", "g2"]
        for name in names:
            await session.ensure(f"/consumers/{name}/offsets/orders/0")
            await session.set(f"/consumers/{name}/offsets/orders/0", b"1", -1)
        copy = clients.ensemble.tree.zxid
        for name in names:
            await session.set(f"/consumers/{name}/offsets/orders/0", b"5", -1)
        nodes = WatchedNodes(session)
        followed = FollowedGroups(nodes, lambda name: True)

        async def stored() -> dict[str, int | None]:
            groups, _ = await followed.read(NodeTopicsRead(nodes))
            return {name: each.stored for name, group in groups.items() for each in group.partitions}

        assert await stored() == dict.fromkeys(names, 5)
        clients.ensemble.restore(copy, elected=True)
        await anyio.sleep(2.0)
        await session.sync()
        assert await stored() == dict.fromkeys(names, 5), "no event reports it"
        await anyio.sleep(RECHECK)
        assert await stored() == dict.fromkeys(names, 1)

    clients.play(script, 600)


async def test_a_look_at_many_groups_lets_others_run() -> None:
    """One after the other: the exporter may do something between two."""
    nodes = group_of_nodes(group({}, {}, stored(p0=(5, 0.0))))
    names = [f"g{number}" for number in range(5)]
    looked = Histories(INTERVAL).look(dict.fromkeys(names, nodes), {P[0]: LogRange(0, 9)}, {}, 0.0)
    assert next(looked).group == "g0"
    assert [each.group for each in looked] == names[1:]
    exporter = Exporter(
        Settings.from_dict({"zookeeper": {"connect": "zk1:2181"}, "group": {"id": "unused"}}), "c", INTERVAL, 60.0
    )
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await exporter.take_reading(dict.fromkeys(names, nodes), [P[0]], {P[0]: LogRange(0, 9)}, 0.1, (), {})
        tasks.cancel_scope.cancel()
    assert turns >= len(names)
    assert list(exporter.last.groups if exporter.last is not None else ()) == names
