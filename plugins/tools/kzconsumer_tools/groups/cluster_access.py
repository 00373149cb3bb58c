"""Access to a cluster from outside any group: a short ZooKeeper session, and requests to brokers about logs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.log_offsets import LogOffsets
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.fetch import READ_UNCOMMITTED
from kzconsumer.brokers.protocol.list_offsets import EARLIEST, LATEST, ListedOffset
from kzconsumer.brokers.security import load_security
from kzconsumer.errors import BrokersUnreachableError, KzConsumerError, NotDoneError
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.offsets.authority import WithBrokers
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.registry import paths
from kzconsumer.registry.nodes import decode_topic
from kzconsumer.registry.sessions import short_session
from kzconsumer.registry.topics import TopicRegistry
from kzconsumer.settings.sections import BrokersSettings, ZooKeeperSettings
from kzconsumer.zookeeper.round_trips import together
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches
from kzconsumer_tools.cluster.reader import cluster_of, no_topic
from kzconsumer_tools.groups.lag import LogRange
from kzconsumer_tools.groups.record_times import RecordTimes

# Seconds for each broker's response: below the limit of the session, so that an error names the broker.
TIMEOUT = 5.0

OFFSETS_TOPIC = "__consumer_offsets"

# The version of a broker's registration from which on it coordinates groups: that of 0.9.
COORDINATES_FROM = 2


class ClusterAccess:
    """Reads a cluster for one command."""

    def __init__(
        self,
        connect: str,
        session: ZooKeeperSession,
        leaders: Leaders,
        log_offsets: LogOffsets,
        record_times: RecordTimes,
        coordinators: Callable[[str], GroupCoordinator],
    ) -> None:
        self._connect = connect
        self._coordinators = coordinators
        self.session = session
        self._leaders = leaders
        self._log_offsets = log_offsets
        self.written = record_times.written

    async def partitions(self, topics: Collection[str]) -> dict[str, tuple[int, ...]]:
        """The partition numbers of the topics that exist. Raises NotDoneError for an unreadable topic node."""
        nodes = await together([self.session.find(paths.topic(topic)) for topic in topics])
        found = {}
        for topic, node in zip(topics, nodes, strict=True):
            if node is not None:
                try:
                    found[topic] = decode_topic(node.data)
                except ValueError as error:
                    raise NotDoneError(f"{paths.topic(topic)}: {error}; nothing was changed") from None
        return found

    async def required(self, topics: Collection[str]) -> dict[str, tuple[int, ...]]:
        """As `partitions`; raises NotFoundError for a topic that does not exist."""
        found = await self.partitions(topics)
        for topic in topics:
            if topic not in found:
                raise no_topic(topic, await self.session.children(paths.BROKER_TOPICS))
        return found

    def coordinator(self, group: str) -> GroupCoordinator:
        """The coordinator that stores the group's offsets."""
        return self._coordinators(group)

    async def coordinator_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, WithBrokers]:
        """The group's offsets in the brokers, of these partitions and of all others that the coordinator returns.

        Without the offsets topic brokers are not asked: the request alone would create it. Raises CoordinatorError.
        """
        if not await self._has_offsets():
            return {}
        return await self.coordinator(group).stored(partitions, others=True)

    async def kafka_members(self, group: str) -> tuple[str, ...] | None:
        """The members of the group of this name that brokers coordinate; None if a broker is of 0.8.

        Asks no broker without the offsets topic, as `coordinator_offsets`. Raises CoordinatorError.
        """
        if any(broker.version < COORDINATES_FROM for broker in (await cluster_of(self.session)).brokers):
            return None
        return await self.coordinator(group).members() if await self._has_offsets() else ()

    async def _has_offsets(self) -> bool:
        return await self.session.exists(paths.topic(OFFSETS_TOPIC)) is not None

    async def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """The range of each log.

        Raises ConnectionLostError, BrokerError or BrokersUnreachableError without a leader's answer.
        """
        starts = await self._look_up(partitions, EARLIEST)
        ends = await self._look_up(partitions, LATEST)
        return {each: LogRange(starts[each].offset, ends[each].offset) for each in partitions}

    async def known_logs(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, LogRange], KzConsumerError | None]:
        """The ranges of those logs whose leaders answer at the first request, and why one is missing."""
        if not partitions:
            return {}, None
        try:
            starts = await self._log_offsets.once(dict.fromkeys(partitions, EARLIEST))
            ends = await self._log_offsets.once(dict.fromkeys(partitions, LATEST))
        except BrokersUnreachableError as error:
            return {}, self._unreachable(error)
        except KzConsumerError as error:
            return {}, error
        found = {}
        missing = None
        for partition, start in starts.items():
            end = ends[partition]
            if isinstance(start, ListedOffset) and isinstance(end, ListedOffset):
                found[partition] = LogRange(start.offset, end.offset)
            else:
                missing = missing or next(each for each in (start, end) if isinstance(each, KzConsumerError))
        return found, missing

    def leaders(self) -> dict[TopicPartition, Broker]:
        """Of the partitions in the last question about logs, as far as they are known."""
        return {partition: leader for partition, leader in self._leaders.last.items() if isinstance(leader, Broker)}

    async def at_time(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time, None if all records are older.

        Raises as `logs`, and UnsupportedVersionError for brokers before 0.10.1.
        """
        found = await self._look_up(partitions, ms)
        return {partition: at.offset if at.offset >= 0 else None for partition, at in found.items()}

    async def _look_up(self, partitions: Collection[TopicPartition], at: int) -> dict[TopicPartition, ListedOffset]:
        try:
            return await self._log_offsets.look_up(dict.fromkeys(partitions, at))
        except BrokersUnreachableError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: BrokersUnreachableError) -> BrokersUnreachableError:
        return BrokersUnreachableError(f"{self._connect}: no broker answers: {error}")


@asynccontextmanager
async def cluster_access(
    zookeeper: ZooKeeperSettings, brokers: BrokersSettings, source: str
) -> AsyncIterator[ClusterAccess]:
    """Raises ZooKeeperUnreachableError if the block exceeds the session's limit, ConfigError for unreadable keys."""
    security = partial(load_security, brokers, source)
    security()
    async with (
        short_session(zookeeper) as session,
        Brokers(client_id="kzconsumer", timeout=TIMEOUT, security=security) as connections,
    ):
        topics = TopicRegistry(session, Watches(session), brokers)
        leaders = Leaders(topics, connections, TIMEOUT)
        yield ClusterAccess(
            zookeeper.connect,
            session,
            leaders,
            LogOffsets(leaders, connections, TIMEOUT, READ_UNCOMMITTED),
            RecordTimes(leaders, connections, TIMEOUT),
            lambda group: GroupCoordinator(group, topics, connections, TIMEOUT),
        )
