"""One fetcher and its handling of responses: where they are decoded, and how much memory they keep."""

from __future__ import annotations

import asyncio
import struct
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from msgspec.structs import replace

from kzconsumer import clock
from kzconsumer.brokers.leaders import LATE
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import NONE
from kzconsumer.brokers.protocol.log_reads import READ_COMMITTED, FetchedPartition, FetchPosition, FetchResponse
from kzconsumer.brokers.transport import BrokerTransport
from kzconsumer.counters import Counters
from kzconsumer.fetcher import decode_and_queue, fetch_rules
from kzconsumer.fetcher.broker_fetcher import BrokerFetcher
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy
from kzconsumer.fetcher.decode_and_queue import Arrival
from kzconsumer.fetcher.fetch_rules import LOOK_SECONDS, Looking
from kzconsumer.fetcher.fetch_state import EXPANSION, FetchState
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.fetcher.throttle import RateLimit
from kzconsumer.model import Broker, Wants
from kzconsumer.offsets.progress import Chunk
from kzconsumer.records import decode
from kzconsumer.records._native import allocated_bytes
from kzconsumer.settings.sections import FetchSettings
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.chunks import progress
from tests.support.log_broker import log_broker
from tests.support.record_sets import Codec, Record, message_set, record_batch

LIMIT = 60.0
LED = 4
"""The epoch of the leader."""
SETTINGS = FetchSettings(isolation="read_committed")


def at(offset: int, batch: bytes) -> bytes:
    """The batch at another offset, which its checksum does not cover."""
    return struct.pack(">q", offset) + batch[8:]


@asynccontextmanager
async def fetching(
    broker: Broker, partitions: Iterable[tuple[int, ChunkQueue]], wants: Wants = "columns"
) -> AsyncIterator[None]:
    """A fetcher of these partitions from offset 0, each with its queue."""
    looking = Looking(READ_COMMITTED, lambda: (1000, 1 << 30))
    async with Brokers(client_id="test", timeout=LIMIT) as brokers:
        fetcher = BrokerFetcher(
            broker, brokers, SETTINGS, cast(OffsetReset, type("Reset", (), {"refuses": False})),
            looking if wants == "ranges" else fetch_rules.decoding(SETTINGS.largest_body),
            RateLimit(None), lambda states: None, Counters(),
        )  # fmt: skip
        fetcher.add(
            FetchState(progress(partition), queue, 0, SETTINGS.max_bytes, leader_epoch=LED)
            for partition, queue in partitions
        )
        task = asyncio.create_task(fetcher.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def take(queue: ChunkQueue, enough: Callable[[Chunk], bool]) -> None:
    """Take chunks until the last one that is wanted."""
    async with asyncio.timeout(LIMIT):
        while not enough(await queue.get()):
            pass


PARTITIONS = 8
# Eight kilobytes of each codec expand to about this: four bombs and the rest are a small response.
BOMBS: dict[Codec, int] = {
    "gzip": 8 << 20,
    "snappy": 160 << 10,
    "snappy-raw": 160 << 10,
    "lz4": 2 << 20,
    "zstd": 16 << 20,
}
OLD_CODECS: dict[Codec, int] = {"gzip": 8 << 20, "snappy": 160 << 10, "lz4-KAFKA-3160": 2 << 20}


@pytest.mark.parametrize(
    ("magic", "codec"),
    [*((2, codec) for codec in BOMBS), *((magic, codec) for magic in (0, 1) for codec in OLD_CODECS)],
)
async def test_the_event_loop_decompresses_a_bounded_part_of_a_small_response(
    monkeypatch: pytest.MonkeyPatch, magic: int, codec: Codec
) -> None:
    """However many partitions it is spread over; all of it is delivered."""
    bomb = Record(None, bytes((BOMBS | OLD_CODECS)[codec]))
    small = Record(None, bytes(30_000))
    decompressed: list[int] = []  # by the event loop, of each response

    def noted(records: memoryview, **more: Any) -> decode.Decoded:
        found = decode.decode(records, **more)
        if threading.current_thread() is threading.main_thread():
            decompressed[-1] += found.size
        return found

    monkeypatch.setattr(fetch_rules, "decode", noted)
    queue = ChunkQueue(1 << 40)

    def log(partition: int, offset: int) -> bytes:
        if offset == 2:
            return b""
        record = bomb if partition % 2 == 0 and offset == 0 else small
        return batch_of(magic, codec, record, offset)

    @cache
    def batch_of(magic: int, codec: Codec, record: Record, offset: int) -> bytes:
        if magic == 2:
            return record_batch([record], base_offset=offset, codec=codec)
        return message_set([record], magic=magic, base_offset=offset, codec=codec)

    ends = dict.fromkeys(range(PARTITIONS), 0)

    def enough(chunk: Chunk) -> bool:
        ends[chunk.progress.topic_partition.partition] = chunk.until
        return set(ends.values()) == {2}

    async with (
        log_broker(log, lambda size: decompressed.append(0)) as broker,
        fetching(broker, [(n, queue) for n in ends]),
    ):
        await take(queue, enough)
    assert max(decompressed) < 1 << 19
    assert max(decompressed) > 1 << 16, "some is decompressed at once"


async def test_a_response_that_expands_does_not_take_memory_for_all_its_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Partitions whose queue is full are fetched again when it has room, and nothing is lost."""
    size = 16 << 20
    monkeypatch.setattr(decode_and_queue, "MOST_DECODED", size)
    bomb = record_batch([Record(None, bytes(size))], base_offset=0, codec="zstd")
    queue = ChunkQueue(1 << 20)
    before = allocated_bytes()
    taken: list[int] = []

    def enough(chunk: Chunk) -> bool:
        taken.append(chunk.progress.topic_partition.partition)
        return len(taken) == PARTITIONS

    async with (
        log_broker(lambda partition, offset: bomb if offset == 0 else b"") as broker,
        fetching(broker, [(n, queue) for n in range(PARTITIONS)]),
    ):
        async with asyncio.timeout(LIMIT):
            while queue.filled[0] == 0 or queue.has_room:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert allocated_bytes() - before < 3 * size
        await take(queue, enough)
    assert sorted(taken) == list(range(PARTITIONS))


@pytest.mark.parametrize("codec", ["none", "gzip"])
async def test_a_record_that_comes_alone_is_handed_out_one_turn_after_its_bytes(
    monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    """The event loop does nothing between the callback that reads the socket and the task that waits for the record."""
    turn, read_in, waited = 0, 0, list[int]()
    loop = asyncio.get_running_loop()

    def count() -> None:
        nonlocal turn
        turn += 1
        ticking[0] = loop.call_soon(count)

    def noted(transport: BrokerTransport, nbytes: int) -> None:
        nonlocal read_in
        read_in = turn
        buffer_updated(transport, nbytes)

    buffer_updated = BrokerTransport.buffer_updated
    monkeypatch.setattr(BrokerTransport, "buffer_updated", noted)
    alone = record_batch([Record(None, b"alone")], base_offset=0, codec=codec)
    queue = ChunkQueue(1 << 20)
    async with log_broker(lambda _, offset: at(offset, alone)) as broker, fetching(broker, [(0, queue)]):
        ticking = [loop.call_soon(count)]
        async with asyncio.timeout(LIMIT):
            for _ in range(20):
                await queue.get()
                waited.append(turn - read_in)
        ticking[0].cancel()
    assert set(waited[1:]) == {1}


def unconnected() -> tuple[BrokerFetcher, FetchState]:
    """A fetcher of one partition whose log has been compared."""
    fetcher = BrokerFetcher(
        Broker(1, "broker", 9092), cast(Brokers, None), SETTINGS, cast(OffsetReset, None),
        fetch_rules.decoding(SETTINGS.largest_body), RateLimit(None), lambda states: None, Counters(),
    )  # fmt: skip
    state = FetchState(progress(0), ChunkQueue(1 << 20), 0, SETTINGS.max_bytes)
    fetcher.add([state])
    fetcher._unchecked.clear()
    return fetcher, state


def answer(state: FetchState, end: int = 0, records: bytes = b"") -> FetchedPartition:
    """The log ends at `end`."""
    return FetchedPartition(state.topic_partition, NONE, end, end, 0, (), memoryview(records))


def test_a_long_wait_is_only_asked_for_where_nothing_waits_for_the_answer() -> None:
    fetcher, state = unconnected()
    usual, longest = 100, 3000

    def wait(*parts: FetchedPartition, arrived: Sequence[Arrival] = (), seconds: float = 60.0) -> int:
        """Of the request of so many seconds after the first one, behind an answer of these parts, in ms."""
        time = began + seconds
        fetcher._receive([], time, FetchResponse(NONE, 0, list(parts), session_id=7), muted=True)
        assert fetcher._look(time)
        return fetcher._next_request(time, arrived, opens=True).max_wait_ms

    began = clock.now()
    assert fetcher._look(began)
    assert fetcher._next_request(began, [], opens=True).max_wait_ms == usual
    assert wait(answer(state), seconds=0.5) == usual
    assert wait(seconds=10.0) == 1000
    assert wait() == longest
    assert wait(arrived=[Arrival(state, answer(state), 0, 1)]) == usual, "it is decoded while the broker answers"
    assert wait() == longest
    first = record_batch([Record(None, b"of two")], base_offset=0)
    assert wait(answer(state, 2, first)) == usual, "an answer without the other one would say something"


async def test_a_partition_stays_until_a_corrupt_batch_is_decided_about() -> None:
    """Another fetcher would meet the batch, too, and the gap be passed twice."""
    fetcher, state = unconnected()
    handler, decided = fetcher._handler, asyncio.Event()

    async def way_over(*_: object) -> int:
        await decided.wait()
        return 2

    handler._delivery._corrupt = cast(CorruptPolicy, SimpleNamespace(way_over=way_over))
    state.failures = decode_and_queue.ATTEMPTS_AT_A_BATCH
    intact, damaged = (record_batch([Record(None, b"v")], base_offset=offset) for offset in (0, 1))
    part = answer(state, 2, intact + damaged[:-1] + b"x")
    asked = {state.topic_partition: FetchPosition(0, 1 << 20)}
    arrived = handler.take(asked, [part], False, clock.now(), small=False)
    delivery = asyncio.create_task(handler.deliver(arrived))
    await asyncio.sleep(0)
    fetcher._look_up_due = clock.now() - 2 * LATE
    assert (state.position, fetcher.late(clock.now()), state.fetchable(clock.now())) == (1, [], False)
    decided.set()
    await delivery
    assert (state.position, fetcher.late(clock.now()), state.fetchable(clock.now())) == (2, [state], True)


async def test_partitions_that_expand_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not decoded for lack of room come first in the next request."""
    size = 4 << 20
    monkeypatch.setattr(decode_and_queue, "MOST_DECODED", size)
    bomb = record_batch([Record(None, bytes(size))], base_offset=0, codec="zstd")
    queue = ChunkQueue(1 << 20)
    taken: list[int] = []

    def enough(chunk: Chunk) -> bool:
        taken.append(chunk.progress.topic_partition.partition)
        return len(taken) == 4 * PARTITIONS

    async with (
        log_broker(lambda partition, offset: at(offset, bomb)) as broker,
        fetching(broker, [(n, queue) for n in range(PARTITIONS)]),
    ):
        await take(queue, enough)
    assert set(taken) == set(range(PARTITIONS))


MIB = 1 << 20
# A quiet partition next to a busy one: one small record arrives with each MiB.
QUIET = record_batch([Record(None, b"quiet")], base_offset=0)
BUSY = record_batch([Record(None, bytes(MIB // 8))] * 8, base_offset=0)


async def test_a_small_chunk_does_not_keep_its_response_in_memory() -> None:
    stalled, consumed = ChunkQueue(8 * MIB), ChunkQueue(8 * MIB)
    before = allocated_bytes()

    def log(partition: int, offset: int) -> bytes:
        return at(offset, BUSY if partition else QUIET)

    async with log_broker(log) as broker, fetching(broker, [(0, stalled), (1, consumed)]):
        await take(consumed, lambda chunk: chunk.first >= 8 * 100)
        chunks, counted, _ = stalled.filled
        held = allocated_bytes() - before
    assert chunks > 90
    assert held < 2 * counted + 10 * MIB, "and the chunk in flight to the other stream"


async def test_a_fetcher_with_a_full_queue_does_not_keep_the_last_response() -> None:
    queue = ChunkQueue(MIB)
    before = allocated_bytes()
    log = {0: b"".join(at(8 * n, BUSY) for n in range(8))}
    async with log_broker(lambda partition, offset: log.get(offset, b"")) as broker, fetching(broker, [(1, queue)]):
        async with asyncio.timeout(LIMIT):
            while queue.filled[0] == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert allocated_bytes() - before < 1.5 * queue.filled[1]


_HELD = """
from pathlib import Path

from kzconsumer.fetcher.decode_and_queue import Arrival, enqueue
from kzconsumer.fetcher.fetch_state import EXPANSION, FetchState
from kzconsumer.fetcher.fetch_rules import decoding
from kzconsumer.model import TopicPartition
from kzconsumer.brokers.protocol.log_reads import FetchedPartition
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.record_sets import Record, record_batch
from tests.support.chunks import progress

queue = ChunkQueue(16 << 20)
state = FetchState(progress(), queue, 0, 1 << 20)
read = decoding(1 << 28)
data = record_batch([Record(b"key", b"value")], base_offset=0)

def fetch():
    size = len(data)
    queue.reserve(size)
    part = FetchedPartition(state.topic_partition, 0, 1, -1, -1, (), memoryview(bytes(data)))
    enqueue(Arrival(state, part, 0, len(part.records)), read(part, 0))

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

for _ in range(100):
    fetch()
before, counted = resident(), queue.filled[1]
for _ in range(20_000):
    if queue.has_room:
        fetch()
print(resident() - before, queue.filled[1] - counted)
"""


async def test_small_chunks_are_counted_with_their_overhead() -> None:
    """A chunk of one record of ten bytes takes kilobytes: a queue of those must not hold many times its limit."""
    done = await anyio.run_process([sys.executable, "-c", _HELD], stderr=None)
    held, counted = map(int, done.stdout.split())
    assert held < 2 * counted + MIB


async def test_a_consumer_that_fetches_for_itself_gets_ranges_and_each_answer_is_one_batch_at_most() -> None:
    """Up to the last stable offset, a tenth of a batch at a time; what comes with an answer is dropped."""
    queue, answers, stable = ChunkQueue(1 << 30), list[int](), 250
    batch = record_batch([Record(None, bytes(100_000))], base_offset=0)
    found: dict[int, list[tuple[int, int, int, bool]]] = {0: [], 1: []}

    def log(partition: int, offset: int) -> bytes:
        return at(offset, batch) if partition == 0 and offset < stable else b""

    def enough(chunk: Chunk) -> bool:
        one = (chunk.first, chunk.until, len(chunk.records), chunk.records.fetched)
        found[chunk.progress.topic_partition.partition].append(one)
        assert chunk.progress.leader_epochs.before(chunk.until) == LED
        return all(ranges and ranges[-1][1] == stable for ranges in found.values())

    async with (
        log_broker(log, answers.append, end=lambda partition: stable) as broker,
        fetching(broker, [(0, queue), (1, queue)], "ranges"),
    ):
        await take(queue, enough)
    assert found == {key: [(0, 100, 100, False), (100, 200, 100, False), (200, 250, 50, False)] for key in found}
    assert len(answers) <= 4


async def test_each_partition_has_its_turn_to_show_how_large_its_records_are() -> None:
    """Brokers since 0.10.1 send a batch of the first partition of a request that has records, and of no other."""
    queue, found, sent = ChunkQueue(1 << 40), list[tuple[int, int]](), list[int]()
    sizes = {0: 100, 1: 2 << 20, 2: 1000}
    batches = {each: record_batch([Record(None, bytes(size))], base_offset=0) for each, size in sizes.items()}

    def log(partition: int, offset: int) -> bytes:
        if sent:
            return b""
        sent.append(partition)
        return at(offset, batches[partition])

    def enough(chunk: Chunk) -> bool:
        found.append((chunk.progress.topic_partition.partition, len(chunk.records)))
        return len(found) == 12

    async with (
        log_broker(log, lambda size: sent.clear()) as broker,
        fetching(broker, [(each, queue) for each in sizes], "ranges"),
    ):
        await take(queue, enough)
    known = dict(found[-3:])
    assert [known[each] for each in sizes] == [100, (1 << 30) // 10 // len(batches[1]), 100]


async def test_looks_at_a_busy_log_do_not_wait_for_an_idle_one() -> None:
    """The next request has both, so that the broker answers it at once."""
    queue, answers, stable, looks = ChunkQueue(1 << 40), list[int](), 20_000, 200
    batch = record_batch([Record(None, b"v")], base_offset=0)

    def log(partition: int, offset: int) -> bytes:
        return at(offset, batch) if partition == 0 and offset < stable else b""

    async with (
        log_broker(log, answers.append, end=lambda partition: 0 if partition else stable) as broker,
        fetching(broker, [(0, queue), (1, queue)], "ranges"),
    ):
        await take(queue, lambda chunk: chunk.until == stable)
    assert looks <= len(answers) <= looks * 1.5


async def test_logs_without_news_are_looked_at_together_and_not_again_at_once() -> None:
    asked: dict[int, list[float]] = {0: [], 1: [], 2: []}
    enough = asyncio.Event()

    def log(partition: int, offset: int) -> bytes:
        asked[partition].append(clock.now() // LOOK_SECONDS)
        if len(asked[2]) == 8:
            enough.set()
        return b""

    parts = [(partition, ChunkQueue(1 << 30)) for partition in asked]
    async with log_broker(log, end=lambda partition: 0) as broker, fetching(broker, parts, "ranges"):
        await asyncio.wait_for(enough.wait(), LIMIT)
    for looks in asked.values():
        assert len(set(looks)) == len(looks)


async def test_a_replica_is_given_up_after_what_it_has_sent_was_queued() -> None:
    """Else the leader's records, which follow, might be queued before them, and be fetched once more after them."""
    queue, queued = ChunkQueue(1 << 30), list[int]()
    given_up = asyncio.Event()
    batch = record_batch([Record(b"k", bytes(100_000))], base_offset=0)
    state = FetchState(progress(0), queue, 0, SETTINGS.max_bytes, leader_epoch=LED)

    def find_leader(states: Iterable[FetchState]) -> None:
        if state in list(states):
            queued.append(queue.filled[0])
            given_up.set()

    def answering(size: int) -> None:
        if size > decode_and_queue.SMALL_RESPONSE:
            state.preferred_until = 0.0

    async with (
        log_broker(lambda partition, offset: at(offset, batch) if offset == 0 else b"", answering) as broker,
        Brokers(client_id="test", timeout=LIMIT) as brokers,
    ):
        state.prefer(broker.id, clock.now() + LIMIT)
        fetcher = BrokerFetcher(
            broker, brokers, SETTINGS, cast(OffsetReset, type("Reset", (), {"refuses": False})),
            fetch_rules.decoding(SETTINGS.largest_body), RateLimit(None), find_leader, Counters(),
        )  # fmt: skip
        fetcher.add([state])
        task = asyncio.create_task(fetcher.run())
        try:
            async with asyncio.timeout(LIMIT):
                await given_up.wait()
        finally:
            task.cancel()
            await asyncio.wait([task])
    assert (queued, state.position) == ([1], 1)


@pytest.mark.parametrize("size", [1000, 10_000, 200_000, 1_000_000])
def test_how_much_records_grow_is_measured_by_responses_that_are_not_small(size: int) -> None:
    """What a chunk takes beside its records is most of a small one."""
    data = record_batch([Record(None, bytes(size))], base_offset=0)
    state = FetchState(progress(0), ChunkQueue(1 << 40), 0, SETTINGS.max_bytes)
    part = FetchedPartition(state.topic_partition, NONE, 1, 1, 0, (), memoryview(data))
    decoded = replace(fetch_rules.decoding(SETTINGS.largest_body)(part, 0), size=10 * len(data))
    state.queue.reserve(len(data))
    decode_and_queue.enqueue(decode_and_queue.Arrival(state, part, 0, len(part.records)), decoded)
    held = state.queue.filled[1]
    assert held == 10 * len(data) + decode_and_queue.CHUNK_BYTES
    measured = len(data) >= decode_and_queue.SMALL_RESPONSE
    assert state.expansion == (held / len(data) if measured else EXPANSION)
