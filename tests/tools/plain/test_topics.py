"""Where tools find topics: as members of the group would, and without changing anything."""

from __future__ import annotations

from typing import cast

import anyio
import msgspec
import pytest

from kzconsumer.brokers.pool import Brokers
from kzconsumer.model import Broker
from kzconsumer.registry import paths
from kzconsumer.registry.broker_topics import TopicIdentities
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.sections import BrokersSettings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches
from kzconsumer_tools.groups.cluster_access import metadata_of
from kzconsumer_tools.groups.group_nodes import KnownTopic, facts
from kzconsumer_tools.groups.group_reader import Topics, topics_now
from tests.core.plain.test_cluster_topics import UNAUTHORIZED, Answering, Cluster
from tests.support.simulated.clients import Clients
from tests.tools.plain.test_group_description import group, node

REGISTRATION = b'{"version":5,"host":"kafka1","port":9092,"endpoints":["PLAINTEXT://kafka1:9092"],"jmx_port":-1}'
KEPT = b'["kafka2:9092"]'


async def look(session: ZooKeeperSession, cluster: Cluster, group: str | None, bootstrap: str = "") -> Topics:
    settings = BrokersSettings(bootstrap=(bootstrap,) if bootstrap else ())
    metadata = metadata_of(session, Watches(session), settings, cast("Brokers", cluster), group)
    return await topics_now(
        session, metadata, lambda name: TopicIdentities(session, Watches(session), GroupPaths(name))
    )


async def write(session: ZooKeeperSession, path: str, data: bytes = b"") -> None:
    await session.ensure(path)
    await session.set(path, data, -1)


@pytest.mark.parametrize(
    ("registered", "announced", "kept", "group", "from_brokers"),
    [
        (True, False, (), "g", False),
        (True, True, (), "g", True),
        (True, True, (), None, True),
        (True, False, ("g",), "g", True),
        (True, False, ("other",), "g", False),
        (True, False, ("other",), None, False),
        (False, False, (), "g", False),
        (False, True, (), "g", False),
        (False, False, ("other",), "g", True),
        (False, False, ("other",), None, True),
    ],
)
def test_topics_come_from_brokers_if_members_of_the_group_or_without_registered_brokers_of_any_group_would_ask_them(
    registered: bool, announced: bool, kept: tuple[str, ...], group: str | None, from_brokers: bool
) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(paths.BROKER_IDS)
        await write(session, paths.topic("of nodes"), b'{"version":1,"partitions":{"0":[1]}}')
        if registered:
            await write(session, paths.broker(1), REGISTRATION)
        if announced:
            await write(session, paths.MIGRATION)
        for name in kept:
            await write(session, GroupPaths(name).brokers, KEPT)
        before = dict(clients.ensemble.tree.nodes)
        topics = await look(session, Cluster(orders="A"), group)
        assert topics.from_brokers == from_brokers
        assert await topics.names() == (["orders"] if from_brokers else ["of nodes"])
        assert clients.ensemble.tree.nodes == before

    clients.play(script)


def test_a_topic_that_the_first_broker_does_not_know_is_looked_up_with_the_others() -> None:
    async def script(session: ZooKeeperSession) -> None:
        cluster = Cluster()
        cluster.ids = {1: {}, 2: {"orders": "A"}, 3: {"orders": "A"}}
        for _ in range(10):  # brokers are asked in random order
            topics = await look(session, cluster, "g", "kafka1:9092")
            found = await topics.found(["orders", "bills"], "g")
            assert {name: topic.partitions for name, topic in found.items()} == {"orders": (0,)}
            assert found["orders"].incarnation is None, "the group has never consumed it"
        await TopicIdentities(session, Watches(session), GroupPaths("g")).incarnation("orders", "A")
        node = await session.get(GroupPaths("g").topic("orders"))
        assert msgspec.json.decode(node.data)["ids"] == ["A"]
        topics = await look(session, cluster, "g", "kafka1:9092")
        assert (await topics.found(["orders"], "g"))["orders"].incarnation == node.stat.mzxid

    Clients().play(script)


def test_a_topic_that_an_acl_hides_is_not_gone() -> None:
    """Brokers refuse to describe it, and do not say whether it exists."""

    async def script(session: ZooKeeperSession) -> None:
        cluster = Cluster(orders="A")
        nodes = group({}, {}, {"orders/0": node("7"), "bills/0": node("7")})
        for error, gone in ((cluster.error, ["bills"]), (UNAUTHORIZED, [])):
            cluster.error = error
            topics = await look(session, cluster, "g", "kafka1:9092")
            known = facts(msgspec.structs.replace(nodes, topics=await topics.found(["bills", "orders"], "g")))
            assert [each.topic for each in sorted(known.offsets) if known.gone(each)] == gone

    Clients().play(script)


class SlowCluster(Cluster):
    async def connection(self, at: Broker, purpose: str) -> Answering:
        await anyio.sleep(0.01)
        return await super().connection(at, purpose)


def test_groups_that_are_read_at_once_agree_about_a_hidden_topic() -> None:
    """One is read while brokers are asked about the topics of another."""

    async def script(session: ZooKeeperSession) -> None:
        cluster = SlowCluster(orders="A")
        cluster.error = UNAUTHORIZED
        for pause in range(10):
            topics = await look(session, cluster, None, "kafka1:9092")
            found: list[dict[str, KnownTopic]] = []

            async def one(after: float, topics: Topics = topics, found: list[dict[str, KnownTopic]] = found) -> None:
                await anyio.sleep(after)
                found.append(await topics.found(["bills"], None))

            async with anyio.create_task_group() as tasks:
                for after in (0.0, 0.005 + 0.01 * pause):
                    tasks.start_soon(one, after)
            assert [list(each) for each in found] == [["bills"]] * 2

    Clients().play(script)
