"""The bounded queue between the fetchers and one stream, and the byte budget that all queues of a member share.

Fetchers put chunks without waiting, and ask `has_room` before they fetch for a queue: a full one stops the fetching of
its own stream's partitions and of no others. Partitions take turns by bytes (`Turns`).
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Generic, TypeVar

from kzconsumer.offsets.progress import Chunk, Progress


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
    """Chunks of one stream, of each partition in the order they were fetched, `max_bytes` of them at a time.

    A partition waits for one chunk of each other partition, however much of those is queued.

    Fewer bytes while the shared budget is used up, but there is always room for a broker of which nothing is queued: a
    stream that is not read delays no other, a broker that answers at once none that takes its time, and the budget is
    exceeded by one response of each broker per stream at most. What is held for a paused partition counts in
    the shared budget only: a paused partition must not delay the others of its stream.
    """

    def __init__(self, max_bytes: int, total: ByteBudget | None = None) -> None:
        """`total`: the budget that all queues of a member share, if there is one."""
        self._max_bytes = max_bytes
        self.total = total or ByteBudget(sys.maxsize)
        """Shared with other queues."""
        self.queued: dict[Progress, deque[Chunk]] = {}  # none is empty
        self._turns = Turns[Progress]()
        self._chunks = 0
        self._held: dict[Progress, deque[Chunk]] = {}  # of paused partitions
        self._bytes = 0
        self._bytes_of = Counter[int]()  # by broker
        self._closed = False
        self._arrival = asyncio.Event()
        self._on_arrival: Callable[[], None] | None = None
        self._on_room: dict[Callable[[], None], None] = {}
        self.total.subscribe(self._notify_room)

    @property
    def filled(self) -> tuple[int, int, int]:
        """Number of chunks, bytes with those still being decoded, and the limit of bytes."""
        return self._chunks, self._bytes, self._max_bytes

    def __bool__(self) -> bool:
        """Whether a chunk can be taken; perhaps only of a closed claim."""
        return self._chunks > 0

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def has_room(self) -> bool:
        """Whether it is not full."""
        return self._bytes == 0 or (self._bytes < self._max_bytes and self.total.has_room)

    def has_room_for(self, broker: int) -> bool:
        """Whether more may be fetched for it from this broker."""
        return self._bytes_of[broker] == 0 or self.has_room

    def reserve(self, size: int, broker: int = 0) -> None:
        """Count bytes that have been fetched from a broker and are still being decoded."""
        self._bytes += size
        self._bytes_of[broker] += size
        self.total.take(size)

    def give_back(self, size: int, broker: int = 0) -> None:
        """Free reserved bytes, or those of a chunk that has left the queue."""
        self.total.give_back(size)
        self._count(-size, broker)

    def put(self, chunk: Chunk) -> None:
        """Queue a chunk whose bytes are reserved; one of a closed claim is dropped."""
        if self._closed or not chunk.progress.open:
            self.give_back(chunk.size, chunk.broker)
            return
        if chunk.progress.paused:
            self._held.setdefault(chunk.progress, deque()).append(chunk)
            self._count(-chunk.size, chunk.broker)
            return
        self._append(chunk.progress, (chunk,))

    def _append(self, progress: Progress, chunks: Iterable[Chunk]) -> None:
        line = self.queued.setdefault(progress, deque())
        before = len(line)
        line.extend(chunks)
        if not line:
            del self.queued[progress]
            return
        self._chunks += len(line) - before
        self._turns.come(progress)
        self._notify_arrival()

    def _notify_arrival(self) -> None:
        self._arrival.set()
        if self._on_arrival is not None:
            self._on_arrival()

    async def get(self) -> Chunk:
        """The next chunk of an open claim. Raises EndOfStream once closed. Cancelled, it takes nothing."""
        while True:
            if (chunk := self.get_nowait()) is not None:
                return chunk
            if self._closed:
                raise EndOfStream
            self._arrival.clear()
            await self._arrival.wait()

    def get_nowait(self) -> Chunk | None:
        while (progress := self._turns.next()) is not None:
            line = self.queued[progress]
            chunk = line.popleft()
            self._chunks -= 1
            if not line:
                del self.queued[progress]
            # Ranges that a sink fetches for itself have no bytes, and others no records.
            self._turns.took(progress, max(chunk.size, len(chunk.records)), more=bool(line))
            self.give_back(chunk.size, chunk.broker)
            if progress.open:
                return chunk
        return None

    def hold(self, progress: Progress, rest: Chunk | None) -> None:
        """Hold what is queued for a paused claim, behind `rest`, which its stream gives back."""
        queued = self._take(progress)
        if rest is not None:
            self.total.take(rest.size)
        self._held[progress] = deque(queued if rest is None else (rest, *queued))
        for chunk in queued:
            self._count(-chunk.size, chunk.broker)
        self._notify_room()

    def unhold(self, progress: Progress) -> None:
        """The claim is not paused any more: queue what was held."""
        held = self._held.pop(progress, ())
        for chunk in held:
            self._count(chunk.size, chunk.broker)
        self._append(progress, held)
        self._notify_room()

    def drop(self, progress: Progress) -> None:
        """Drop what is queued or held for a claim."""
        self.total.give_back(_bytes(self._held.pop(progress, ())))
        for chunk in self._take(progress):
            self.give_back(chunk.size, chunk.broker)
        self._notify_room()

    def _take(self, progress: Progress) -> Collection[Chunk]:
        taken = self.queued.pop(progress, ())
        self._turns.leave(progress)
        self._chunks -= len(taken)
        return taken

    def close(self) -> None:
        """Drop all chunks; `get` raises EndOfStream from now on."""
        self._closed = True
        for progress in {*self.queued, *self._held}:
            self.drop(progress)
        self._notify_arrival()

    def listen(self, on_arrival: Callable[[], None]) -> None:
        """Call `on_arrival` whenever a chunk was queued, and when the queue is closed."""
        self._on_arrival = on_arrival

    def subscribe(self, on_room: Callable[[], None]) -> None:
        """Call `on_room` whenever a full queue has room again, or a claim is paused, resumed or closed."""
        self._on_room[on_room] = None

    def unsubscribe(self, on_room: Callable[[], None]) -> None:
        self._on_room.pop(on_room, None)

    def _count(self, size: int, broker: int) -> None:
        was_full = not self.has_room
        self._bytes += size
        self._bytes_of[broker] += size
        if was_full and (self.has_room or self._bytes_of[broker] == 0):
            self._notify_room()

    def _notify_room(self) -> None:
        for on_room in tuple(self._on_room):
            on_room()


def _bytes(chunks: Iterable[Chunk]) -> int:
    return sum(chunk.size for chunk in chunks)


class ManyQueues:
    """The only taker of several streams' queues, which take turns by bytes: for a sink, which has the chunks of all."""

    def __init__(self, queues: Sequence[ChunkQueue]) -> None:
        self._queues = queues
        self._turns = Turns[ChunkQueue]()
        self._arrival = asyncio.Event()
        for queue in queues:
            queue.listen(partial(self._arrived, queue))
            self._arrived(queue)

    async def get(self) -> Chunk:
        """The next chunk of an open claim. Raises EndOfStream once all are closed. Cancelled, it takes nothing."""
        while True:
            while (queue := self._turns.next()) is not None:
                chunk = queue.get_nowait()
                size = max(chunk.size, len(chunk.records)) if chunk is not None else 0
                self._turns.took(queue, size, more=bool(queue))
                if chunk is not None:
                    return chunk
            if all(queue.closed for queue in self._queues):
                raise EndOfStream
            self._arrival.clear()
            await self._arrival.wait()

    def _arrived(self, queue: ChunkQueue) -> None:
        if queue:
            self._turns.come(queue)
        self._arrival.set()


# Whose turn it is among those that have something to be taken: by bytes, so that nobody waits for what others have.
#
# Start-time fair queueing (Goyal, Vin and Cheng, 1996). Each member of the line has a mark: where it stands in bytes.
# The one with the lowest mark is next, and what is taken of it is added to its mark. One that comes back after it had
# nothing stands where the line is, or at its own mark if that is higher: it has saved up nothing, and has escaped
# nothing.

K = TypeVar("K", bound=Hashable)

# Marks that are kept before those that have no effect any more are looked for.
_MOST_MARKS = 64


class Turns(Generic[K]):
    """Between two turns of one that has something, each other has at most one turn more than its bytes allow."""

    def __init__(self) -> None:
        self._line: list[tuple[int, int, K]] = []  # (mark, number), a heap; those no longer valid are dropped late
        self._number = 0
        self._valid: dict[K, int] = {}  # the number of its place in the line
        self._marks: dict[K, int] = {}  # never below `_reached` for those that have something
        self._reached = 0  # the mark of the one that was last served
        self._most_marks = _MOST_MARKS

    def come(self, one: K) -> None:
        """It has something from now on. No effect if it had."""
        if one not in self._valid:
            self._marks[one] = max(self._marks.get(one, 0), self._reached)
            self._stand(one)

    def leave(self, one: K) -> None:
        """It has nothing any more, without having had a turn."""
        self._valid.pop(one, None)

    def next(self) -> K | None:
        """Whose turn it is; None if nobody has anything."""
        while self._line:
            _, number, one = self._line[0]
            if self._valid.get(one) == number:
                return one
            heappop(self._line)
        return None

    def took(self, one: K, size: int, *, more: bool) -> None:
        """It had its turn, for so many bytes. `more`: it has something left."""
        self._reached = max(self._reached, self._marks[one])
        self._marks[one] += max(size, 1)
        if more:
            self._stand(one)
            return
        self._valid.pop(one, None)
        if not self._valid:  # nobody waits: all start from the same mark
            self._reached = max(self._marks.values())
            self._marks.clear()
        elif len(self._marks) > self._most_marks:
            ahead = {each: mark for each, mark in self._marks.items() if each in self._valid or mark > self._reached}
            self._marks, self._most_marks = ahead, 2 * len(ahead) + _MOST_MARKS

    def _stand(self, one: K) -> None:
        self._number += 1
        self._valid[one] = self._number
        heappush(self._line, (self._marks[one], self._number, one))
