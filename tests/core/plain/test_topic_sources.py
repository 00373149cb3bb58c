"""Topics and brokers have one answer to each question, whether znodes or Metadata responses are read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

import kzconsumer
from kzconsumer.brokers.leaders import KnownBrokers
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.cluster_state import (
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from kzconsumer.brokers.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from kzconsumer.brokers.protocol.versions import DESCRIBE_QUORUM, PRODUCE, Versions
from kzconsumer.errors import BrokersUnreachableError, NotFoundError, UnsupportedVersionError, ZooKeeperError
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.cluster import bootstrap, cluster_identity
from kzconsumer.registry.cluster_topics import ClusterTopics, TopicSource
from kzconsumer.registry.node_topics import NodeTopics
from kzconsumer.registry.nodes import Topic, TopicIdentity
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches
from tests.support.extent import seeds
from tests.support.simulated.clients import Clients
from tests.support.simulated.network import CHROOT

NAMES = ["bills", "notes", "orders", "t"]
GROUP = GroupPaths("g")


class Cluster:
    """Brokers that all know the same, and its nodes in ZooKeeper."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        numbers = chance.sample(range(1, 12), chance.randint(1, 3))
        self.brokers = {n: Broker(n, f"kafka{n}", 9090 + n, "the cluster") for n in numbers}
        self.topics = {name: chance.randint(1, 3) for name in chance.sample(NAMES, chance.randint(0, len(NAMES)))}
        self.ids = {name: f"id{number}" for number, name in enumerate(self.topics)}
        self.versions = Versions({DESCRIBE_QUORUM: (0, 2)})
        self.calls = 0

    async def connection(self, at: Broker, purpose: str) -> Cluster:
        assert (at.host, at.port) in {(each.host, each.port) for each in self.brokers.values()}
        return self

    async def call(self, request: MetadataRequest, *, timeout: float) -> MetadataResponse:
        def described(name: str) -> TopicMetadata:
            if name not in self.topics:
                return TopicMetadata(UNKNOWN_TOPIC_OR_PARTITION, {})
            numbers = range(self.topics[name] - 1, -1, -1)
            return TopicMetadata(0, {n: PartitionMetadata(0, 1, 0) for n in numbers}, self.ids[name])

        self.calls += 1
        names = self.topics if request.topics is None else request.topics
        return MetadataResponse(self.brokers, {name: described(name) for name in names}, "the cluster")

    async def write(self, session: ZooKeeperSession) -> None:
        async def make(path: str, **content: object) -> None:
            await session.ensure(path)
            await session.set(path, msgspec.json.encode(content), -1)

        await make(paths.CLUSTER_ID, version="1", id="the cluster")  # before a broker registers
        for name, partitions in self.topics.items():
            numbers = {str(n): [1] for n in range(partitions)}
            await make(paths.topic(name), version=3, topic_id=self.ids[name], partitions=numbers)
        for broker in self.brokers.values():
            await make(paths.broker(broker.id), version=1, host=broker.host, port=broker.port, jmx_port=-1)
        await session.ensure(paths.BROKER_TOPICS)

    def source(self, session: ZooKeeperSession, *, asks_brokers: bool) -> ClusterTopics:
        first = next(iter(self.brokers.values()))
        begin = [f"{first.host}:{first.port}"] if asks_brokers else []
        settings = kzconsumer.Settings.from_dict(
            {"zookeeper": {"connect": "zk0:2181"}, "group": {"id": "g"}, "brokers": {"bootstrap": begin}}
        )
        return ClusterTopics(session, Watches(session), settings, cast("Brokers", self))


async def error_of(call: Awaitable[object]) -> str:
    try:
        await call
    except NotFoundError as error:
        return str(error)
    return ""


async def answers(source: TopicSource, names: list[str], partitions: Sequence[TopicPartition]) -> dict[str, Any]:
    return {
        "every topic": await source.all_topics(),
        "known incarnations before": await source.known_incarnations(names),
        "partitions": await source.partitions(names),
        "topics": await source.topics(names),
        "required": [await error_of(source.require([each])) for each in partitions],
        "ids of brokers": sorted(await source.broker_ids()),
        "a cluster": await source.has_cluster(),
        "brokers": sorted(await source.brokers()),
        "incarnations": await source.incarnations(names),
        "known incarnations": await source.known_incarnations(names),
        "identities": await source.identities(names),
        "ids": await source.ids(names),
        "deleted": await source.deleted(),
        "the cluster": await source.cluster_id(),
    }


@pytest.mark.parametrize("seed", seeds(8, 200))
def test_znodes_and_brokers_give_the_same_answers(seed: int) -> None:
    """The members of a group may read the ones or the others, and have to agree."""
    cluster, chance = Cluster(seed), random.Random(seed)
    names = sorted(chance.sample(NAMES, chance.randint(1, len(NAMES))))
    partitions = [TopicPartition(name, number) for name in names for number in range(4)]

    async def script(session: ZooKeeperSession) -> None:
        await cluster.write(session)
        there = [name for name in names if name in cluster.topics]
        czxids = {name: (await session.get(paths.topic(name))).stat.czxid for name in there}
        numbers = {name: tuple(range(cluster.topics[name])) for name in there}
        errors = [
            f"there is no topic {topic}"
            if topic not in there
            else ""
            if number in numbers[topic]
            else f"topic {topic} has {len(numbers[topic])} partitions, and no number {number}"
            for topic, number in partitions
        ]
        expected = {
            "every topic": sorted(cluster.topics),
            "known incarnations before": czxids,
            "partitions": numbers,
            "topics": {name: Topic(numbers[name], czxids[name]) for name in there},
            "required": errors,
            "ids of brokers": sorted(cluster.brokers),
            "a cluster": True,
            "brokers": sorted(cluster.brokers.values()),
            "incarnations": czxids,
            "known incarnations": czxids,
            "identities": {name: TopicIdentity(czxids[name], cluster.ids[name]) for name in there},
            "ids": {name: cluster.ids[name] for name in there},
            "deleted": set(),
            "the cluster": "the cluster",
        }
        for asks_brokers in (False, True):
            source = cluster.source(session, asks_brokers=asks_brokers)
            assert await answers(source, names, partitions) == expected
            before = cluster.calls
            await source.topics(there)
            assert cluster.calls - before == (asks_brokers and there != []), "brokers do not vote about recorded ids"

    Clients(seed).play(script)


def test_a_topic_that_was_just_created_is_required_of_a_server_that_lags_behind() -> None:
    clients = Clients(lag=(0.4, 0.8))

    async def script(session: ZooKeeperSession) -> None:
        clients.ensemble.make(paths.topic("orders"), b'{"version":1,"partitions":{"0":[1]}}')
        topics = NodeTopics(session, Watches(session))
        await topics.require([TopicPartition("orders", 0)])
        with pytest.raises(NotFoundError, match="no number 1"):
            await topics.require([TopicPartition("orders", 0), TopicPartition("orders", 1)])

    clients.play(script)


def test_before_any_broker_is_registered_there_are_no_answers() -> None:
    cluster = Cluster(1)

    async def script(session: ZooKeeperSession) -> None:
        source = cluster.source(session, asks_brokers=False)
        assert (await source.brokers(), await source.broker_ids(), await source.all_topics()) == ([], [], [])
        assert (await source.cluster_id(), await source.incarnations(NAMES)) == ("", {})
        assert not await source.has_cluster()
        # So a broker up to 1.0 registers at a ZooKeeper that has lost its nodes: it makes nothing else.
        clients.ensemble.make(paths.broker(1), b'{"version":1,"host":"h","port":1}')
        await asyncio.sleep(1)  # until every server has it
        assert (await source.broker_ids(), await source.has_cluster()) == ([1], False)
        clients.ensemble.make(paths.BROKER_TOPICS, b"")
        await asyncio.sleep(1)
        assert await source.has_cluster()

    clients = Clients()
    clients.play(script)


def test_a_broker_that_has_just_started_says_nothing_of_topics() -> None:
    """It knows no broker yet, and no topic either: none of those that are consumed was deleted."""
    cluster = Cluster(1)

    async def script(session: ZooKeeperSession) -> None:
        source = cluster.source(session, asks_brokers=True)
        cluster.brokers = {}
        cluster.connection = lambda *_: starting()  # type: ignore[method-assign]
        for ask in (source.all_topics, source.broker_ids, source.cluster_id):
            with pytest.raises(BrokersUnreachableError, match="knows no broker yet"):
                await ask()

    async def starting() -> Cluster:
        return cluster

    Clients().play(script)


@pytest.mark.parametrize(("has_id", "found"), [(True, "the cluster"), (False, f"zk0:2181,zk1:2181{CHROOT}")])
def test_a_cluster_is_known_by_its_id_or_where_its_nodes_are(has_id: bool, found: str) -> None:
    """Destinations keep it. Before a broker is registered nobody knows whether there will be an id."""
    clients, cluster, identities = Clients(), Cluster(1), list[str]()

    async def script(session: ZooKeeperSession) -> None:
        connect = {"connect": f"zk1:2181,zk0:2181{CHROOT}"}
        settings = kzconsumer.Settings.from_dict({"zookeeper": connect, "group": {"id": "g"}})

        async def later() -> None:
            await anyio.sleep(20)
            if not has_id:
                await session.ensure(paths.broker(1))
            else:
                await cluster.write(session)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(later)
            identities.append(await cluster_identity(settings))

    with capture_logs() as logs:
        clients.play(script)
    assert identities == [found]
    waiting = [each for each in logs if each["event"] == "no broker registered"]
    assert [each["about"] for each in waiting] == [f"{CHROOT}{paths.BROKER_IDS}"]


@pytest.mark.parametrize("read", ["cluster_id", "broker_ids"])
def test_a_cluster_that_starts_while_it_is_asked_for_its_id_has_one(read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first broker writes the id, and then registers: between two reads both may appear."""
    clients = Clients()
    original, starts = getattr(NodeTopics, read), [True]

    async def script(session: ZooKeeperSession) -> str:
        settings = {"zookeeper": {"connect": f"zk0:2181{CHROOT}"}, "group": {"id": "g"}}
        return await cluster_identity(kzconsumer.Settings.from_dict(settings))

    async def read_just_before(topics: NodeTopics) -> object:
        found = await original(topics)
        if starts and starts.pop():
            clients.ensemble.make(paths.CLUSTER_ID, b'{"version":"1","id":"the cluster"}')
            clients.ensemble.make(paths.broker(1))
            await topics._session.sync()
        return found

    monkeypatch.setattr(NodeTopics, read, read_just_before)
    assert clients.play(script) == "the cluster"


class Producing:
    """Brokers for dead letters; `old` ones store no headers."""

    def __init__(self, brokers: Sequence[Broker], *, old: bool) -> None:
        self._brokers = brokers
        self.versions = Versions({PRODUCE: (0, 2 if old else 3)})

    async def brokers(self) -> list[Broker]:
        return [*self._brokers]

    async def connection(self, broker: Broker) -> Producing:
        assert broker == self._brokers[0]
        return self


async def test_a_producer_begins_at_brokers_that_keep_headers() -> None:
    there = (Broker(1, "kafka1", 9092), Broker(2, "::1", 9093))
    for brokers, old, error in ((there, True, UnsupportedVersionError), ((), False, BrokersUnreachableError)):
        fake = Producing(brokers, old=old)
        with pytest.raises(error):
            await bootstrap(cast("KnownBrokers", fake), cast("Brokers", fake))
    fake = Producing(there, old=False)
    assert await bootstrap(cast("KnownBrokers", fake), cast("Brokers", fake)) == "kafka1:9092,[::1]:9093"


@pytest.mark.parametrize("what", ["a topic's record", "the cluster's id"])
def test_an_unreadable_node_is_an_error_that_names_it(what: str) -> None:
    """Whatever is asked: a topic whose record says nothing is not taken for a new one."""
    cluster = Cluster(1)
    cluster.topics, cluster.ids = {"orders": 1}, {"orders": "A"}
    path = GROUP.topic("orders") if what == "a topic's record" else paths.CLUSTER_ID

    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(path)
        await session.set(path, b"?", -1)
        source = cluster.source(session, asks_brokers=path != paths.CLUSTER_ID)
        missing = Cluster(1)
        missing.topics = {}
        asked: list[Callable[[], Awaitable[object]]] = [source.cluster_id]
        if path != paths.CLUSTER_ID:
            there = (source.topics, source.identities, source.known_incarnations)
            asked = [partial(each, ["orders"]) for each in there]
            asked.append(partial(missing.source(session, asks_brokers=True).incarnations, ["orders"]))
        for each in asked:
            with pytest.raises(ZooKeeperError, match=path):
                await each()

    Clients().play(script)
