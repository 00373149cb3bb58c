"""The queue between fetchers and a stream: order, room, closed claims, its end, and waiting for each of these."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from kzconsumer.offsets.progress import Chunk
from kzconsumer.streams.chunk_queue import ByteBudget, ChunkQueue, EndOfStream
from tests.support.chunks import chunk, hole, progress, put

LIMIT = 2.0


def sized(size: int, first: int = 0) -> Chunk:
    return Chunk(progress(), first, first + 1, size=size)


async def test_room_is_counted_in_fetched_bytes() -> None:
    queue = ChunkQueue(100)
    queue.reserve(99)
    assert queue.has_room
    queue.reserve(1)
    assert not queue.has_room  # while still being decoded
    queue.put(sized(100))
    assert not queue.has_room
    await queue.get()
    assert queue.has_room


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


def test_a_returned_reservation_makes_room() -> None:
    """Nothing was queued that could be taken, so a fetcher that waits for room has to be notified now."""
    queue, output = ChunkQueue(100), list[bool]()
    queue.subscribe(lambda: output.append(queue.has_room))
    queue.reserve(100)
    queue.give_back(100)
    assert queue.has_room
    assert output == [True]


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


def test_a_claim_that_is_paused_resumed_or_closed_is_reported_to_its_fetcher() -> None:
    """Which looks only at partitions that may have changed."""
    queue, output = ChunkQueue(100), list[str]()
    queue.subscribe(lambda: output.append("look"))
    claim = progress(0)
    queue.hold(claim, None)
    assert len(output) == 1
    queue.unhold(claim)
    assert len(output) == 2
    queue.drop(claim)
    assert len(output) == 3


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


async def test_closed_with_chunks_in_it() -> None:
    queue = ChunkQueue(100)
    put(queue, sized(10), sized(10))
    queue.close()
    with pytest.raises(EndOfStream):
        await queue.get()


def test_all_queues_share_a_budget() -> None:
    total = ByteBudget(100)
    here, there, idle = (ChunkQueue(80, total) for _ in range(3))
    put(here, sized(50))
    assert [here.has_room, there.has_room] == [True, True]
    put(there, sized(50))
    assert [here.has_room, there.has_room] == [False, False]
    assert idle.has_room  # its own queue is empty, so that others that are full must not starve it
    there.get_nowait()
    assert [here.has_room, there.has_room] == [True, True]


def test_room_in_the_shared_budget_wakes_every_queue() -> None:
    total, output = ByteBudget(100), list[str]()
    here, there = (ChunkQueue(80, total) for _ in range(2))
    here.subscribe(lambda: output.append("here"))
    there.subscribe(lambda: output.append("there"))
    put(here, sized(30), sized(30))
    put(there, sized(50))
    here.get_nowait()  # 80 of 100
    assert set(output) == {"here", "there"}


def test_chunks_held_back_by_a_pause_leave_room_for_other_claims() -> None:
    total, held, other = ByteBudget(1000), progress(), progress()
    queue, output = ChunkQueue(100, total), list[str]()
    queue.subscribe(lambda: output.append("room"))
    put(queue, Chunk(held, 0, 1, size=60))
    queue.reserve(60)  # of the same claim, in decoding
    assert not queue.has_room
    held.paused = True
    queue.hold(held, None)
    assert set(output) == {"room"}
    queue.put(Chunk(held, 1, 2, size=60))
    put(queue, Chunk(other, 0, 1, size=60))
    assert queue.has_room
    assert (chunk := queue.get_nowait()) is not None
    assert chunk.progress is other
    assert total.used == 120  # the shared budget still counts it
    held.paused = False
    queue.unhold(held)
    assert not queue.has_room
    assert [queue.get_nowait() is None for _ in range(3)] == [False, False, True]
    assert total.used == 0


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("end", ["close", "drop", "late put", "give back"])
def test_nothing_stays_counted_in_the_shared_budget(end: str, paused: bool) -> None:
    total, claim = ByteBudget(100), progress()
    queue = ChunkQueue(1000, total)
    put(queue, Chunk(claim, 0, 1, size=60))
    queue.reserve(70)
    if paused:
        claim.paused = True
        queue.hold(claim, None)
    if end == "drop":
        queue.drop(claim)
    else:
        queue.close()
    if end == "give back":
        queue.give_back(70)
    else:
        claim.close()
        queue.put(Chunk(claim, 1, 2, size=70))
    assert total.used == 0


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


def test_partitions_take_turns_by_bytes() -> None:
    queue, large, small, late = ChunkQueue(1000), progress(0), progress(1), progress(2)
    put(queue, *(Chunk(large, first, first + 1, size=90) for first in range(4)))
    put(queue, *(Chunk(small, first, first + 1, size=30) for first in range(9)))
    order = [queue.get_nowait() for _ in range(5)]
    assert [(one.progress, one.first) for one in order if one] == [
        (large, 0),
        (small, 0),
        (small, 1),
        (small, 2),
        (large, 1),
    ]
    put(queue, Chunk(late, 0, 1, size=1), Chunk(late, 1, 2, size=500))
    following = [one.progress for _ in range(3) if (one := queue.get_nowait())]
    assert late in following[:2]  # what was queued before it does not count


def test_a_full_queue_has_room_for_a_broker_of_which_it_has_nothing() -> None:
    """Another broker, that answers at once, would fill it again whenever there is room."""
    queue, output, claim = ChunkQueue(100, ByteBudget(100)), list[bool](), progress()
    queue.subscribe(lambda: output.append(queue.has_room_for(2)))
    queue.reserve(90, 1)
    queue.reserve(90, 1)
    assert not queue.has_room_for(1)
    assert queue.has_room_for(2)
    queue.reserve(10, 2)
    assert not queue.has_room_for(2)
    queue.put(Chunk(claim, 0, 1, size=10, broker=2))
    assert output == []
    queue.get_nowait()
    assert output == [True]  # still full, and yet there is room for that broker
