"""Decodes what a fetch brought and queues it for the streams; `corrupt_batches` decides about one that stays corrupt.

The fetch loop (`broker_fetcher`) calls `deliver`, and applies what it returns: which partitions it must stop fetching,
and which of them need their leader looked up. A small response is decoded at once by the event loop, a large one by a
thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import anyio
import anyio.lowlevel

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import NONE
from kzconsumer.brokers.protocol.log_reads import FetchedPartition, FetchPosition, FetchRequest
from kzconsumer.clock import now
from kzconsumer.counters import Counters
from kzconsumer.errors import ConnectionLostError, KzConsumerError, ProtocolError
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy, without_way
from kzconsumer.fetcher.fetch_rules import FetchForm, Unusable, larger, unusable_batch
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker
from kzconsumer.offsets.progress import Chunk
from kzconsumer.records.decode import Decoded, batch_times
from kzconsumer.settings.sections import FetchSettings
from kzconsumer.threads import in_thread

log = get_logger("kzconsumer.fetcher")


# A response below this many bytes is decoded and queued before the next request is made.
SMALL_RESPONSE = 64 * 1024
# What is read in a millisecond is no work for a thread: to hand it over and to take turns with it costs
# more, and the bytes go cold. Records of one partition up to this size, unless they grow as compressed ones do.
QUICK_BYTES = 2 * 1024 * 1024
QUICK_EXPANSION = 2.0
# Bytes decoded so without a turn of the event loop, which would go on with the socket and leave these go cold.
MOST_AT_ONCE = 4 * 1024 * 1024
# Bytes that the compressed batches of a small response may take for the event loop to decompress them, all together:
# a millisecond. Nothing compressed is decoded there in a larger response.
ROOM_AT_ONCE = 256 * 1024
# Bytes decoded of one response beyond which a partition whose queue is full has to be fetched again.
MOST_DECODED = 256 * 1024 * 1024
# Bytes of memory that a chunk takes beside its records': the columns of a single record take six KB.
CHUNK_BYTES = 6 * 1024
# A corrupt batch is fetched again: another replica may lead by then, and have it whole.
ATTEMPTS_AT_A_BATCH = 3


class Arrival(NamedTuple):
    """One partition's part of a response; its bytes are reserved in the queue."""

    state: FetchState
    part: FetchedPartition
    start: int
    """The offset that was asked for."""
    size: int
    """The bytes that were asked for, at most."""


class Delivered(NamedTuple):
    """What the fetch loop has to do after a delivery."""

    forget: list[FetchState]
    """Their streams have failed: nothing more is to be fetched of them."""
    send_back: list[FetchState]
    """Their batch was corrupt: it is fetched again, from whichever broker leads by then."""
    move_back: list[FetchState]
    """They had their turn while others were deferred, which come first in the next request."""


class Delivery:
    """The deliveries of one broker's fetch loop."""

    def __init__(
        self, broker: Broker, brokers: Brokers, settings: FetchSettings, read: FetchForm, counters: Counters
    ) -> None:
        self._broker = broker
        self._brokers = brokers
        self._settings = settings
        self._read = read
        self._corrupt = CorruptPolicy(settings)
        self._counters = counters
        self._decoding = counters.of_broker(broker.id).decoding

    def deliver_small(self, arrived: list[Arrival]) -> None:
        """Deliver a response below SMALL_RESPONSE in this turn of the event loop, up to what is not intact or needs a
        thread. That is left in `arrived`, for `deliver`.
        """
        room, began = ROOM_AT_ONCE, now()
        while arrived:
            arrival = arrived[0]
            decoded = self._read(arrival.part, arrival.start, room)
            if decoded.no_room or decoded.corrupt is not None or decoded.incomplete:
                break
            room -= decoded.decompressed
            del arrived[0]
            self._queue(arrival, decoded)
        self._decoding.add(now() - began)

    def _queue(self, arrival: Arrival, decoded: Decoded) -> None:
        enqueue(arrival, decoded)
        topic = arrival.state.topic_partition.topic
        self._counters.records[topic] += len(decoded.records)
        self._counters.bytes[topic] += len(arrival.part.records)

    async def deliver(self, arrived: list[Arrival]) -> Delivered:
        """Decode and queue all of `arrived`, and empty the list: what an exception leaves there was not queued.

        Batches that are not worth another attempt are skipped if the policy allows it, else their streams fail. Raises
        ConnectionLostError or ProtocolError when the broker cannot be asked where to go on.
        """
        done = Delivered([], [], [])
        unusable: list[tuple[Arrival, Unusable]] = []
        served: list[FetchState] = []
        room = ROOM_AT_ONCE if size_of(arrived) < SMALL_RESPONSE else 0
        quick = _quick(arrived)
        from_thread: Iterator[Decoded] = iter(())
        deferred = False
        began, seconds, at_once, held = now(), 0.0, 0, 0
        while arrived:
            state, part, start, size = arrival = arrived[0]
            decoded = self._read(part, start, room) if quick else next(from_thread, None)
            if decoded is None or decoded.no_room:
                quick = False
                if held >= MOST_DECODED and not state.queue.has_room_for(self._broker.id):
                    take_back([arrived.pop(0)])
                    deferred = True
                    continue
                from_thread = iter(await in_thread(self._read_some, tuple(arrived)))
                decoded = next(from_thread)
            room = 0 if decoded.corrupt else room - decoded.decompressed  # what a corrupt batch has cost is unknown
            held += decoded.size
            seconds += now() - began
            del arrived[0]  # before it is queued: what is queued must not be taken back
            served.append(state)
            self._queue(arrival, decoded)
            found = unusable_batch(state.topic_partition, start, size, decoded, self._settings)
            if found is None and decoded.incomplete:
                self._grow(arrival)
            elif found is not None:
                if found.cut_off or not state.count_attempt(ATTEMPTS_AT_A_BATCH):
                    unusable.append((arrival, found))
                    state.decoding = state.arriving = True  # nobody else meets the batch before it is decided about
                else:
                    event = "corrupt batch, fetching it again"
                    log.warning(
                        event, **state.topic_partition._asdict(), reason=str(found.error), attempt=state.failures
                    )
                    done.send_back.append(state)
            at_once += len(part.records)
            if at_once >= MOST_AT_ONCE and arrived:
                await anyio.lowlevel.checkpoint()  # everything else has its turn
                at_once = 0
            began = now()
        if deferred:
            done.move_back.extend(served)
        if seconds:
            self._decoding.add(seconds)
        for arrival, found in unusable:
            if not await self._skip(arrival, found):
                done.forget.append(arrival.state)
        return done

    def _read_some(self, arrived: Sequence[Arrival]) -> list[Decoded]:
        """Decode the first of them, at least one: what several hold together is bounded. For a thread."""
        # Which thread decodes (`_quick`): uncompressed records are decoded by the event loop, since two threads that
        # alternate on the GIL cost more. What expands, as the partition's last response shows, and everything
        # compressed in a large response goes to a thread; in a small one the loop decompresses up to ROOM_AT_ONCE, then
        # a thread starts over. A thread decodes in steps of MOST_DECODED; after a step, partitions whose queue is full
        # come first in the next request.
        decoded: list[Decoded] = []
        held = 0
        for _, part, start, _ in arrived:
            decoded.append(self._read(part, start))
            held += decoded[-1].size
            if held >= MOST_DECODED:
                break
        return decoded

    def _grow(self, arrival: Arrival) -> bool:
        """Ask for more from now on; False if that is not allowed."""
        state, size = arrival.state, larger(arrival.size, self._settings)
        if size is not None:
            state.max_bytes, state.cut_short = max(size, state.max_bytes), True
        return size is not None

    async def _skip(self, arrival: Arrival, found: Unusable) -> bool:
        """Go on behind a batch that cannot be used, if the policy and its framing allow it; else the stream fails."""
        state = arrival.state
        try:
            leads_on = partial(self._leads_on, state)
            # A range that is replayed is written as it was planned: the way ends with it.
            way = found, arrival.part.records, state.high_watermark or 0, leads_on, state.end
            until = await self._corrupt.way_over(*way)
            if until is None and not self._grow(arrival):
                raise without_way(found)
        except (ConnectionLostError, ProtocolError):
            raise  # nothing is known of the batch: it is fetched again
        except KzConsumerError as error:
            state.fail(error)
            return False
        if until is not None:
            state.pass_over(found.offset, until)
            state.succeed()
        return True

    async def _leads_on(self, state: FetchState, offset: int) -> bool:
        """Whether the log ends at the offset, or the broker has something there."""
        if state.high_watermark == offset:
            return True
        control = await self._brokers.connection(self._broker, "control")
        asked = {state.topic_partition: FetchPosition(offset, self._settings.max_bytes)}
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=self._settings.response_bytes, partitions=asked)
        response = await control.call(request, timeout=self._settings.request_timeout)
        return any(part.error == NONE and part.records for part in response.partitions)


def enqueue(arrival: Arrival, decoded: Decoded) -> None:
    """Queue what was decoded for the partition's stream, and move its position to where that ends."""
    state, part, start, _ = arrival
    size, until = len(part.records), decoded.next_offset
    state.decoding = state.arriving = False
    state.position = until  # if the framing said otherwise, the answer in flight is dropped
    # What is not fetched is of no later epoch than its leader's, with which the broker has accepted the request.
    epochs = decoded.epochs if decoded.records.fetched else ((start, state.leader_epoch),)
    state.progress.leader_epochs.extend(start, epochs, until, state.progress.processed)
    if until <= start:
        state.queue.give_back(size, state.broker)
        return
    # Compressed records may take many times the bytes that were fetched.
    held = max(size, decoded.size) + CHUNK_BYTES
    if size >= SMALL_RESPONSE:
        state.expansion = held / size
    state.queue.reserve(held - size, state.broker)
    state.times.saw(batch_times(part.records), until)
    records = decoded.records
    end = state.end
    if end is not None and until > end:
        records, until = records.below(end), max(end, start)
        state.position = until  # what was cut off is fetched again if the end moves
    at_end = end is not None and until >= end
    state.queue.put(Chunk(state.progress, start, until, records, held, at_end=at_end, broker=state.broker))
    if decoded.corrupt is None:
        state.succeed()


def take_back(arrived: Iterable[Arrival]) -> None:
    """What has arrived and was not queued has to be fetched again."""
    for state, part, start, _ in arrived:
        state.position = start
        state.decoding = state.arriving = False
        state.queue.give_back(len(part.records), state.broker)


def size_of(arrived: Iterable[Arrival]) -> int:
    return sum([len(each.part.records) for each in arrived])


def _quick(arrived: Sequence[Arrival]) -> bool:
    """Whether decoding takes so little time that the event loop can do it."""
    return size_of(arrived) < SMALL_RESPONSE or all(
        len(each.part.records) <= QUICK_BYTES and each.state.expansion < QUICK_EXPANSION for each in arrived
    )
