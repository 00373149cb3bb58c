"""One fetcher and what it makes of responses: where they are decoded, and how much memory they keep."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, cast

import pyarrow as pa
import pytest

from kzconsumer.config import FetchSettings
from kzconsumer.fetcher import broker_fetcher, reading
from kzconsumer.fetcher.broker_fetcher import BrokerFetcher
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.fetcher.partition_fetch_state import PartitionFetchState
from kzconsumer.fetcher.rate_limit import RateLimit
from kzconsumer.model import Broker, Wants
from kzconsumer.network.brokers import Brokers
from kzconsumer.records import decode
from kzconsumer.streams.chunk_queue import ChunkQueue
from kzconsumer.streams.fetched_chunk import FetchedChunk
from kzconsumer.tallies import Tallies
from kzconsumer.testing.record_sets import Codec, Record, message_set, record_batch
from tests.support.chunks import tracker
from tests.support.log_broker import log_broker

LIMIT = 60.0
SETTINGS = FetchSettings()


def at(offset: int, batch: bytes) -> bytes:
    """The batch at another offset, which its checksum does not cover."""
    return struct.pack(">q", offset) + batch[8:]


@asynccontextmanager
async def fetching(
    broker: Broker, partitions: Iterable[tuple[int, ChunkQueue]], wants: Wants = "columns"
) -> AsyncIterator[None]:
    """A fetcher of these partitions, each into its queue, from offset 0 on."""
    async with Brokers(client_id="test", timeout=LIMIT) as brokers:
        fetcher = BrokerFetcher(
            broker, brokers, SETTINGS, cast(OffsetReset, type("Reset", (), {"refuses": False})),
            reading.reading(wants, SETTINGS.largest_body, few=True), RateLimit(None), lambda states: None, Tallies(),
        )  # fmt: skip
        fetcher.add(
            PartitionFetchState(tracker(partition), queue, 0, SETTINGS.max_bytes) for partition, queue in partitions
        )
        task = asyncio.create_task(fetcher.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def take(queue: ChunkQueue, enough: Callable[[FetchedChunk], bool]) -> None:
    """Take chunks until one is the last that is wanted."""
    async with asyncio.timeout(LIMIT):
        while not enough(await queue.get()):
            pass


PARTITIONS = 8
# What eight kilobytes of each codec expand to, more or less: four bombs and the rest are a small response.
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
async def test_what_the_event_loop_decompresses_of_a_small_response_is_bounded(
    monkeypatch: pytest.MonkeyPatch, magic: int, codec: Codec
) -> None:
    """However many partitions it is spread over; and all of it is delivered."""
    bomb = Record(None, bytes((BOMBS | OLD_CODECS)[codec]))
    small = Record(None, bytes(30_000))
    decompressed: list[int] = []  # by the event loop, of each response

    def noted(records: memoryview, **more: Any) -> decode.Decoded:
        found = decode.decode(records, **more)
        if threading.current_thread() is threading.main_thread():
            decompressed[-1] += found.size
        return found

    await asyncio.to_thread(decode.warm)
    monkeypatch.setattr(reading, "decode", noted)
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

    def enough(chunk: FetchedChunk) -> bool:
        ends[chunk.tracker.topic_partition.partition] = chunk.until
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
    """Where the queue is full those left are fetched again when it has room, and nothing is lost."""
    size = 16 << 20
    monkeypatch.setattr(broker_fetcher, "MOST_DECODED", size)
    bomb = record_batch([Record(None, bytes(size))], base_offset=0, codec="zstd")
    queue = ChunkQueue(1 << 20)
    before = pa.total_allocated_bytes()
    taken: list[int] = []

    def enough(chunk: FetchedChunk) -> bool:
        taken.append(chunk.tracker.topic_partition.partition)
        return len(taken) == PARTITIONS

    async with (
        log_broker(lambda partition, offset: bomb if offset == 0 else b"") as broker,
        fetching(broker, [(n, queue) for n in range(PARTITIONS)]),
    ):
        async with asyncio.timeout(LIMIT):
            while queue.filled[0] == 0 or queue.has_room:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert pa.total_allocated_bytes() - before < 3 * size
        await take(queue, enough)
    assert sorted(taken) == list(range(PARTITIONS))
