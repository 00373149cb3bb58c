"""What holds of the queues of a world's members, whatever happens. Checked when something is queued or counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock
from weakref import WeakKeyDictionary

from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.streams.chunk_queue import ChunkQueue


@contextmanager
def queues_checked(violated: Callable[[str], None]) -> Iterator[None]:
    """Chunks of a claim follow each other, and no broker has fewer than no bytes in a queue."""
    put, count = ChunkQueue.put, ChunkQueue._count
    ends = WeakKeyDictionary[Progress, int]()

    def checked_put(self: ChunkQueue, chunk: Chunk) -> None:
        progress = chunk.progress
        if progress.open and not self.closed:
            line = self._held.get(progress) or self.queued.get(progress)
            # With nothing queued, the claim may have gone to another position.
            follows = {line[-1].until} if line else {ends.get(progress, progress.consumed), progress.consumed}
            if chunk.first not in follows:
                where = f"{progress.topic_partition}[{chunk.first} to {chunk.until}]"
                violated(f"{where} is queued, and what precedes it ends at {sorted(follows)}")
            ends[progress] = chunk.until
        put(self, chunk)

    def checked_count(self: ChunkQueue, size: int, broker: int) -> None:
        count(self, size, broker)
        if self._bytes_of[broker] < 0 <= self._bytes_of[broker] - size:
            violated(f"{self._bytes_of[broker]} bytes of broker {broker} are queued")

    with mock.patch.object(ChunkQueue, "put", checked_put), mock.patch.object(ChunkQueue, "_count", checked_count):
        yield
