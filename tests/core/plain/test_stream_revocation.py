"""What a stream hands out of a partition that is dropped or paused, without the lease, and when it is closed."""

from __future__ import annotations

import asyncio
import gc
import time

import anyio
import pytest

from kzconsumer.records._native import allocated_bytes
from kzconsumer.streams.chunk_queue import ByteBudget, ChunkQueue
from kzconsumer.streams.cursor import LOOK_SECONDS, LOT_ROWS, StreamCursor
from kzconsumer.zookeeper.session import Lease
from tests.support.chunks import LeaseInHand, chunk, progress
from tests.support.streams import LIMIT, HeldStream, assert_close_ends_a_wait, done, rows, stream_of, take, take_offsets


async def test_drop_while_a_batch_is_in_hand() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 5), chunk(claim, 5, 9))
    iterator = stream.batches()
    await take(iterator, 1)
    settled = list[int]()
    stream.cursor.drop(claim)
    claim.close(lambda: settled.append(claim.processed))
    assert (claim.consumed, settled) == (5, [])
    stream.ack()
    assert settled == [5]
    with anyio.move_on_after(0.01) as scope:
        await anext(iterator)
    assert scope.cancelled_caught


async def test_a_release_in_mid_lot_keeps_processed_messages_and_waits_for_one() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 10))
    claim.when_closed(stream.cursor.drop)
    settled: list[int] = []
    iterator = aiter(stream)
    await take(iterator, 4)
    claim.close(lambda: settled.append(claim.processed))
    assert (claim.processed, claim.consumed, claim.lost, settled) == (3, 4, False, [])
    with anyio.move_on_after(0.01):  # the body of the fourth has ended
        await anext(iterator)
    assert settled == [4]


async def test_close_ends_every_iteration() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 5), chunk(claim, 5, 9))
    messages, batches = aiter(stream), stream.batches()
    await take(messages, 2)
    stream.cursor.close()
    async with asyncio.timeout(LIMIT):
        assert [message.offset async for message in messages] == []
        assert [batch async for batch in batches] == []
        assert [message.offset async for message in stream] == []


async def test_close_ends_a_wait() -> None:
    await assert_close_ends_a_wait(stream_of())


async def test_close_keeps_processed_positions() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 5))
    await take_offsets(stream, 3)
    stream.cursor.close()
    assert done(claim, stream) == 2
    stream.ack()
    assert done(claim, stream) == 3


async def test_close_does_not_mark_dropped_messages_as_processed() -> None:
    """The application reaches the end of its loop and commits: records it never received must not count."""
    claim = progress()
    stream = stream_of(chunk(claim, 0, 5))
    iterator = aiter(stream)
    await take(iterator, 2)
    stream.cursor.close()
    async with asyncio.timeout(LIMIT):
        assert [message.offset async for message in iterator] == []
    assert done(claim, stream) == 2


async def test_close_ends_a_wait_for_the_lease() -> None:
    """ZooKeeper is away and the application leaves: its loop must still end."""
    claim, lease = progress(), Lease()
    stream = stream_of(chunk(claim, 0, 5), lease=lease)
    waiting = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    stream.cursor.close()
    with pytest.raises(StopAsyncIteration):
        async with asyncio.timeout(LIMIT):
            await waiting
    assert done(claim, stream) == 0


async def test_nothing_is_handed_out_without_the_lease() -> None:
    claim, lease = progress(), LeaseInHand()
    stream = stream_of(chunk(claim, 0, 2), chunk(claim, 2, 4), lease=lease)
    iterator = stream.batches()
    await take(iterator, 1)
    lease.lose()
    waiting = asyncio.ensure_future(anext(iterator))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    lease.hold()
    async with asyncio.timeout(LIMIT):
        assert rows(await waiting) == [2, 3]


async def test_an_application_that_was_suspended_gets_no_message_without_the_lease() -> None:
    """However quickly it took messages before: the lease is looked at in the middle of a lot, too."""
    lease, claim = LeaseInHand(), progress()
    stream = stream_of(chunk(claim, 0, 10_000), lease=lease)
    messages = aiter(stream)
    await take(messages, LOT_ROWS * 5 // 2)
    lease.lose()
    time.sleep(2 * LOOK_SECONDS)  # noqa: ASYNC251  (as after SIGSTOP: no task has run since)
    waiting = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert claim.processed == LOT_ROWS * 5 // 2, "the application has taken the next, so it is done with this one"
    lease.hold()
    async with asyncio.timeout(LIMIT):
        assert (await waiting).offset == LOT_ROWS * 5 // 2


async def test_a_claim_closed_while_the_lease_is_in_doubt() -> None:
    going, staying, lease = progress(0), progress(1), LeaseInHand(held=False)
    stream = stream_of(chunk(going, 0, 2), chunk(staying, 0, 2), lease=lease)
    waiting = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0.01)
    stream.cursor.drop(going)
    going.close()
    lease.hold()
    async with asyncio.timeout(LIMIT):
        assert (await waiting).partition == 1
    assert (going.consumed, going.processed) == (0, 0)


async def test_streams_that_are_dropped_leave_nothing_behind() -> None:
    """A claim refers to its stream's cursor, which has messages that refer to the claim."""
    gc.collect()
    before = allocated_bytes()
    claim = progress()
    stream = stream_of(chunk(claim, 0, 1000))
    claim.when_closed(stream.cursor.drop)
    await take(aiter(stream), 5)
    assert allocated_bytes() > before
    stream.cursor.pause(claim)
    del claim, stream
    gc.collect()
    assert allocated_bytes() == before


async def test_the_rest_of_a_chunk_held_back_by_a_pause_is_counted() -> None:
    """All its columns stay in memory, and another chunk is in hand meanwhile."""
    claim, other = progress(0), progress(1)
    first = chunk(claim, 0, 6)
    total = ByteBudget(first.size)
    stream = HeldStream(first, chunk(other, 0, 1), cursor=StreamCursor(ChunkQueue(1 << 20, total), LeaseInHand()))
    iterator = aiter(stream)
    await take(iterator, 2)
    claim.paused = True
    stream.cursor.pause(claim)
    assert [(m.partition, m.offset) for m in await take(iterator, 1)] == [(1, 0)]
    assert not total.has_room
    claim.paused = False
    stream.cursor.resume(claim)
    assert [m.offset for m in await take(iterator, 4)] == [2, 3, 4, 5]
    assert total.has_room
    assert stream.cursor.queue.filled[:2] == (0, 0)
