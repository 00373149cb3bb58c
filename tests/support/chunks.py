"""Chunks as a fetcher makes them, from real record batches, and a lease that a test controls."""

from __future__ import annotations

from collections.abc import Sequence

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Chunk, Message, Progress, load
from kzconsumer.records._native import Lot
from kzconsumer.records.decode import decode
from kzconsumer.records.forms import Records
from kzconsumer.streams.chunk_queue import ChunkQueue
from kzconsumer.zookeeper.session import Lease
from tests.support.record_sets import Record, record_batch

TOPIC = "orders"


def progress(partition: int = 0, start: int = 0) -> Progress:
    return Progress(TopicPartition(TOPIC, partition), start)


def chunk(progress: Progress, first: int, until: int, offsets: Sequence[int] | None = None) -> Chunk:
    """The records of `first <= offset < until`, or only those at `offsets` (a compacted log), fetched for a claim."""
    present = range(first, until) if offsets is None else offsets
    data = record_batch(
        [Record(b"k%d" % offset, b"v%d" % offset) for offset in present],
        base_offset=first,
        offset_deltas=[offset - first for offset in present],
        last_offset_delta=until - first - 1,
    )
    topic, partition = progress.topic_partition
    decoded = decode(memoryview(data), topic=topic, partition=partition, start=first)
    assert (decoded.next_offset, decoded.corrupt) == (until, None)
    return Chunk(progress, first, until, decoded.records, len(data))


def hole(progress: Progress, first: int, until: int) -> Chunk:
    """A range without records."""
    return Chunk(progress, first, until)


def failure(progress: Progress, at: int, error: Exception) -> Chunk:
    """The end of a claim's records, with its reason."""
    return Chunk(progress, at, at, error=error)


def put(queue: ChunkQueue, *chunks: Chunk) -> None:
    """As a fetcher does: the bytes are reserved when they arrive, the chunk is put when it is decoded."""
    for one in chunks:
        queue.reserve(one.size)
        queue.put(one)


class LeaseInHand(Lease):
    """Held or not, as the test sets it."""

    def __init__(self, *, held: bool = True) -> None:
        super().__init__()
        self._held = held

    @property
    def held(self) -> bool:
        return self._held

    def hold(self) -> None:
        self._held = True
        self.set(None)

    def lose(self) -> None:
        self._held = False


def messages(records: Records, claim: Progress | None = None) -> list[Message]:
    """Records as a stream hands them out."""
    lot = Lot()
    if len(records):
        load(lot, records, claim or progress(3), 0)
    lot.allow(60.0)
    return [message for _ in range(len(lot)) if (message := lot.take()) is not None]
