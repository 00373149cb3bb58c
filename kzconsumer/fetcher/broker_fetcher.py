"""One broker's fetcher: one task, one connection, one request after the other for all its partitions.

Owns the fetch states of the partitions this broker leads. The FetcherManager starts it and hands it partitions; one
whose leader is elsewhere is *sent* back to the leader finder. The next request is on its way while the last response is
decoded, unless that is small; a partition whose stream's queue is full is left out, and holds up no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import anyio
import anyio.lowlevel
import structlog
from anyio import to_thread

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import NONE, error_code
from kzconsumer.brokers.protocol.fetch import (
    ISOLATION_LEVELS,
    READ_COMMITTED,
    FetchedPartition,
    FetchPosition,
    FetchRequest,
    FetchResponse,
)
from kzconsumer.clock import now
from kzconsumer.counters import Tallies
from kzconsumer.errors import (
    BrokerError,
    ConnectionLost,
    KzConsumerError,
    ProtocolError,
    SecurityError,
    UnsupportedVersion,
)
from kzconsumer.fetcher.corrupt_batch import Unusable, unreadable, without_way
from kzconsumer.fetcher.corrupt_policy import CorruptPolicy
from kzconsumer.fetcher.fetch_outcome import ATTEMPTS, FetchOutcome, judge
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.fetcher.partition_state import PartitionFetchState
from kzconsumer.fetcher.rate_limit import RateLimit
from kzconsumer.fetcher.reading import Reading
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.records.decode import Decoded, compiled, scan_next_offset, warmed
from kzconsumer.settings.sections import FetchSettings
from kzconsumer.streams.chunk import Chunk

log = structlog.get_logger("kzconsumer.fetcher")

# A response below this many bytes is read and handed on before the next request is made.
FEW_BYTES = 64 * 1024
# What compiled kernels read in a millisecond is no work for a thread: to hand it over and to take turns with it costs
# more, and the bytes go cold. Records of one partition up to this size, unless they grow as compressed ones do.
QUICK_BYTES = 2 * 1024 * 1024
QUICK_EXPANSION = 2.0
# Bytes read so without a turn of the event loop, which would go on with the socket and leave these go cold.
MOST_AT_ONCE = 4 * 1024 * 1024
# Bytes that the compressed batches of a small response may take for the event loop to decompress them, all together:
# a millisecond. Nothing compressed is read there in a larger response.
ROOM_AT_ONCE = 256 * 1024
# The same while plain Python reads them: ten milliseconds.
ROOM_WHILE_COLD = 16 * 1024
# Bytes decoded of one response beyond which a partition whose queue is full has to be fetched again.
MOST_DECODED = 256 * 1024 * 1024
# Bytes of memory that a chunk takes beside its records': the columns of a single record take six KB.
CHUNK_BYTES = 6 * 1024
# Most bytes of a partition in one response while the kernels load: the first messages need not wait for that.
BYTES_WHILE_COLD = 64 * 1024
# A corrupt batch is fetched again: another replica may lead by then, and have it whole.
ATTEMPTS_AT_A_BATCH = 3
# While a full queue keeps a partition out, the broker may hold an answer back only this long.
IMPATIENT_MS = 10

Arrived = list[tuple[PartitionFetchState, FetchedPartition, int]]
Hopeless = tuple[PartitionFetchState, FetchedPartition, Unusable]


class BrokerFetcher:
    """Fetches from one broker, for as long as `run` runs."""

    def __init__(
        self,
        broker: Broker,
        brokers: Brokers,
        settings: FetchSettings,
        reset: OffsetReset,
        read: Reading,
        limit: RateLimit,
        find_leader: Callable[[Iterable[PartitionFetchState]], None],
        tallies: Tallies,
    ) -> None:
        self.broker = broker
        self._brokers = brokers
        self._settings = settings
        self._isolation = ISOLATION_LEVELS[settings.isolation]
        self._reset = reset
        self._read = read
        self._limit = limit
        self._corrupt = CorruptPolicy(settings)
        self._find_leader = find_leader
        self._tallies = tallies
        self._tally = tallies.of_broker(broker.id)
        self._states: dict[TopicPartition, PartitionFetchState] = {}
        self._work = anyio.Event()

    def __repr__(self) -> str:
        return f"<BrokerFetcher {self.broker} {len(self._states)} partitions>"

    def __contains__(self, state: PartitionFetchState) -> bool:
        return self._states.get(state.topic_partition) is state

    def add(self, states: Iterable[PartitionFetchState]) -> None:
        for state in states:
            self._states[state.topic_partition] = state
            state.queue.subscribe(self.wake)
        self.wake()

    def wake(self) -> None:
        self._work.set()

    async def run(self) -> None:
        """For ever: an error of the connection sends all partitions back to the leader finder."""
        try:
            while True:
                await self._work.wait()
                try:
                    connection = await self._brokers.connection(self.broker, "fetch")
                    try:
                        await self._fetch_from(connection)
                    finally:
                        # What is still in flight on it belongs to nobody any more.
                        self._brokers.drop(connection)
                except (ConnectionLost, ProtocolError, BrokerError, UnsupportedVersion) as error:
                    if not isinstance(error, SecurityError):  # those are told where they are found, once
                        log.warning("broker lost", broker=self.broker.id, reason=str(error))
                    self._send_back(self._states.values())
                    self._work = anyio.Event()
        finally:
            self._send_back(self._states.values())

    async def _fetch_from(self, connection: BrokerConnection) -> None:
        """Until the connection is lost, or worn out: the next one goes on where this one ends."""
        arrived: Arrived = []
        try:
            while True:
                if 0 < _size(arrived) < FEW_BYTES:
                    await self._deliver(arrived)
                    await anyio.lowlevel.checkpoint()  # the streams have it before the next request is made
                time = now()
                await self._resolve_positions(time)
                asked, impatient = self._next_positions(time) if not self._limit.wait(time) else ({}, False)
                reply, sent = None, now()
                if asked:
                    request = FetchRequest(
                        max_wait_ms=IMPATIENT_MS if impatient else int(self._settings.max_wait * 1000),
                        min_bytes=self._settings.min_bytes,
                        max_bytes=self._settings.response_bytes,
                        partitions=asked,
                        isolation=self._isolation,
                    )
                    reply = connection.send(request, timeout=self._settings.request_timeout)
                if arrived:
                    await self._deliver(arrived)
                elif reply is None:
                    await self._wait_for_work(time)
                if reply is not None:
                    arrived = self._take(asked, self._accept(await reply, sent))
                if connection.worn_out:
                    await self._deliver(arrived)
                    self.wake()
                    return
        finally:
            self._take_back(arrived)

    def _accept(self, response: FetchResponse, sent: float) -> list[FetchedPartition]:
        """A function of its own: the caller's frame would keep the last response in memory while it waits for room."""
        self._tally.requests.add(now() - sent)
        if response.error:
            raise ProtocolError(f"{self.broker}: fetch refused: {error_code(response.error).name}")
        size = sum(len(part.records) for part in response.partitions)
        self._limit.spend(now(), size)
        self._tally.bytes += size
        return response.partitions

    def _next_positions(self, time: float) -> tuple[dict[TopicPartition, FetchPosition], bool]:
        """What to ask for, and whether something was left out for want of room."""
        self._work = anyio.Event()
        asked = {}
        parked = False
        cold = not warmed()
        for partition, state in list(self._states.items()):
            if not state.open:
                self._forget([state])
            elif state.fetchable(time) and state.position is not None:
                size = state.max_bytes
                if size == self._settings.max_bytes:  # one that has grown needs it: a batch may be that large
                    small = BYTES_WHILE_COLD if cold else int(size / state.expansion)
                    size = min(size, max(small, BYTES_WHILE_COLD))
                asked[partition] = FetchPosition(state.position, size)
            else:
                parked = parked or not state.queue.has_room
        return asked, parked

    def _take(self, asked: dict[TopicPartition, FetchPosition], fetched: list[FetchedPartition]) -> Arrived:
        """Move the positions on by the batches' framing, so that the next request can go out before the decoding.

        Not for few bytes: those are read at once, and the next request follows.
        """
        arrived: Arrived = []
        few = sum(len(part.records) for part in fetched) < FEW_BYTES
        for part in fetched:
            state = self._states.get(part.topic_partition)
            position = asked.get(part.topic_partition)
            if state is None or position is None or not state.open or state.position != position.offset:
                continue  # the partition or its position changed while the request was on its way
            outcome = judge(part.error)
            if outcome is FetchOutcome.FIND_LEADER or (
                outcome is FetchOutcome.UNREADABLE and state.bears_another(ATTEMPTS[part.error])
            ):
                log.info(
                    "leader sought",
                    topic=part.topic_partition.topic,
                    partition=part.topic_partition.partition,
                    broker=self.broker.id,
                    reason=error_code(part.error).name,
                )
                self._send_back([state])
            elif outcome is FetchOutcome.UNREADABLE:
                self._fail(state, unreadable(part.topic_partition, position.offset, error_code(part.error).name))
            elif outcome is FetchOutcome.OUT_OF_RANGE:
                state.reset_due = True
            else:
                # What can be read now ends there. Brokers before 0.11 tell no last stable offset.
                stable = self._isolation == READ_COMMITTED and part.last_stable_offset >= 0
                state.high_watermark = part.last_stable_offset if stable else part.high_watermark
                size = len(part.records)
                if size:
                    if not few:
                        state.position = scan_next_offset(part.records, position.offset)
                    # No whole batch, or few bytes: the decoding tells.
                    state.decoding = state.position == position.offset
                    state.queue.reserve(size)
                    arrived.append((state, part, position.offset))
        self._move_back(state for state, _, _ in arrived)
        return arrived

    def _move_back(self, served: Iterable[PartitionFetchState]) -> None:
        """Brokers fill responses in the order of the request: the others come first in the next one."""
        for state in served:
            if state in self:
                self._states[state.topic_partition] = self._states.pop(state.topic_partition)

    @staticmethod
    def _take_back(arrived: Arrived) -> None:
        """What was taken and not delivered has to be fetched again."""
        for state, part, start in arrived:
            state.position = start
            state.decoding = False
            state.queue.give_back(len(part.records))

    async def _deliver(self, arrived: Arrived) -> None:
        """Read and queue, and empty the list; then deal with the batches that are not worth another attempt."""
        began = now()
        room = (ROOM_AT_ONCE if compiled() else ROOM_WHILE_COLD) if _size(arrived) < FEW_BYTES else 0
        quick = _quick(arrived)
        decoded: Iterator[Decoded] = iter(())  # by a thread
        hopeless: list[Hopeless] = []
        served: list[PartitionFetchState] = []
        put_off = False
        seconds, at_once, held = 0.0, 0, 0
        while arrived:
            state, part, start = arrived[0]
            result = self._read(part, start, room) if quick else next(decoded, None)
            if result is None or result.no_room:
                quick = False
                if held >= MOST_DECODED and not state.queue.has_room:
                    self._take_back([arrived.pop(0)])
                    put_off = True
                    continue
                decoded = iter(await to_thread.run_sync(self._read_some, tuple(arrived)))
                result = next(decoded)
            room = 0 if result.corrupt else room - result.decompressed  # nobody knows what a corrupt batch has cost
            held += result.size
            seconds += now() - began
            del arrived[0]  # what is queued must not be taken back, however the rest ends
            served.append(state)
            self._enqueue(state, start, len(part.records), result)
            self._count(state.topic_partition.topic, len(part.records), result)
            partition, corrupt = state.topic_partition, result.corrupt
            if corrupt is not None:
                found = Unusable(partition, corrupt.offset, corrupt.position, corrupt.reason)
                if not self._try_again(state, found):
                    hopeless.append((state, part, found))
            elif result.incomplete and not self._grow(state):
                limit = self._settings.largest_batch
                reason = f"is larger than largest_batch = {limit} bytes of the table [fetch]"
                hopeless.append((state, part, Unusable(partition, start, 0, reason, cut_off=True)))
            at_once += len(part.records)
            if at_once >= MOST_AT_ONCE and arrived:
                await anyio.lowlevel.checkpoint()  # everything else has its turn
                at_once = 0
            began = now()
        if put_off:
            self._move_back(served)
        if seconds:
            self._tally.decoding.add(seconds)
        for each in hopeless:
            await self._give_up(*each)

    def _read_some(self, arrived: Sequence[tuple[PartitionFetchState, FetchedPartition, int]]) -> list[Decoded]:
        """Read the first of them, at least one: what several hold together is bounded. For a thread."""
        decoded: list[Decoded] = []
        held = 0
        for _, part, start in arrived:
            decoded.append(self._read(part, start))
            held += decoded[-1].size
            if held >= MOST_DECODED:
                break
        return decoded

    def _count(self, topic: str, size: int, decoded: Decoded) -> None:
        self._tallies.records[topic] += len(decoded.records)
        self._tallies.bytes[topic] += size

    @staticmethod
    def _enqueue(state: PartitionFetchState, start: int, size: int, decoded: Decoded) -> None:
        tracker, until = state.tracker, decoded.next_offset
        state.decoding = False
        state.position = until  # where the framing said otherwise, the answer in flight is dropped
        if until > start:
            # Compressed records may take many times the bytes that were fetched.
            held = max(size, decoded.size) + CHUNK_BYTES
            if size >= FEW_BYTES:
                state.expansion = held / size
            state.queue.reserve(held - size)
            records = decoded.records
            if state.end is not None and until > state.end and not records.whole_batches:
                records, until = records.below(state.end), max(state.end, start)
            at_end = state.end is not None and until >= state.end
            state.queue.put(Chunk(tracker, start, until, records, held, at_end=at_end))
        else:
            state.queue.give_back(size)
        if decoded.corrupt is None and until > start:
            state.succeed()

    def _try_again(self, state: PartitionFetchState, found: Unusable) -> bool:
        if not state.bears_another(ATTEMPTS_AT_A_BATCH):
            return False
        log.warning(
            "corrupt batch, fetching it again",
            **state.tracker.topic_partition._asdict(),
            reason=str(found.error),
            attempt=state.failures,
        )
        self._send_back([state])
        return True

    def _grow(self, state: PartitionFetchState) -> bool:
        """Brokers before 0.10.1 cut a batch larger than the fetch size short: ask for more, up to a limit."""
        if state.max_bytes >= self._settings.largest_batch:
            return False
        state.max_bytes = min(state.max_bytes * 2, self._settings.largest_batch)
        return True

    async def _give_up(self, state: PartitionFetchState, part: FetchedPartition, found: Unusable) -> None:
        """Go on behind a batch that cannot be used, if the policy and its framing allow it; else the stream fails."""
        try:
            leads_on = partial(self._leads_on, state)
            until = await self._corrupt.way_over(found, part.records, state.high_watermark or 0, leads_on)
            if until is None and not self._grow(state):
                raise without_way(found)
        except (ConnectionLost, ProtocolError):
            raise  # nothing is known of the batch: it is fetched again
        except KzConsumerError as error:
            self._fail(state, error)
            return
        if until is not None:
            if state.end is not None:
                until = min(until, state.end)  # a range that is replayed is written as it was planned
            state.pass_over(found.offset, until)
            state.succeed()

    async def _leads_on(self, state: PartitionFetchState, offset: int) -> bool:
        """Whether the log ends at the offset, or the broker has something there."""
        if state.high_watermark == offset:
            return True
        control = await self._brokers.connection(self.broker, "control")
        asked = {state.topic_partition: FetchPosition(offset, self._settings.max_bytes)}
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=self._settings.response_bytes, partitions=asked)
        response = await control.call(request, timeout=self._settings.request_timeout)
        return any(part.error == NONE and part.records for part in response.partitions)

    def _fail(self, state: PartitionFetchState, error: Exception) -> None:
        state.fail(error)
        self._forget([state])

    async def _resolve_positions(self, time: float) -> None:
        due = [state for state in self._states.values() if state.reset_due and state.open and time >= state.retry_at]
        if self._reset.refuses:
            for state in due:
                self._fail(state, self._reset.refusal(state))
            return
        if not due:
            return
        for state in due:
            state.pause(time)
        # Not on the fetch connection: an answer there may be held back for as long as max_wait.
        control = await self._brokers.connection(self.broker, "control")
        self._send_back(await self._reset.resolve(control, due))
        self._forget([state for state in due if state.failed])

    def _send_back(self, states: Iterable[PartitionFetchState]) -> None:
        leaving = list(states)
        self._forget(leaving)
        for state in leaving:
            state.pause(now())
        self._find_leader(state for state in leaving if state.open)

    def _forget(self, states: Iterable[PartitionFetchState]) -> None:
        queues = set()
        for state in states:
            if state in self:
                del self._states[state.topic_partition]
            queues.add(state.queue)
        for queue in queues.difference(state.queue for state in self._states.values()):
            queue.unsubscribe(self.wake)

    async def _wait_for_work(self, time: float) -> None:
        """Until there is room, a new partition, or the end of a pause or a limit that lasted at `time`."""
        pauses = [state.retry_at for state in self._states.values() if state.retry_at > time]
        if (limited := self._limit.wait(time)) > 0:
            pauses.append(time + limited)
            self._work = anyio.Event()
        with anyio.move_on_after(max(min(pauses) - now(), 0) if pauses else None):
            await self._work.wait()


def _size(arrived: Arrived) -> int:
    return sum(len(part.records) for _, part, _ in arrived)


def _quick(arrived: Arrived) -> bool:
    """Whether reading it takes so little time that it can be done at once."""
    return _size(arrived) < FEW_BYTES or (
        compiled()
        and all(len(part.records) <= QUICK_BYTES and state.expansion < QUICK_EXPANSION for state, part, _ in arrived)
    )
