"""A cluster as an operator's tool sees it: a session for one errand, and its brokers asked about logs.

Owns the session and the connections while the block lasts. The command line calls it; it is a member of no group.
"""

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
from kzconsumer.errors import BrokersUnreachable, KzConsumerError, NotDone
from kzconsumer.model import TopicPartition
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
from kzconsumer_tools.groups.log_range import LogRange
from kzconsumer_tools.groups.record_times import RecordTimes

# For each broker's answer, in seconds: below the errand's own limit, so that the broker is named.
TIMEOUT = 5.0

OFFSETS_TOPIC = "__consumer_offsets"


class Outside:
    """One errand at a cluster."""

    def __init__(
        self,
        connect: str,
        session: ZooKeeperSession,
        log_offsets: LogOffsets,
        record_times: RecordTimes,
        coordinators: Callable[[str], GroupCoordinator],
    ) -> None:
        self._connect = connect
        self._coordinators = coordinators
        self.session = session
        self._log_offsets = log_offsets
        self.written = record_times.written

    async def partitions(self, topics: Collection[str]) -> dict[str, tuple[int, ...]]:
        """The partition numbers of the topics that exist. Raises NotDone for a topic that cannot be read."""
        nodes = await together([self.session.find(paths.topic(topic)) for topic in topics])
        found = {}
        for topic, node in zip(topics, nodes, strict=True):
            if node is not None:
                try:
                    found[topic] = decode_topic(node.data)
                except ValueError as error:
                    raise NotDone(f"{paths.topic(topic)}: {error}; nothing was changed") from None
        return found

    def coordinator(self, group: str) -> GroupCoordinator:
        """Where the group's offsets with the brokers are stored."""
        return self._coordinators(group)

    async def with_brokers(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, WithBrokers]:
        """The offsets that the group has with the brokers, of these partitions and all others that they tell of.

        Where nobody ever stored one nobody is asked: the question alone would have the brokers make a topic for them.
        Raises CoordinatorFailed.
        """
        if await self.session.exists(paths.topic(OFFSETS_TOPIC)) is None:
            return {}
        return await self.coordinator(group).stored(partitions, others=True)

    async def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """What each log holds. Raises ConnectionLost, BrokerError or BrokersUnreachable if a leader does not say."""
        starts = await self._look_up(partitions, EARLIEST)
        ends = await self._look_up(partitions, LATEST)
        return {each: LogRange(starts[each].offset, ends[each].offset) for each in partitions}

    async def known_logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """What those logs hold whose leaders answer at once; the others are left out: unknown."""
        if not partitions:
            return {}
        try:
            starts = await self._log_offsets.once(dict.fromkeys(partitions, EARLIEST))
            ends = await self._log_offsets.once(dict.fromkeys(partitions, LATEST))
        except KzConsumerError:
            return {}
        found = {}
        for partition, start in starts.items():
            end = ends.get(partition)
            if isinstance(start, ListedOffset) and isinstance(end, ListedOffset):
                found[partition] = LogRange(start.offset, end.offset)
        return found

    async def at_time(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time, None where all records are older.

        Raises as `logs`, and UnsupportedVersion for brokers before 0.10.1.
        """
        found = await self._look_up(partitions, ms)
        return {partition: at.offset if at.offset >= 0 else None for partition, at in found.items()}

    async def _look_up(self, partitions: Collection[TopicPartition], at: int) -> dict[TopicPartition, ListedOffset]:
        try:
            return await self._log_offsets.look_up(dict.fromkeys(partitions, at))
        except BrokersUnreachable as error:
            raise BrokersUnreachable(f"{self._connect}: no broker answers: {error}") from None


@asynccontextmanager
async def outside(zookeeper: ZooKeeperSettings, brokers: BrokersSettings, source: str) -> AsyncIterator[Outside]:
    """Raises ZooKeeperUnreachable when the block lasts longer than an errand may, ConfigError for unreadable keys."""
    security = partial(load_security, brokers, source)
    security()
    async with (
        short_session(zookeeper) as session,
        Brokers(client_id="kzconsumer", timeout=TIMEOUT, security=security) as connections,
    ):
        topics = TopicRegistry(session, Watches(session), brokers)
        leaders = Leaders(topics, connections, TIMEOUT)
        yield Outside(
            zookeeper.connect,
            session,
            LogOffsets(leaders, connections, TIMEOUT, READ_UNCOMMITTED),
            RecordTimes(leaders, connections, TIMEOUT),
            lambda group: GroupCoordinator(group, topics, connections, TIMEOUT),
        )
