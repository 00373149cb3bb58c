"""The queue between fetchers and a stream: compared with a model after every step, and waiting for each of these."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.records.forms import Unfetched
from kzconsumer.streams.chunk_queue import ByteBudget, ChunkQueue, EndOfStream, ManyQueues
from tests.support.chunks import chunk, hole, progress, put
from tests.support.schedules import schedules

LIMIT = 2.0


def sized(size: int, first: int = 0) -> Chunk:
    return Chunk(progress(), first, first + 1, size=size)


def test_regained_room_is_reported_once_to_every_listener() -> None:
    queue, output = ChunkQueue(100), list[str]()
    one, other = lambda: output.append("one"), lambda: output.append("other")
    queue.subscribe(one)
    queue.subscribe(other)
    put(queue, sized(60), sized(60), sized(60))
    queue.get_nowait()
    assert output == []  # 120 of 100
    queue.get_nowait()
    assert sorted(output) == ["one", "other"]
    queue.get_nowait()
    assert len(output) == 2  # there was room already
    queue.unsubscribe(one)
    put(queue, sized(100))
    queue.get_nowait()
    assert output[2:] == ["other"]


def test_chunks_of_closed_claims_are_dropped() -> None:
    queue = ChunkQueue(100)
    closed, open_claim = progress(0), progress(1)
    early, kept = Chunk(closed, 0, 1, size=100), Chunk(open_claim, 0, 1, size=10)
    put(queue, early, kept)
    closed.close()
    late = Chunk(closed, 1, 2, size=50)
    put(queue, late)
    assert queue.get_nowait() is kept
    assert queue.filled == (0, 0, 100)


async def test_get_waits_for_a_chunk() -> None:
    queue = ChunkQueue(100)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    arrived = hole(progress(), 0, 5)
    put(queue, arrived)
    async with asyncio.timeout(LIMIT):
        assert await waiting is arrived


async def test_a_wait_continues_past_chunks_of_closed_claims() -> None:
    """Woken by a chunk whose claim is closed before the waiter runs, it waits for the next one."""
    queue, closed = ChunkQueue(100), progress()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    put(queue, hole(closed, 0, 1))
    closed.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    arrived = hole(progress(), 0, 1)
    put(queue, arrived)
    async with asyncio.timeout(LIMIT):
        assert await waiting is arrived


async def test_a_cancelled_get_takes_nothing() -> None:
    queue = ChunkQueue(100)
    with anyio.move_on_after(0.01) as scope:
        await queue.get()
    assert scope.cancelled_caught
    arrived = hole(progress(), 0, 1)
    put(queue, arrived)
    async with asyncio.timeout(LIMIT):
        assert await queue.get() is arrived


async def test_a_get_cancelled_as_the_chunk_arrives_takes_nothing() -> None:
    queue = ChunkQueue(100)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    arrived = hole(progress(), 0, 1)
    put(queue, arrived)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert queue.get_nowait() is arrived


async def test_two_waiters_both_wake() -> None:
    """Two iterators of one stream share its place: neither may stay asleep beside a full queue."""
    queue = ChunkQueue(100)
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    put(queue, hole(progress(0), 0, 1), hole(progress(1), 0, 1))
    done, asleep = await asyncio.wait(waiting, timeout=0.5)
    for task in asleep:
        task.cancel()
    assert len(done) == 2


async def test_close_drops_what_is_queued_and_ends_waits() -> None:
    queue = ChunkQueue(100)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises(EndOfStream):
        async with asyncio.timeout(LIMIT):
            await waiting
    put(queue, sized(10))
    assert queue.get_nowait() is None
    with pytest.raises(EndOfStream):
        await queue.get()


def test_room_in_the_shared_budget_wakes_every_queue() -> None:
    total, output = ByteBudget(100), list[str]()
    here, there = (ChunkQueue(80, total) for _ in range(2))
    here.subscribe(lambda: output.append("here"))
    there.subscribe(lambda: output.append("there"))
    put(here, sized(30), sized(30))
    put(there, sized(50))
    here.get_nowait()  # 80 of 100
    assert set(output) == {"here", "there"}


async def test_what_was_held_wakes_a_waiting_get() -> None:
    """Nothing else may arrive that would."""
    queue, claim = ChunkQueue(1000), progress()
    claim.paused = True
    put(queue, held := chunk(claim, 0, 3))
    async with asyncio.timeout(LIMIT):
        waiting = asyncio.create_task(queue.get())
        await anyio.wait_all_tasks_blocked()
        claim.paused = False
        queue.unhold(claim)
        assert await waiting is held


def fetched(claim: Progress, first: int, weight: int) -> Chunk:
    return Chunk(claim, first, first + 1, size=weight)


def unfetched(claim: Progress, first: int, weight: int) -> Chunk:
    """A range that a sink fetches for itself."""
    return Chunk(claim, first, first + weight, Unfetched(first, first + weight))


@pytest.mark.parametrize("weighing", [fetched, unfetched])
def test_partitions_take_turns_by_bytes_or_records(weighing: Callable[[Progress, int, int], Chunk]) -> None:
    queue, large, small, late = ChunkQueue(1000), progress(0), progress(1), progress(2)
    put(queue, *(weighing(large, first, 90) for first in range(4)))
    put(queue, *(weighing(small, first, 30) for first in range(9)))
    order = [queue.get_nowait() for _ in range(5)]
    assert [(one.progress, one.first) for one in order if one] == [
        (large, 0),
        (small, 0),
        (small, 1),
        (small, 2),
        (large, 1),
    ]
    put(queue, weighing(late, 0, 1), weighing(late, 1, 500))
    following = [one.progress for _ in range(3) if (one := queue.get_nowait())]
    assert late in following[:2]  # what was queued before it does not count


@pytest.mark.parametrize("weighing", [fetched, unfetched])
async def test_queues_take_turns_by_bytes_or_records(weighing: Callable[[Progress, int, int], Chunk]) -> None:
    large, small = progress(0), progress(1)
    queues = ChunkQueue(1000), ChunkQueue(1000)
    put(queues[0], *(weighing(large, first, 90) for first in range(4)))
    put(queues[1], *(weighing(small, first, 30) for first in range(9)))
    both = ManyQueues(queues)
    assert [(await both.get()).progress for _ in range(5)] == [large, small, small, small, large]


MOST, SHARED = 100, 150
PARTITIONS = st.integers(0, 2)
SIZES = st.sampled_from((0, 1, 40, 99, 100, 160))
WHAT = ("fetch", "fetch", "fetch", "decode", "decode", "give back", "get", "pause", "resume", "close")
STEPS = schedules(st.tuples(st.sampled_from(WHAT), PARTITIONS, SIZES), 40)


class Model:
    """Lines of chunks by partition, of which nothing is counted but by going through them. Even partitions are of
    broker 1, others of broker 2."""

    def __init__(self, queues: Sequence[ChunkQueue]) -> None:
        """`queues`: that of each partition."""
        self.queues = queues
        self.claims = [progress(number) for number in range(3)]
        self.decoding: list[Chunk] = []
        self.queued: dict[Progress, list[Chunk]] = defaultdict(list)
        self.held: dict[Progress, list[Chunk]] = defaultdict(list)
        self.made = 0

    def play(self, what: str, number: int, size: int, rest: Chunk | None = None) -> bool:
        """Do to both what brings chunks or moves them. `rest` is what the stream gives back at a pause."""
        claim, queue = self.claims[number], self.queues[number]
        match what:
            case "fetch":
                self.made += 1
                chunk = Chunk(claim, self.made, self.made + 1, size=size, broker=1 + number % 2)
                queue.reserve(chunk.size, chunk.broker)
                self.decoding.append(chunk)
            case "decode" if self.decoding:
                self.decode(self.decoding.pop(0))
            case "give back" if self.decoding:
                chunk = self.decoding.pop(0)
                self.queue_of(chunk).give_back(chunk.size, chunk.broker)
            case "pause" if not claim.paused:
                claim.paused = True
                queue.hold(claim, rest)
                self.held[claim] = [*([rest] if rest is not None else []), *self.queued.pop(claim, [])]
            case "resume" if claim.paused:
                claim.paused = False
                queue.unhold(claim)
                self.queued[claim] = self.held.pop(claim, [])
            case "close":
                claim.close()
                queue.drop(claim)
                self.queued.pop(claim, None)
                self.held.pop(claim, None)
                self.claims[number] = progress(number)
            case _:
                return False
        return True

    def decode(self, chunk: Chunk) -> None:
        self.queue_of(chunk).put(chunk)
        if chunk.progress.open:
            (self.held if chunk.progress.paused else self.queued)[chunk.progress].append(chunk)

    def queue_of(self, chunk: Chunk) -> ChunkQueue:
        return self.queues[chunk.progress.topic_partition.partition]

    @property
    def waiting(self) -> list[Chunk]:
        return [chunk for line in self.queued.values() for chunk in line]

    @property
    def used(self) -> int:
        return sum(chunk.size for chunk in (*self.waiting, *self.decoding))

    @property
    def shared(self) -> int:
        return self.used + sum(chunk.size for line in self.held.values() for chunk in line)

    @property
    def has_room(self) -> bool:
        return self.used == 0 or (self.used < MOST and self.shared < SHARED)

    def room_for(self, broker: int) -> bool:
        of_it = [chunk for chunk in (*self.waiting, *self.decoding) if chunk.broker == broker]
        return self.has_room or not any(chunk.size for chunk in of_it)


@given(STEPS)
def test_what_is_queued_held_and_counted_is_that_of_the_model(steps: list[tuple[str, int, int]]) -> None:
    budget, notified = ByteBudget(SHARED), list[str]()
    queue = ChunkQueue(MOST, budget)
    queue.subscribe(lambda: notified.append("room"))
    model = Model([queue] * 3)
    taken: dict[Progress, Chunk] = {}  # what the stream has in hand, which a pause gives back

    for what, number, size in steps:
        claim = model.claims[number]
        before = {broker: model.room_for(broker) for broker in (1, 2)}
        notified.clear()
        if what == "get":
            got = queue.get_nowait()
            assert (got is None) is (not model.waiting)
            if got is not None:
                assert got is model.queued[got.progress].pop(0)
                taken[got.progress] = got
        elif not model.play(what, number, size, taken.get(claim)):
            continue
        elif what in ("pause", "resume", "close"):
            taken.pop(claim, None)
            assert notified, "its fetcher looks only at partitions that may have changed"
        assert queue.filled == (len(model.waiting), model.used, MOST)
        assert bool(queue) is bool(model.waiting)
        assert (budget.used, queue.has_room) == (model.shared, model.has_room)
        after = {broker: queue.has_room_for(broker) for broker in (1, 2)}
        assert after == {broker: model.room_for(broker) for broker in (1, 2)}
        if any(after[broker] and not before[broker] for broker in (1, 2)):
            assert notified, "its fetchers wait for room"
    queue.close()
    assert (queue.get_nowait(), budget.used) == (None, sum(chunk.size for chunk in model.decoding))
    for late in model.decoding:
        queue.put(late)
    assert budget.used == 0, "nothing stays counted"


@given(STEPS)
async def test_a_sink_takes_what_is_queued_in_any_of_its_queues_and_then_waits(
    steps: list[tuple[str, int, int]],
) -> None:
    """A queue that counts what it has not would be asked again and again."""
    queues = [ChunkQueue(MOST) for _ in range(3)]
    many = ManyQueues(queues)
    model = Model(queues)
    for what, number, size in steps:
        if what != "get":
            model.play(what, number, size)
        elif model.waiting:
            got = await many.get()
            assert got is model.queued[got.progress].pop(0)
        else:
            getting = many.get()
            assert getting.send(None) is not None  # it waits, instead of looking for ever
            getting.close()
