"""Reads explicit ranges of offsets without a group: nothing is joined, claimed or committed.

For tools and other callers that read once. A failure is raised after a short time instead of waiting for the cluster to
recover, as a member does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.leaders import LATE, PAUSE, KnownBrokers, Leaders, LogOffsets, local_start, not_led
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.cluster_state import MetadataRequest
from kzconsumer.brokers.protocol.error_codes import broker_error, error_code
from kzconsumer.brokers.protocol.log_reads import (
    CONSUMERS_MAY_ASK,
    EARLIEST,
    ISOLATION_LEVELS,
    LATEST,
    READ_UNCOMMITTED,
    AskedEpoch,
    Diverging,
    EpochEnd,
    FetchedPartition,
    FetchPosition,
    FetchRequest,
    FetchResponse,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.brokers.protocol.versions import OFFSET_FOR_LEADER_EPOCH
from kzconsumer.brokers.transport import load_security
from kzconsumer.clock import now
from kzconsumer.connecting import first_success
from kzconsumer.errors import (
    BrokerError,
    BrokersUnreachableError,
    ConnectionLostError,
    KzConsumerError,
    NotFoundError,
    OffsetLostError,
    UnusableBatchError,
)
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy, without_way
from kzconsumer.fetcher.decode_and_queue import ATTEMPTS_AT_A_BATCH
from kzconsumer.fetcher.fetch_rules import FetchOutcome, decoding, differs, judge, larger, unusable_batch
from kzconsumer.fetcher.range_account import Question, RangeAccount, questions
from kzconsumer.fetcher.throttle import SLOW, RateLimit, Throttle
from kzconsumer.model import Broker, OffsetRange, TopicPartition
from kzconsumer.records.forms import Records
from kzconsumer.registry.cluster import LIMIT, ClusterView, broker_pool, open_session, unreachable
from kzconsumer.registry.cluster_topics import other_topics
from kzconsumer.registry.nodes import Topic
from kzconsumer.settings.sections import FetchSettings, SubscriptionSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.threads import in_thread
from kzconsumer.zookeeper.watches import repeated

if TYPE_CHECKING:
    import pyarrow as pa  # loaded by `read`

T = TypeVar("T")


class RangeReader:
    """Needs no ZooKeeper. One call at a time, except for `read`s of ranges that `by_leader` has separated."""

    def __init__(
        self,
        settings: FetchSettings,
        known: KnownBrokers,
        brokers: Brokers,
        ids: Mapping[str, str] | None = None,
        epochs: Mapping[TopicPartition, int] | None = None,
        *,
        on_corrupt: CorruptPolicy | None = None,
        rate_limit: float | None = None,
    ) -> None:
        """`ids` are those of topics of which no other topic of the same name may be read (Kafka 2.8).

        `epochs`: the leader epoch in which the log was known up to the end of the ranges of a partition (see `epochs`).
        `on_corrupt` is for batches that cannot be used; without it `read` raises. `rate_limit`: bytes per second, which
        each `read` keeps to from its beginning to its end.
        """
        self._fetch = settings
        self._on_corrupt = on_corrupt
        self._rate_limit = rate_limit
        self._ids = ids or {}
        self._epochs = epochs or {}
        self._brokers = brokers
        self._throttles: dict[int, Throttle] = {}  # by broker; of slow lines only
        self.leaders = Leaders(known, brokers, settings.request_timeout)
        self._isolation = ISOLATION_LEVELS[settings.isolation]
        self._decode = decoding(settings.largest_body)

    async def at_time(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int]:
        """See `LogOffsets.at_time`. Raises as `LogOffsets.look_up`, also for brokers before 0.10.1."""
        offsets = LogOffsets(self.leaders, self._brokers, self._fetch.request_timeout, self._isolation)
        return await offsets.at_time(partitions, ms)

    async def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """First offset and end offset of each log. Raises as `look_up`."""
        offsets = LogOffsets(self.leaders, self._brokers, self._fetch.request_timeout, self._isolation)
        first = await offsets.look_up(dict.fromkeys(partitions, EARLIEST))
        until = await offsets.look_up(dict.fromkeys(partitions, LATEST))
        return {each: (first[each].offset, max(first[each].offset, until[each].offset)) for each in partitions}

    async def epochs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The epoch of each partition's leader, where it is known (brokers from 2.1 on). Raises as `look_up`.

        No record that the log has now is of a later epoch. So a log in which an earlier offset is of a later epoch is
        another one: it was cut off there, and has grown again (KIP-101).
        """
        offsets = LogOffsets(self.leaders, self._brokers, self._fetch.request_timeout, self._isolation)
        found = await offsets.look_up(dict.fromkeys(partitions, LATEST))
        return {partition: at.leader_epoch for partition, at in found.items() if at.leader_epoch >= 0}

    async def require_logs(self, positions: Mapping[TopicPartition, tuple[int, int]], way_out: str) -> None:
        """Raises OffsetLostError, with the `way_out`, for a stored offset whose log lost what was before it.

        `positions` have the leader epoch of the record before the offset, too; -1 if it is unknown. The log ends before
        the offset, or has grown past it again and is another one by its leader epochs. Raises as `look_up`.
        """
        offsets = LogOffsets(self.leaders, self._brokers, self._fetch.request_timeout, READ_UNCOMMITTED)
        known = {each: epoch for each, (_, epoch) in positions.items() if epoch >= 0}
        same = await offsets.look_up_epochs(known)
        ends = await offsets.look_up(dict.fromkeys(positions, LATEST))
        for partition, (offset, epoch) in sorted(positions.items()):
            found = same.get(partition)
            if found is not None and 0 <= found.end_offset < offset:
                lost = differs(partition, offset, epoch, Diverging(found.epoch, found.end_offset))
                raise OffsetLostError(f"{lost}; {way_out}")
            if (end := ends[partition].offset) < offset:
                raise OffsetLostError(
                    f"{partition}: the log ends at {end}, before the stored offset {offset}; {way_out}"
                )

    async def by_leader(self, ranges: Iterable[OffsetRange]) -> list[list[OffsetRange]]:
        """The ranges grouped by leader, for one `read` each; last those without a leader at the moment."""
        left = {each.topic_partition: each for each in ranges}
        by_leader, _ = await self.leaders.grouped(left)
        led = [[left.pop(each) for each in partitions] for partitions in by_leader.values()]
        return [*led, list(left.values())] if left else led

    async def read(
        self, ranges: Iterable[OffsetRange], *, follow: bool = False
    ) -> AsyncGenerator[tuple[TopicPartition, pa.RecordBatch]]:
        """The records of the ranges (columns: `kzconsumer.records.columns.SCHEMA`), in order within a partition.

        With `follow` it waits for records that the log does not have yet, as long as its leader answers.
        At the end every offset of the ranges is accounted for (`range_account`).
        Raises OffsetLostError for offsets that the log does not have, after `[fetch] request_timeout` for those behind
        its end, which an unclean election may have cut off, if the topic has another id than `ids` say, and if the log
        was cut off and has grown again since it was known in the leader epoch that `epochs` have (brokers from 2.3 on);
        UnusableBatchError; ConnectionLostError when no leader answers for that time, or when the answers have no
        records for ten times that time, BrokersUnreachableError when no broker answers, BrokerError when a leader
        cannot be found or cannot read its log.
        """
        began = now()
        limit = RateLimit(self._rate_limit, burst=0.0)  # saved up by reads that follow each other, it would not hold
        accounts = {
            each.topic_partition: RangeAccount(each, self._fetch, self._isolation, began)
            for each in ranges
            if each.first < each.until
        }
        by_leader: Mapping[Broker, Collection[TopicPartition]] = {}
        moved = began
        while accounts:
            before = {partition: account.first for partition, account in accounts.items()}
            try:
                if not by_leader:
                    by_leader, leaderless = await self.leaders.grouped(accounts)
                    for partition, why in leaderless.items():
                        accounts[partition].unanswered(not_led(partition, why), now())
            except BrokersUnreachableError as error:
                for account in accounts.values():
                    account.unanswered(error, now())
            for leader, led in by_leader.items():
                for question in questions([accounts[each] for each in led if each in accounts], self._fetch):
                    await anyio.sleep(limit.wait(now()))
                    async with aclosing(self._answers(leader, question, limit)) as answers:
                        async for partition, records in answers:
                            yield partition, records.columns()
            accounts = {partition: account for partition, account in accounts.items() if not account.complete}
            stuck = [account for partition, account in accounts.items() if account.first == before[partition]]
            if len(stuck) < len(before):
                moved = now()
            if not stuck:
                continue
            by_leader = {}  # a partition that got nothing may have another leader now
            for account in stuck:
                if (overdue := account.overdue(moved, now(), follow=follow)) is not None:
                    raise overdue
            if len(stuck) == len(before):
                await anyio.sleep(PAUSE)
        await anyio.sleep(limit.wait(now()))

    async def _answers(
        self, leader: Broker, question: Question, limit: RateLimit
    ) -> AsyncGenerator[tuple[TopicPartition, Records]]:
        """Ask once, and give the accounts what is answered. The records of the answer, where there are any."""
        asked = {account.topic_partition: account for account in question.accounts}
        try:
            response, ends = await self._while_it_leads(leader, asked.keys(), partial(self._ask, leader, question))
        except _TooSlow:
            for account in asked.values():
                account.too_slow(now())
            return
        except ConnectionLostError as error:
            for account in asked.values():
                account.unanswered(error, now())
            return
        limit.spend(now(), sum(len(part.records) for part in response.partitions))
        for part in response.partitions:
            if part.topic_partition not in asked:
                continue
            account = asked.pop(part.topic_partition)
            if judge(part.error) in (FetchOutcome.FIND_LEADER, FetchOutcome.UNREADABLE):
                account.unanswered(broker_error(part.error, str(part.topic_partition)), now())
                continue
            if (end := ends.get(part.topic_partition)) is not None and not account.require_epoch(
                self._epochs[part.topic_partition], end, now()
            ):
                continue
            decoded = await in_thread(self._decode, part, account.first) if part.records else None
            throttled = response.throttle_ms > 0
            try:
                records = account.take(part, decoded, asked=len(question.accounts), throttled=throttled, time=now())
            except UnusableBatchError as error:
                if self._on_corrupt is None:
                    raise
                span = OffsetRange(*part.topic_partition, error.offset, account.until)
                account.pass_over(await self.way_over(span, self._on_corrupt))
                continue
            if account.asks_where:
                await self._tell_where(leader, account)
            if records:
                yield part.topic_partition, records
        for account in asked.values():
            if response.throttle_ms:
                account.throttled(now())
            else:
                reason = ConnectionLostError(f"{leader} left {account.topic_partition} out of its answer")
                account.unanswered(reason, now())

    async def _tell_where(self, leader: Broker, account: RangeAccount) -> None:
        """Tell the account where the part of the log begins that the leader has on its own disks."""
        partition = account.topic_partition

        async def ask() -> int | None:
            connection = await self._brokers.connection(leader, "fetch")
            return await local_start(connection, partition, self._isolation, self._fetch.request_timeout)

        try:
            offset = await self._while_it_leads(leader, [partition], ask)
        except (ConnectionLostError, BrokerError) as error:
            account.unanswered(error, now())
        else:
            account.local_start(offset, now())

    async def way_over(self, span: OffsetRange, policy: CorruptPolicy) -> int:
        """Where to go on in a range that begins with a batch that cannot be used, once `policy` is carried out.

        All such batches that follow each other are passed over, after some attempts at each. The first offset of the
        range if it can be read now, as from another leader. Raises as `CorruptPolicy.way_over`, ConnectionLostError,
        BrokersUnreachableError, BrokerError.
        """
        at, size, attempts = span.first, self._fetch.max_bytes, 0
        partition = span.topic_partition
        while at < span.until:
            part = await self._part(partition, at, size)
            decoded = await in_thread(self._decode, part, at) if part.records else None
            if decoded is None or decoded.records or (decoded.corrupt is None and not decoded.incomplete):
                break
            if decoded.corrupt is not None and (attempts := attempts + 1) < ATTEMPTS_AT_A_BATCH:
                await anyio.sleep(PAUSE)
                continue
            found = unusable_batch(partition, at, size, decoded, self._fetch)
            if found is not None:
                leads_on = partial(self._leads_on, partition, part.high_watermark)
                way = await policy.way_over(found, part.records, part.high_watermark, leads_on, span.until)
                if way is not None:
                    at, size, attempts = way, self._fetch.max_bytes, 0
                    continue
                if larger(size, self._fetch) is None:
                    raise without_way(found)
            size = larger(size, self._fetch) or size
        return min(at, span.until)

    async def _leads_on(self, partition: TopicPartition, end: int, offset: int) -> bool:
        """Whether the log ends at the offset, or has something there."""
        return offset == end or bool((await self._part(partition, offset, self._fetch.max_bytes)).records)

    async def _part(self, partition: TopicPartition, offset: int, size: int) -> FetchedPartition:
        """What the leader has from an offset on; asked again for `request_timeout`, as another one may lead by then."""
        until = now() + self._fetch.request_timeout
        while True:
            try:
                by_leader, leaderless = await self.leaders.grouped([partition])
                for leader in by_leader:
                    ask = partial(self._part_of, leader, partition, FetchPosition(offset, size))
                    return await self._while_it_leads(leader, [partition], ask)
                raise not_led(partition, leaderless[partition])
            except (ConnectionLostError, BrokerError) as error:
                if now() > until or (isinstance(error, BrokerError) and not error.retriable):
                    raise
            await anyio.sleep(PAUSE)

    async def _part_of(self, leader: Broker, partition: TopicPartition, position: FetchPosition) -> FetchedPartition:
        connection = await self._brokers.connection(leader, "fetch")
        wait, most = self._fetch.max_wait, self._fetch.response_bytes
        request = FetchRequest(int(wait * 1000), 1, most, {partition: position}, self._isolation)
        response = await connection.call(request, timeout=self._fetch.request_timeout + wait)
        for part in response.partitions:
            if part.error:
                raise broker_error(part.error, str(partition))
            return part
        raise ConnectionLostError(f"{leader} left {partition} out of its answer")

    async def any_record(self, topic: str, partition: int, first: int, until: int) -> bool:
        """Whether the log has a record in the range. Raises as `read`."""
        async with aclosing(self.read([OffsetRange(topic, partition, first, until)])) as found:
            async for _ in found:
                return True
        return False

    async def _while_it_leads(
        self, leader: Broker, partitions: Collection[TopicPartition], ask: Callable[[], Awaitable[T]]
    ) -> T:
        """What `ask` returns or raises; ConnectionLostError if it is late and another broker leads a partition."""

        answers: list[T] = []

        async def answer() -> KzConsumerError | bool:
            try:
                answers.append(await ask())
            except KzConsumerError as error:
                return error
            return True

        async def led_elsewhere() -> KzConsumerError | bool:
            while True:
                if await self._led_elsewhere(leader, partitions):
                    if (connection := self._brokers.present(leader, "fetch")) is not None:
                        self._brokers.drop(connection)  # else its answer would hold up the next one
                    return ConnectionLostError(f"{leader} does not answer, and another broker leads its partitions")
                await anyio.sleep(LATE)

        found = await first_success((answer, led_elsewhere), lambda wait: wait(), LATE)
        if answers:
            return answers[0]
        assert isinstance(found, KzConsumerError)
        raise found

    async def _led_elsewhere(self, leader: Broker, partitions: Collection[TopicPartition]) -> bool:
        try:
            leaders = await self.leaders.of(partitions)
        except KzConsumerError:
            return False
        return any(isinstance(found, Broker) and found != leader for found in leaders.values())

    async def _ask(self, leader: Broker, question: Question) -> tuple[FetchResponse, Mapping[TopicPartition, EpochEnd]]:
        """The records, and where the epochs end that the partitions were known in. Raises _TooSlow."""
        throttle = self._throttles.setdefault(leader.id, Throttle(self._fetch.response_bytes))
        patience = throttle.patience(self._fetch.request_timeout)
        connection = await self._brokers.connection(leader, "fetch")
        request = FetchRequest(
            max_wait_ms=int(question.max_wait * 1000),
            min_bytes=1,
            max_bytes=throttle.most,
            partitions={each.topic_partition: each.position for each in question.accounts},
            isolation=self._isolation,
        )
        sent = now()
        try:
            response = await connection.call(request, timeout=patience + question.max_wait)
        except ConnectionLostError as error:
            if connection.timed_out and connection.begun:
                throttle.timed_out(patience, connection.begun)
                raise _TooSlow(str(error)) from error
            raise
        slow = now() - sent > SLOW * self._fetch.request_timeout
        size = sum(len(part.records) for part in response.partitions)
        throttle.answered(now(), 0.0, size, 0, muted=False, slow=slow)
        if response.error:
            raise ConnectionLostError(f"{leader}: fetch refused: {error_code(response.error).name}")
        if named := {each.topic_partition.topic for each in question.accounts} & self._ids.keys():
            await self._require_ids(connection, named)
        return response, await self._epoch_ends(connection, question)

    async def _epoch_ends(self, connection: BrokerConnection, question: Question) -> Mapping[TopicPartition, EpochEnd]:
        """After a fetch, as for the ids: a log that is another one before the fetch is another one after it, too."""
        partitions = [each.topic_partition for each in question.accounts]
        asked = {each: AskedEpoch(self._epochs[each]) for each in partitions if each in self._epochs}
        if not asked or connection.versions.choose(OFFSET_FOR_LEADER_EPOCH) < CONSUMERS_MAY_ASK:
            return {}
        return await connection.call(OffsetForLeaderEpochRequest(asked), timeout=self._fetch.request_timeout)

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


class _TooSlow(ConnectionLostError):
    """Only a part of the answer came in time."""


class ClusterReader(RangeReader):
    """Use `range_reader`. Also finds topics."""

    def __init__(self, cluster: ClusterView) -> None:
        super().__init__(cluster.settings.fetch, cluster.topics, cluster.brokers)
        self._topics, self._session = cluster.topics, cluster.session

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

    async def require_same(self, incarnations: Mapping[str, int]) -> None:
        """Raises OffsetLostError if one of these topics was deleted and created again: records may be of the new one.

        What was read of a topic that is missing now is of the one that was deleted.
        """

        async def present() -> dict[str, int]:
            await self._session.sync()
            return await self._topics.incarnations(incarnations)

        for name, found in (await repeated(present)).items():
            if found != incarnations[name]:
                raise OffsetLostError(f"topic {name} was deleted and created again, and its offsets are lost")

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
    load_security(settings.brokers, settings.source)
    async with AsyncExitStack() as exits:
        session = open_session(settings.zookeeper)
        with anyio.move_on_after(LIMIT) as patience:
            await exits.enter_async_context(session)
        if patience.cancelled_caught:
            raise unreachable(session, settings.zookeeper, LIMIT)
        brokers = await exits.enter_async_context(broker_pool(settings))
        try:
            yield ClusterReader(ClusterView(session, settings, brokers, guest=True))
        except BrokersUnreachableError as error:
            raise BrokersUnreachableError(f"{settings.zookeeper.connect}: no broker answers: {error}") from None
