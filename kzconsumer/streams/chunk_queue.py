"""The bounded queue between the fetchers and one stream, and the byte budget that all queues of a member share.

Fetchers put chunks without waiting, and ask `has_room` before they fetch for a queue: a full one stops the fetching of
its own stream's partitions and of no others.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable

import anyio

from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.streams.chunk import Chunk


class EndOfStream(Exception):
    """The queue was closed and everything in it taken: iteration ends."""


class ByteBudget:
    """Bytes waiting in all queues of a member: about `limit` of them (see `ChunkQueue`)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._on_room: list[Callable[[], None]] = []

    @property
    def has_room(self) -> bool:
        return self.used < self._limit

    def take(self, size: int) -> None:
        self.used += size

    def give_back(self, size: int) -> None:
        was_full = not self.has_room
        self.used -= size
        if was_full and self.has_room:
            for on_room in self._on_room:
                on_room()

    def subscribe(self, on_room: Callable[[], None]) -> None:
        """Call `on_room` whenever there is room again, for as long as the budget exists."""
        self._on_room.append(on_room)


class ChunkQueue:
    """Chunks of one stream in the order they were fetched, `max_bytes` of them at a time.

    Fewer while the shared budget is used up, but an empty queue always has room: a stream that is not read delays no
    other, and the budget is exceeded by one response per stream at most. What is held for a paused partition counts in
    the shared budget only: a paused partition must not delay the others of its stream.
    """

    def __init__(self, max_bytes: int, total: ByteBudget | None = None) -> None:
        """`total`: the budget that all queues of a member share, if there is one."""
        self._max_bytes = max_bytes
        self._total = total or ByteBudget(sys.maxsize)
        self._chunks: deque[Chunk] = deque()
        self._held: dict[OffsetTracker, deque[Chunk]] = {}  # of paused partitions
        self._bytes = 0
        self._closed = False
        self._arrival = anyio.Event()
        self._on_room: dict[Callable[[], None], None] = {}
        self._total.subscribe(self._notify_room)

    @property
    def filled(self) -> tuple[int, int, int]:
        """Number of chunks, bytes with those still being decoded, and the limit of bytes."""
        return len(self._chunks), self._bytes, self._max_bytes

    @property
    def has_room(self) -> bool:
        return self._bytes == 0 or (self._bytes < self._max_bytes and self._total.has_room)

    def reserve(self, size: int) -> None:
        """Count bytes that have been fetched and are still being decoded."""
        self._bytes += size
        self._total.take(size)

    def give_back(self, size: int) -> None:
        """Free reserved bytes, or those of a chunk that has left the queue."""
        self._total.give_back(size)
        self._count(-size)

    def put(self, chunk: Chunk) -> None:
        """Queue a chunk whose bytes are reserved; one of a closed claim is dropped."""
        if self._closed or not chunk.tracker.open:
            self.give_back(chunk.size)
            return
        if chunk.tracker.paused:
            self._held.setdefault(chunk.tracker, deque()).append(chunk)
            self._count(-chunk.size)
            return
        self._chunks.append(chunk)
        self._arrival.set()

    async def get(self) -> Chunk:
        """The next chunk of an open claim. Raises EndOfStream once closed. Cancelled, it takes nothing."""
        while True:
            if (chunk := self.get_nowait()) is not None:
                return chunk
            if self._closed:
                raise EndOfStream
            if self._arrival.is_set():
                self._arrival = anyio.Event()
            await self._arrival.wait()

    def get_nowait(self) -> Chunk | None:
        while self._chunks:
            chunk = self._chunks.popleft()
            self.give_back(chunk.size)
            if chunk.tracker.open:
                return chunk
        return None

    def hold(self, tracker: OffsetTracker, rest: Chunk | None) -> None:
        """Hold what is queued for a paused claim, behind `rest`, which its stream gives back."""
        queued = self._take(tracker)
        if rest is not None:
            self._total.take(rest.size)
        self._held[tracker] = deque(queued if rest is None else (rest, *queued))
        self._count(-_bytes(queued))

    def unhold(self, tracker: OffsetTracker) -> None:
        """The claim is not paused any more: queue what was held."""
        held = self._held.pop(tracker, ())
        self._count(_bytes(held))
        self._chunks.extend(held)
        self._arrival.set()
        self._notify_room()

    def drop(self, tracker: OffsetTracker) -> None:
        """Drop what is queued or held for a claim."""
        self._total.give_back(_bytes(self._held.pop(tracker, ())))
        self.give_back(_bytes(self._take(tracker)))

    def _take(self, tracker: OffsetTracker) -> list[Chunk]:
        taken = [chunk for chunk in self._chunks if chunk.tracker is tracker]
        self._chunks = deque(chunk for chunk in self._chunks if chunk.tracker is not tracker)
        return taken

    def close(self) -> None:
        """Drop all chunks; `get` raises EndOfStream from now on."""
        self._closed = True
        queued, held = _bytes(self._chunks), sum(map(_bytes, self._held.values()))
        self._chunks.clear()
        self._held.clear()
        self._total.give_back(held)
        self.give_back(queued)
        self._arrival.set()

    def subscribe(self, on_room: Callable[[], None]) -> None:
        """Call `on_room` whenever a full queue has room again."""
        self._on_room[on_room] = None

    def unsubscribe(self, on_room: Callable[[], None]) -> None:
        self._on_room.pop(on_room, None)

    def _count(self, size: int) -> None:
        was_full = not self.has_room
        self._bytes += size
        if was_full and self.has_room:
            self._notify_room()

    def _notify_room(self) -> None:
        for on_room in tuple(self._on_room):
            on_room()


def _bytes(chunks: Iterable[Chunk]) -> int:
    return sum(chunk.size for chunk in chunks)
