"""Chunks as a fetcher makes them, from real record batches, and a lease that a test holds in its hand."""

from __future__ import annotations

from collections.abc import Sequence

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.records.decode import decode_with
from kzconsumer.records.few_records import FewRecords, read_few
from kzconsumer.records.python_kernels import PYTHON_KERNELS
from kzconsumer.streams.chunk import FetchedChunk
from kzconsumer.streams.chunk_queue import ChunkQueue
from kzconsumer.testing.record_sets import Record, record_batch
from kzconsumer.zookeeper.lease import Lease

TOPIC = "orders"
ONE_BY_ONE = False
"""Whether few records are read one by one, as those that come alone are; a test may patch it."""


def tracker(partition: int = 0, start: int = 0) -> OffsetTracker:
    return OffsetTracker(TopicPartition(TOPIC, partition), start)


def chunk(claim: OffsetTracker, first: int, until: int, offsets: Sequence[int] | None = None) -> FetchedChunk:
    """The records of `first <= offset < until`, or only those at `offsets` (a compacted log), fetched for a claim."""
    present = range(first, until) if offsets is None else offsets
    data = record_batch(
        [Record(b"k%d" % offset, b"v%d" % offset) for offset in present],
        base_offset=first,
        offset_deltas=[offset - first for offset in present],
        last_offset_delta=until - first - 1,
    )
    topic, partition = claim.topic_partition
    decoded = decode_with(
        PYTHON_KERNELS, memoryview(data), topic, partition, first
    )  # the compiled ones take seconds to load
    assert (decoded.next_offset, decoded.corrupt) == (until, None)
    if ONE_BY_ONE and (read := read_few(memoryview(data), first)) is not None:
        few = FewRecords(read[0], lambda: decoded.batch)
        return FetchedChunk(claim, first, until, None, len(data), few=few)
    return FetchedChunk(claim, first, until, decoded.batch, len(data))


def raw_chunk(claim: OffsetTracker, first: int, until: int, data: memoryview) -> FetchedChunk:
    """Bytes that stand for these offsets, as a fetcher keeps them for a sink that wants no columns."""
    return FetchedChunk(claim, first, until, None, len(data), raw=data)


def hole(claim: OffsetTracker, first: int, until: int) -> FetchedChunk:
    """A range that holds no record."""
    return FetchedChunk(claim, first, until, None, 0)


def failure(claim: OffsetTracker, at: int, error: Exception) -> FetchedChunk:
    """The end of a claim's records, with its reason."""
    return FetchedChunk(claim, at, at, None, 0, error)


def put(queue: ChunkQueue, *chunks: FetchedChunk) -> None:
    """As a fetcher does: the bytes are reserved when they arrive, the chunk is put when it is decoded."""
    for one in chunks:
        queue.reserve(one.size)
        queue.put(one)


class LeaseInHand(Lease):
    """Held, or not, as the test says."""

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
