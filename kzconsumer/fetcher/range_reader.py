"""Reads explicit ranges of offsets without a group: nothing is joined, claimed or committed.

For tools and other callers that read once. A failure is raised after a short time instead of waiting for the cluster to
recover, as a member does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
from anyio import to_thread

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.leaders import KnownBrokers, Leaders
from kzconsumer.brokers.log_offsets import PAUSE, LogOffsets
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import broker_error, error_code
from kzconsumer.brokers.protocol.fetch import ISOLATION_LEVELS, FetchedPartition, FetchPosition, FetchRequest
from kzconsumer.brokers.protocol.list_offsets import EARLIEST, LATEST
from kzconsumer.brokers.protocol.metadata import MetadataRequest
from kzconsumer.brokers.security import load_security
from kzconsumer.clock import now
from kzconsumer.errors import (
    BrokersUnreachableError,
    ConnectionLostError,
    CorruptRecordError,
    KzConsumerError,
    NotFoundError,
    OffsetLostError,
)
from kzconsumer.fetcher.fetch_outcome import FetchOutcome, judge
from kzconsumer.fetcher.looking import readable_end
from kzconsumer.fetcher.reading import reading
from kzconsumer.model import Broker, OffsetRange, TopicPartition
from kzconsumer.records.forms import Records
from kzconsumer.registry.cluster_topics import ClusterTopics, other_topics
from kzconsumer.registry.nodes import Topic
from kzconsumer.registry.sessions import LIMIT, open_session, unreachable
from kzconsumer.settings.sections import FetchSettings, SubscriptionSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.watches import Watches

if TYPE_CHECKING:
    import pyarrow as pa  # loaded by `read`

T = TypeVar("T")

_LARGER: Final = 4  # times `[fetch] max_bytes`: the most that a partition is asked for that is read alone


class RangeReader:
    """Needs no ZooKeeper. One call at a time, except for `read`s of ranges that `by_leader` has separated."""

    def __init__(
        self, settings: FetchSettings, known: KnownBrokers, brokers: Brokers, ids: Mapping[str, str] | None = None
    ) -> None:
        """`ids` are those of topics of which no other topic of the same name may be read (Kafka 2.8)."""
        self._fetch = settings
        self._ids = ids or {}
        self._brokers = brokers
        self._leaders = Leaders(known, brokers, settings.request_timeout)
        self._isolation = ISOLATION_LEVELS[settings.isolation]
        self._decode = reading("columns", settings.largest_body)

    async def at_time(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int]:
        """The first offset with a record of that time (ms since 1970) or later; the end of the log if there is none.

        Raises as `look_up`, also for brokers before 0.10.1.
        """
        offsets = LogOffsets(self._leaders, self._brokers, self._fetch.request_timeout, self._isolation)
        # The end is read first: a record that is written in between must not be left out.
        until = await offsets.look_up(dict.fromkeys(partitions, LATEST))
        found = await offsets.look_up(dict.fromkeys(partitions, ms))
        return {each: at.offset if (at := found[each]).offset >= 0 else until[each].offset for each in partitions}

    async def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """First offset and end offset of each log. Raises as `look_up`."""
        offsets = LogOffsets(self._leaders, self._brokers, self._fetch.request_timeout, self._isolation)
        first = await offsets.look_up(dict.fromkeys(partitions, EARLIEST))
        until = await offsets.look_up(dict.fromkeys(partitions, LATEST))
        return {each: (first[each].offset, max(first[each].offset, until[each].offset)) for each in partitions}

    async def by_leader(self, ranges: Iterable[OffsetRange]) -> list[list[OffsetRange]]:
        """The ranges grouped by leader, for one `read` each; last those without a leader at the moment."""
        left = {each.topic_partition: each for each in ranges}
        by_leader, _ = await self._leaders.grouped(left)
        led = [[left.pop(each) for each in partitions] for partitions in by_leader.values()]
        return [*led, list(left.values())] if left else led

    async def read(
        self, ranges: Iterable[OffsetRange], *, follow: bool = False
    ) -> AsyncGenerator[tuple[TopicPartition, pa.RecordBatch]]:
        """The records of the ranges (columns: `kzconsumer.records.columns.SCHEMA`), in order within a partition.

        With `follow` it waits for records that the log does not have yet, as long as its leader answers.
        Raises OffsetLostError for offsets that the log does not have, after `[fetch] request_timeout` for those behind
        its end, which an unclean election may have cut off, and if the topic has another id than `ids` say;
        CorruptRecordError; ConnectionLostError when nothing arrives for that time, BrokersUnreachableError when no
        broker answers, BrokerError when a leader cannot be found or cannot read its log.
        """
        left = {TopicPartition(each.topic, each.partition): each for each in ranges if each.first < each.until}
        sizes = dict.fromkeys(left, self._fetch.max_bytes)
        cut: set[TopicPartition] = set()  # with a batch of which the response had only a part, as before 0.10.1
        gaps: set[OffsetRange] = set()
        by_leader: Mapping[Broker, Collection[TopicPartition]] = {}
        deadline = now() + self._fetch.request_timeout
        while left:
            before = dict(left)
            reason: KzConsumerError = ConnectionLostError("no leader sent records within request_timeout")
            answered: set[TopicPartition] = set()
            ends: dict[TopicPartition, int] = {}  # of logs that end before their range does
            try:
                by_leader = by_leader or (await self._leaders.grouped(left))[0]
                if not by_leader:
                    reason = self._no_leader()
            except BrokersUnreachableError as error:
                reason = error
            for leader, led in by_leader.items():
                if not (asked := {each: left[each] for each in led if each in left}):
                    continue
                try:
                    fetched = await self._ask(leader, asked, sizes)
                except ConnectionLostError as error:
                    reason = error
                    continue
                for part in fetched:
                    rest = left.get(part.topic_partition)
                    if rest is None:
                        continue  # was not asked for
                    if judge(part.error) in (FetchOutcome.FIND_LEADER, FetchOutcome.UNREADABLE):
                        reason = broker_error(part.error, str(part.topic_partition))
                        continue
                    answered.add(part.topic_partition)
                    records, next_offset, incomplete = await self._records(part, rest)
                    if incomplete:
                        cut.add(part.topic_partition)
                        sizes[part.topic_partition] *= 2
                    if not part.records and (end := readable_end(part, self._isolation)) < rest.until:
                        ends[part.topic_partition] = end
                    if len(asked) == 1 and self._is_gap(part, rest):
                        # Before 0.11 the end is read after the records, and may have moved between the two.
                        next_offset = rest.until if rest in gaps else next_offset
                        gaps.add(rest)
                    if len(asked) == 1 and next_offset > rest.first and part.topic_partition not in cut:
                        sizes[part.topic_partition] = self._size_of_rest(part, rest, next_offset)
                    if records:
                        yield part.topic_partition, records.columns()
                    left[part.topic_partition] = rest._replace(first=next_offset)
            left = {each: rest for each, rest in left.items() if rest.first < rest.until}
            if not left.items().isdisjoint(before.items()):
                by_leader = {}  # a partition that got nothing may have another leader now
            if left != before or (follow and answered == before.keys()):
                deadline = now() + self._fetch.request_timeout
            elif now() > deadline:
                if ends.keys() == left.keys():  # a leader that took over has had time to learn where its log ends
                    partition, end = next(iter(ends.items()))
                    raise OffsetLostError(f"{partition}: the log ends at {end}, before {left[partition].until}")
                raise reason
            else:
                await anyio.sleep(PAUSE)

    async def any_record(self, topic: str, partition: int, first: int, until: int) -> bool:
        """Whether the log has a record in the range. Raises as `read`."""
        async with aclosing(self.read([OffsetRange(topic, partition, first, until)])) as found:
            async for _ in found:
                return True
        return False

    def _is_gap(self, part: FetchedPartition, rest: OffsetRange) -> bool:
        """Whether the log has no record of the rest. Of several partitions some may have nothing for want of room."""
        return not part.error and not part.records and readable_end(part, self._isolation) >= rest.until

    def _no_leader(self) -> KzConsumerError:
        partition, why = next(iter(self._leaders.last.items()))
        return ConnectionLostError(f"{partition} has no leader: {why}")

    def _size_of_rest(self, part: FetchedPartition, rest: OffsetRange, next_offset: int) -> int:
        """How many bytes to ask for next: what the rest is likely to take, within limits; each request costs 1 ms."""
        most = self._fetch.max_bytes
        expected = len(part.records) * (rest.until - next_offset) // (next_offset - rest.first)
        return max(most, min(expected * 9 // 8, most * _LARGER, self._fetch.response_bytes))

    async def _ask(
        self, leader: Broker, asked: Mapping[TopicPartition, OffsetRange], sizes: Mapping[TopicPartition, int]
    ) -> list[FetchedPartition]:
        connection = await self._brokers.connection(leader, "fetch")
        request = FetchRequest(
            max_wait_ms=int(self._fetch.max_wait * 1000),
            min_bytes=1,
            max_bytes=self._fetch.response_bytes,
            partitions={each: FetchPosition(rest.first, sizes[each]) for each, rest in asked.items()},
            isolation=self._isolation,
        )
        response = await connection.call(request, timeout=self._fetch.request_timeout)
        if response.error:
            raise ConnectionLostError(f"{leader}: fetch refused: {error_code(response.error).name}")
        if named := {each.topic for each in asked} & self._ids.keys():
            await self._require_ids(connection, named)
        return response.partitions

    async def _require_ids(self, connection: BrokerConnection, topics: Collection[str]) -> None:
        """After a fetch, which does not say which topic of a name it is of.

        A broker knows that a topic is deleted before it makes the log of another one.
        """
        answer = await connection.call(MetadataRequest(tuple(topics)), timeout=self._fetch.request_timeout)
        for name in topics:
            found = answer.topics.get(name)
            if found is None or not found.partitions:  # deleted, or so new that the broker has not been sent it yet
                raise ConnectionLostError(f"{connection.broker} does not know the topic {name}")
            if found.id not in ("", self._ids[name]):
                raise OffsetLostError(f"topic {name} was deleted and created again, and its offsets are lost")

    async def _records(self, part: FetchedPartition, rest: OffsetRange) -> tuple[Records, int, bool]:
        """The records of the range, the offset to continue at, and whether the next batch needs a larger response."""
        if judge(part.error) is FetchOutcome.OUT_OF_RANGE:
            raise OffsetLostError(f"{part.topic_partition}: the log does not hold offset {rest.first} any more")
        decoded = await to_thread.run_sync(self._decode, part, rest.first)
        if decoded.corrupt is not None and decoded.corrupt.offset < rest.until and not decoded.records:
            raise CorruptRecordError(part.topic_partition, decoded.corrupt.offset, decoded.corrupt.reason)
        return decoded.records.below(rest.until), decoded.next_offset, decoded.incomplete


class ClusterReader(RangeReader):
    """Use `range_reader`. Also finds topics."""

    def __init__(self, settings: Settings, topics: ClusterTopics, brokers: Brokers) -> None:
        super().__init__(settings.fetch, topics, brokers)
        self._topics = topics

    async def brokers(self) -> Sequence[Broker]:
        """Those to ask for leaders. Raises as `partitions`."""
        return await self._topics.brokers()

    async def partitions(self, wanted: SubscriptionSettings) -> list[TopicPartition]:
        """The partitions of all topics that `wanted` selects. Changes nothing. Raises as `topics`."""
        found = await self._selected(wanted, self._topics.partitions)
        return [TopicPartition(name, number) for name, numbers in found.items() for number in numbers]

    async def topics(self, wanted: SubscriptionSettings) -> dict[str, Topic]:
        """The topics that `wanted` selects. Raises NotFoundError if there is none, ZooKeeperError.

        If brokers report topics, the settings' group identifies them (`TopicIdentities.incarnation`).
        """
        return await self._selected(wanted, self._topics.topics)

    async def ids(self, topics: Collection[str]) -> dict[str, str]:
        """As `ClusterTopics.ids`."""
        return await self._topics.ids(topics)

    async def known_incarnations(self, topics: Collection[str]) -> dict[str, int]:
        """As `ClusterTopics.known_incarnations`, of the settings' group."""
        return await self._topics.known_incarnations(topics)

    async def _selected(
        self, wanted: SubscriptionSettings, look: Callable[[list[str]], Awaitable[dict[str, T]]]
    ) -> dict[str, T]:
        there = await self._topics.all_topics()
        allowed = wanted.filter.allows if wanted.filter is not None else wanted.topics.__contains__
        found = await look([name for name in there if allowed(name)])
        if not found:
            hint = other_topics(next(iter(wanted.topics), ""), there)
            named = ", ".join(wanted.topics)
            raise NotFoundError(f"{f'there is no topic {named}' if named else 'no topic matches'}; {hint}")
        return found


@asynccontextmanager
async def range_reader(settings: Settings) -> AsyncIterator[ClusterReader]:
    """A reader of the settings' cluster.

    Raises ZooKeeperUnreachableError after 15 s, ConfigError for keys or passwords. A BrokersUnreachableError of the
    block gets the cluster's address.
    """
    security = partial(load_security, settings.brokers, settings.source)
    security()
    async with AsyncExitStack() as exits:
        session = open_session(settings.zookeeper)
        with anyio.move_on_after(LIMIT) as patience:
            await exits.enter_async_context(session)
        if patience.cancelled_caught:
            raise unreachable(session, settings.zookeeper, LIMIT)
        brokers = await exits.enter_async_context(
            Brokers(client_id=settings.group.id, timeout=settings.fetch.request_timeout, security=security)
        )
        topics = ClusterTopics(session, Watches(session), settings, brokers, guest=True)
        try:
            yield ClusterReader(settings, topics, brokers)
        except BrokersUnreachableError as error:
            raise BrokersUnreachableError(f"{settings.zookeeper.connect}: no broker answers: {error}") from None
