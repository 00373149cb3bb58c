"""Tasks that wait for a stream: cancelled, several at once, and what else runs beside them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from kzconsumer.offsets.progress import Message
from kzconsumer.streams.chunk_queue import ChunkQueue
from kzconsumer.streams.cursor import LOOK_SECONDS, StreamCursor, Unacknowledged
from tests.support.chunks import LeaseInHand, chunk, progress, put
from tests.support.streams import LIMIT, HeldStream, done, rows, stream_of, take, take_offsets


async def test_a_slow_application_that_is_cancelled_between_two_messages_has_processed_the_first() -> None:
    """It gives the event loop a turn there, in the middle of a lot."""
    claim = progress()
    stream = stream_of(chunk(claim, 0, 10))
    seen = []

    async def consume() -> None:
        async for message in stream:
            seen.append(message.offset)
            time.sleep(2 * LOOK_SECONDS)  # noqa: ASYNC251  (what is tested)
            if message.offset == 2:
                scope.cancel()

    with anyio.CancelScope() as scope:
        await consume()
    assert (seen, done(claim, stream)) == ([0, 1, 2], 3)
    assert await take_offsets(stream, 1) == [3]


async def test_an_iteration_continues_after_a_timeout() -> None:
    claim = progress()
    stream = stream_of()
    messages, batches = aiter(stream), stream.batches()
    for iterator in (messages, batches, messages):
        with anyio.move_on_after(0.01) as scope:
            await anext(iterator)
        assert scope.cancelled_caught
    put(stream.cursor.queue, chunk(claim, 0, 1), chunk(claim, 1, 3))
    assert [message.offset for message in await take(messages, 1)] == [0]
    assert [rows(batch) for batch in await take(batches, 1)] == [[1, 2]]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(messages), 0.01)
    put(stream.cursor.queue, chunk(claim, 3, 4))
    assert (await take(messages, 1))[0].offset == 3
    assert done(claim, stream) == 3


async def test_tasks_that_share_a_stream_get_every_message_once() -> None:
    """With one iterator or with several: they look for the next chunk one after the other."""
    claim = progress()
    cursor = StreamCursor(ChunkQueue(1 << 20), LeaseInHand(), Unacknowledged(20))
    stream = HeldStream(chunk(claim, 0, 200), chunk(claim, 200, 500), cursor=cursor)
    found: list[int] = []

    async def work(iterator: AsyncIterator[Message]) -> None:
        async for message in iterator:
            found.append(message.offset)
            await anyio.lowlevel.checkpoint()
            stream.ack(message)
            if claim.processed == 500:
                tasks.cancel_scope.cancel()

    async with asyncio.timeout(LIMIT), anyio.create_task_group() as tasks:
        shared = aiter(stream)
        for iterator in (shared, shared, aiter(stream), aiter(stream)):
            tasks.start_soon(work, iterator)
    assert sorted(found) == list(range(500))


async def test_messages_that_are_asked_for_at_once_are_different_ones() -> None:
    stream = stream_of(chunk(progress(), 0, 20), explicit=True)
    iterator = aiter(stream)
    assert [message.offset for message in await asyncio.gather(*(anext(iterator) for _ in range(4)))] == [0, 1, 2, 3]


async def test_two_tasks_may_not_read_a_stream_whose_next_record_acknowledges_the_last() -> None:
    """What one of them works on would be committed as soon as the other takes the next."""
    claim = progress()
    stream = stream_of()
    first = asyncio.ensure_future(anext(aiter(stream)))
    await anyio.wait_all_tasks_blocked()
    for other in (aiter(stream), stream.batches()):
        with pytest.raises(RuntimeError, match="another task waits for the next record"):
            await anext(other)
    put(stream.cursor.queue, chunk(claim, 0, 2))
    async with asyncio.timeout(LIMIT):
        assert (await first).offset == 0
    assert [message.offset for message in await take(aiter(stream), 1)] == [1]


async def test_a_cancelled_task_cancels_no_other() -> None:
    claim = progress()
    stream = stream_of(explicit=True)
    iterator = aiter(stream)
    one, other = asyncio.ensure_future(anext(iterator)), asyncio.ensure_future(anext(iterator))
    await anyio.wait_all_tasks_blocked()
    one.cancel()
    await anyio.wait_all_tasks_blocked()
    put(stream.cursor.queue, chunk(claim, 0, 1))
    async with asyncio.timeout(LIMIT):
        assert (await other).offset == 0
    assert one.cancelled()


async def test_close_ends_the_wait_of_every_task() -> None:
    lease = LeaseInHand()
    stream = stream_of(chunk(progress(), 0, 20), lease=lease, explicit=True)
    lease.lose()
    waiting = [asyncio.ensure_future(anext(aiter(stream), None)) for _ in range(3)]
    await anyio.wait_all_tasks_blocked()
    stream.cursor.close()
    async with asyncio.timeout(LIMIT):
        assert await asyncio.gather(*waiting) == [None] * 3


def abandon(iterator: AsyncIterator[Message]) -> None:
    waiting = anext(iterator).__await__()
    next(waiting)
    del waiting
    gc.collect()


def end_its_task(iterator: AsyncIterator[Message]) -> None:
    """Its coroutine is closed, as when an event loop ends."""

    async def wait() -> None:
        await anext(iterator)

    waiting = wait()
    waiting.send(None)
    waiting.close()


@pytest.mark.parametrize("give_up", [abandon, end_its_task])
async def test_a_wait_that_was_given_up_leaves_the_iterator_usable(
    give_up: Callable[[AsyncIterator[Message]], None],
) -> None:
    stream = stream_of()
    iterator = aiter(stream)
    give_up(iterator)
    put(stream.cursor.queue, chunk(progress(), 0, 1))
    assert (await take(iterator, 1))[0].offset == 0


async def test_anext_with_a_default() -> None:
    stream = stream_of(chunk(progress(), 0, 1))
    iterator = aiter(stream)
    assert (await take(iterator, 1))[0].offset == 0
    stream.cursor.close()
    assert await anext(iterator, None) is None
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)


async def test_cancelled_on_the_way_from_messages_to_batches() -> None:
    """Rows that were made into messages are not lost if the first batch is cancelled."""
    claim, lease = progress(), LeaseInHand()
    stream = stream_of(chunk(claim, 0, 6), lease=lease)
    await take_offsets(stream, 2)
    lease.lose()
    with anyio.move_on_after(0.01) as scope:
        await anext(stream.batches())
    assert scope.cancelled_caught
    lease.hold()
    assert rows((await take(stream.batches(), 1))[0]) == [2, 3, 4, 5]
    assert done(claim, stream) == 2


async def test_a_loop_that_never_awaits_does_not_starve_the_event_loop() -> None:
    """With a full queue and a body without an await, heartbeats, fetches and commits must still run."""
    claim = progress()
    stream = stream_of(*(chunk(claim, first, first + 10) for first in range(0, 100, 10)))
    turns = list[int]()

    async def run_beside() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    task = asyncio.create_task(run_beside())
    async for message in stream:
        if message.offset == 99:
            break
    task.cancel()
    assert len(turns) >= 5


async def test_a_blocking_loop_body_does_not_starve_the_event_loop() -> None:
    """With a blocking driver in the body, heartbeats must run every few messages, not after a thousand."""
    claim = progress()
    stream = stream_of(chunk(claim, 0, 600))
    turns = list[int]()
    seen = 0

    async def run_beside() -> None:
        while True:
            turns.append(seen)
            await asyncio.sleep(0)

    heart = asyncio.ensure_future(run_beside())
    async for _ in stream:
        time.sleep(0.002)  # noqa: ASYNC251  (what is tested)
        seen += 1
        if seen == 600:
            break
    heart.cancel()
    gaps = [later - earlier for earlier, later in itertools.pairwise(turns)]
    assert max(gaps) <= 1 + LOOK_SECONDS / 0.002 * 2
