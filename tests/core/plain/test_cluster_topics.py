"""Topics from Metadata responses that disagree, are incomplete or have no ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import anyio
import pytest
from structlog.testing import capture_logs

import kzconsumer
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.cluster_state import (
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from kzconsumer.brokers.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION, error_code
from kzconsumer.brokers.protocol.versions import DESCRIBE_QUORUM, Versions
from kzconsumer.errors import ConnectionLostError, KzConsumerError, ZooKeeperError
from kzconsumer.model import Broker
from kzconsumer.registry.broker_topics import CERTAIN
from kzconsumer.registry.cluster_topics import ClusterTopics
from kzconsumer.registry.paths import MIGRATION, GroupPaths, broker, topic
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches
from tests.support.simulated.clients import Clients

PATHS = GroupPaths("g")
ADDRESSES = {number: Broker(number, f"kafka{number}", 9092) for number in (1, 2, 3)}


class Cluster:
    """Three brokers; `ids` has the topic ids that each of them reports."""

    def __init__(self, **ids: str) -> None:
        self.ids: dict[int, Mapping[str, str]] = {}
        self.kraft = True
        self.error = UNKNOWN_TOPIC_OR_PARTITION
        """With which brokers answer that do not know a topic."""
        self.away: set[int] = set()
        self.known = dict.fromkeys(ADDRESSES, ADDRESSES)
        """The brokers that each of them reports."""
        self.report(**ids)
        self.notified: list[str] = []

    def report(self, **ids: str) -> None:
        self.ids = dict.fromkeys(ADDRESSES, ids)

    async def connection(self, at: Broker, purpose: str) -> Answering:
        number = next(each.id for each in ADDRESSES.values() if each.host == at.host)
        if number in self.away:
            raise ConnectionLostError("connection refused")
        return Answering(self, number)

    def topics(
        self, session: ZooKeeperSession, bootstrap: str = "kafka1:9092", *, guest: bool = False
    ) -> ClusterTopics:
        settings = kzconsumer.Settings.from_dict(
            {
                "zookeeper": {"connect": "zk0:2181"},
                "group": {"id": "g"},
                "brokers": {"bootstrap": [bootstrap] if bootstrap else [], "metadata_interval": "1s"},
            }
        )
        notify, brokers = self.notified.append, cast("Brokers", self)
        return ClusterTopics(session, Watches(session), settings, brokers, notify, guest=guest)


class Answering:
    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster, self._number = cluster, number
        self.versions = Versions({DESCRIBE_QUORUM: (0, 2)} if cluster.kraft else {})

    async def call(self, request: MetadataRequest, *, timeout: float) -> MetadataResponse:
        ids = self._cluster.ids[self._number]
        partitions = {0: PartitionMetadata(0, 1, 0)}
        found = {name: TopicMetadata(0, partitions, topic_id) for name, topic_id in ids.items()}
        if request.topics is not None:
            unknown = TopicMetadata(self._cluster.error, {})
            found = {name: found.get(name, unknown) for name in request.topics}
        return MetadataResponse(self._cluster.known[self._number], found)


def test_a_topic_that_is_created_later_is_noticed() -> None:
    cluster = Cluster()

    async def script(session: ZooKeeperSession) -> None:
        topics = cluster.topics(session)
        assert await topics.topics(["orders"]) == {}
        with anyio.move_on_after(3):
            await topics.poll()
        assert cluster.notified == []
        cluster.report(orders="A")
        with anyio.move_on_after(1.5):
            await topics.poll()
        assert cluster.notified == ["topic orders"]

    Clients().play(script)


@pytest.mark.parametrize("recorded", ["A", "B"], ids=["former id recorded", "only the present one recorded"])
def test_a_former_id_of_a_stale_broker_does_not_hide_the_topic(recorded: str) -> None:
    cluster = Cluster(orders=recorded)

    async def script(session: ZooKeeperSession) -> None:
        topics = cluster.topics(session)
        first = (await topics.topics(["orders"]))["orders"].incarnation
        cluster.ids = {1: {"orders": "A"}, 2: {"orders": "B"}, 3: {"orders": "B"}}
        for _ in range(20):  # the brokers are asked in random order
            await topics.topics(["orders"])
        cluster.report(orders="B")
        present = (await topics.topics(["orders"]))["orders"].incarnation
        assert (present == first) == (recorded == "B")

    Clients().play(script)


def test_a_topic_without_id_is_identified_by_its_node() -> None:
    """Brokers in ZooKeeper mode with an old inter.broker.protocol.version, when the controllers of KRaft start."""
    cluster = Cluster(orders="")

    async def script(session: ZooKeeperSession) -> None:
        topics = cluster.topics(session)
        with pytest.raises(ZooKeeperError, match="without an id"):
            await topics.topics(["orders"])
        await session.ensure(topic("orders"))
        await session.set(topic("orders"), b'{"version":1,"partitions":{"0":[1]}}', -1)
        node = await session.get(topic("orders"))
        assert (await topics.topics(["orders"]))["orders"].incarnation == node.stat.czxid
        assert await topics.ids(["orders"]) == {}
        cluster.report(orders="A")
        assert (await topics.topics(["orders"]))["orders"].incarnation == node.stat.czxid
        assert await topics.ids(["orders"]) == {"orders": "A"}

    Clients().play(script)


def test_a_topic_that_no_broker_knows_yet_is_the_one_of_its_node() -> None:
    """The first brokers that restart for a migration may know none: the offsets of members that read the nodes stay."""
    cluster = Cluster()

    async def script(session: ZooKeeperSession) -> None:
        topics = cluster.topics(session)
        await session.ensure(topic("orders"))
        await session.set(topic("orders"), b'{"version":1,"partitions":{"0":[1]}}', -1)
        node = await session.get(topic("orders"))
        assert await topics.incarnations(["orders", "gone"]) == {"orders": node.stat.czxid}
        cluster.report(orders="A")
        assert (await topics.topics(["orders"]))["orders"].incarnation == node.stat.czxid
        await session.delete(topic("orders"), -1)
        cluster.report()
        assert await topics.incarnations(["orders", "gone"]) == {"orders": node.stat.czxid}

    Clients().play(script)


@pytest.mark.parametrize("content", [b'["kafka1"]', b'[":9092"]', b"kafka1:9092", b'{"a":1}'])
def test_unreadable_addresses_of_the_group_are_an_error_that_names_the_node(content: bytes) -> None:
    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(PATHS.brokers)
        await session.set(PATHS.brokers, content, -1)
        with pytest.raises(KzConsumerError, match=PATHS.brokers):
            await Cluster().topics(session, bootstrap="").brokers()

    Clients().play(script)


@pytest.mark.parametrize("guest", [True, False])
def test_who_only_reads_keeps_no_addresses_and_uses_those_of_other_groups_once_no_broker_is_registered(
    guest: bool,
) -> None:
    """A member keeps them for those that start later, and relies on its own group's alone."""

    async def script(session: ZooKeeperSession) -> None:
        cluster = Cluster(orders="A")
        await session.ensure(broker(1))
        await session.set(broker(1), b'{"version":1,"host":"kafka1","port":9092,"jmx_port":-1}', -1)
        await session.ensure(MIGRATION)
        assert await cluster.topics(session, bootstrap="", guest=guest).all_topics() == ["orders"]
        assert (await session.find(PATHS.root) is None) == guest
        for path in (broker(1), MIGRATION, *([] if guest else [PATHS.brokers])):
            await session.delete(path, -1)
        await session.ensure(GroupPaths("other").brokers)
        await session.set(GroupPaths("other").brokers, b'["kafka2:9092"]', -1)
        assert await cluster.topics(session, bootstrap="", guest=guest).asks_brokers() == guest

    Clients().play(script)


@pytest.mark.parametrize("when", ["found", "changed"])
def test_addresses_are_kept_though_the_connection_broke_the_first_time(when: str) -> None:
    """As it may when the cluster's ZooKeeper is restarted for the migration."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        cluster = Cluster(orders="A")
        await session.ensure(PATHS.root)
        await session.ensure(broker(1))
        await session.set(broker(1), b'{"version":1,"host":"kafka1","port":9092,"jmx_port":-1}', -1)
        await session.ensure(MIGRATION)
        topics = cluster.topics(session, bootstrap="")
        if when == "found":
            clients.lose_the_next_write(executed=False)
            with pytest.raises(ConnectionLostError):
                await topics.all_topics()
            assert await topics.all_topics() == ["orders"]
        else:
            assert await topics.all_topics() == ["orders"]
            clients.lose_the_next_write(executed=False)
            with anyio.move_on_after(10):
                await topics.poll()
        node = await session.get(PATHS.brokers)
        assert node.data == (b'["kafka1:9092"]' if when == "found" else b'["kafka1:9092","kafka2:9092","kafka3:9092"]')
        with capture_logs() as logs:  # it was announced; and another member finds them there, and announces nothing
            assert await topics.all_topics() == ["orders"]
            assert await cluster.topics(session, bootstrap="").all_topics() == ["orders"]
            if when == "changed":  # what has not changed since is not written again
                with anyio.move_on_after(5):
                    await topics.poll()
        assert (logs, (await session.get(PATHS.brokers)).stat) == ([], node.stat)

    clients.play(script)


@pytest.mark.parametrize("readable", [True, False])
def test_an_unreadable_node_of_another_group_does_not_stop_a_reader(readable: bool) -> None:
    """Unless it is the only one. That of a member's own group stops the member."""

    async def script(session: ZooKeeperSession) -> None:
        cluster = Cluster(orders="A")
        for group, content in (("a", b"?"), *([("b", b'["kafka2:9092"]')] if readable else [])):
            await session.ensure(GroupPaths(group).brokers)
            await session.set(GroupPaths(group).brokers, content, -1)
        reading = cluster.topics(session, bootstrap="", guest=True)
        if readable:
            assert await reading.all_topics() == ["orders"]
        else:
            with pytest.raises(ZooKeeperError, match=GroupPaths("a").brokers):
                await reading.all_topics()

    Clients().play(script)


def test_a_reader_takes_no_offset_for_one_of_a_topic_that_was_created_again() -> None:
    async def script(session: ZooKeeperSession) -> None:
        cluster = Cluster(orders="A")
        first = (await cluster.topics(session).topics(["orders"]))["orders"].incarnation
        reading = cluster.topics(session, guest=True)
        assert await reading.known_incarnations(["orders", "bills"]) == {"orders": first}
        cluster.report(orders="B", bills="C")
        before = await session.get(PATHS.topic("orders"))
        assert await reading.known_incarnations(["orders", "bills"]) == {}
        assert await session.get(PATHS.topic("orders")) == before

    Clients().play(script)


def test_the_id_and_the_incarnation_of_a_topic_are_of_the_same_topic() -> None:
    """Whichever broker answers: one reports the former topic of the name."""
    cluster = Cluster(orders="A")

    async def script(session: ZooKeeperSession) -> None:
        topics = cluster.topics(session)
        first = (await topics.identities(["orders"]))["orders"]
        cluster.report(orders="B")
        second = (await topics.identities(["orders"]))["orders"]
        assert (first.id, second.id) == ("A", "B")
        assert second.incarnation > first.incarnation
        cluster.ids = {1: {"orders": "A"}, 2: {"orders": "B"}, 3: {}}
        for _ in range(20):  # the brokers are asked in random order
            assert await topics.identities(["orders"]) == {"orders": second}

    Clients().play(script)


UNAUTHORIZED = next(code for code in range(100) if error_code(code).name == "TOPIC_AUTHORIZATION_FAILED")


@pytest.mark.parametrize("case", ["deleted", "one knows it", "one is away", "ZooKeeper mode", "refused", "one more"])
def test_a_topic_is_only_deleted_if_every_broker_in_kraft_mode_answers_and_does_not_know_it(case: str) -> None:
    """A broker in ZooKeeper mode begins with nothing, and one that is away may know a topic that others do not yet."""
    cluster = Cluster(orders="A", bills="B")

    async def script(session: ZooKeeperSession) -> None:
        topics = cluster.topics(session)
        first = await topics.incarnations(["orders", "bills"])
        cluster.report(bills="B")
        match case:
            case "one knows it":
                cluster.ids[3] = {"orders": "A", "bills": "B"}
            case "one is away":
                cluster.away = {3}
            case "ZooKeeper mode":
                cluster.kraft = False
            case "refused":
                cluster.error = UNAUTHORIZED
            case "one more":  # which the first one does not report
                cluster.known = {1: {1: ADDRESSES[1], 2: ADDRESSES[2]}, 2: ADDRESSES, 3: ADDRESSES}
                cluster.ids[3] = {"orders": "A"}
        for _ in range(15):  # the brokers are asked in random order
            topics = cluster.topics(session)
            assert await topics.incarnations(["orders", "bills"]) == first, "its offsets stay"
            assert await topics.deleted() == ({"orders"} if case == "deleted" else set())
        assert await topics.are_of_the_group()
        cluster.report(bills="other")
        assert not await cluster.topics(session).are_of_the_group()

    Clients().play(script)


def test_a_topic_that_brokers_get_to_know_in_a_moment_is_not_deleted() -> None:
    cluster = Cluster(orders="A", bills="B")

    async def script(session: ZooKeeperSession) -> None:
        topics = cluster.topics(session)
        await topics.incarnations(["orders", "bills"])
        cluster.report(bills="B")
        await topics.incarnations(["orders", "bills"])

        async def later() -> None:
            await anyio.sleep(CERTAIN / 2)
            cluster.report(orders="A", bills="B")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(later)
            assert await topics.deleted() == set()

    Clients().play(script)
