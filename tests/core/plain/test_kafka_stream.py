"""What a stream delivers, what it counts as processed, and how it ends."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TypeVar

import anyio
import pyarrow as pa
import pytest

from kzconsumer.consumer import KafkaStream
from kzconsumer.errors import OffsetLostError
from kzconsumer.offsets.progress import Chunk, Message, Progress
from kzconsumer.records._native import allocated_bytes
from kzconsumer.streams.chunk_queue import ByteBudget, ChunkQueue
from kzconsumer.streams.cursor import LOOK_SECONDS, LOT_ROWS, StreamCursor, Unacknowledged
from kzconsumer.zookeeper.session import Lease
from tests.support.chunks import TOPIC, LeaseInHand, chunk, failure, hole, progress, put

LIMIT = 2.0
T = TypeVar("T")


class HeldStream(KafkaStream):
    """A stream with its cursor, as the member holds it."""

    def __init__(self, *chunks: Chunk, cursor: StreamCursor) -> None:
        super().__init__(TOPIC, 0, cursor)
        self.cursor = cursor
        put(cursor.queue, *chunks)


def stream_of(*chunks: Chunk, lease: Lease | None = None, explicit: bool = False) -> HeldStream:
    counted = Unacknowledged(1000) if explicit else None
    return HeldStream(*chunks, cursor=StreamCursor(ChunkQueue(1 << 20), lease or LeaseInHand(), counted))


async def take(iterator: AsyncIterator[T], number: int) -> list[T]:
    async with asyncio.timeout(LIMIT):
        return [await anext(iterator) for _ in range(number)]


async def take_offsets(stream: HeldStream, number: int) -> list[int]:
    """The offsets of the next messages; the last one stays in hand."""
    return [message.offset for message in await take(aiter(stream), number)]


def rows(batch: pa.RecordBatch) -> list[int]:
    return [offset for offset in batch.column("offset").to_pylist() if offset is not None]


def done(progress: Progress, stream: HeldStream) -> int:
    """What a commit would store now."""
    stream.cursor.checkpoint()
    assert progress.processed <= progress.consumed
    return progress.processed


async def test_messages_of_one_chunk() -> None:
    claim = progress(start=5)
    first, second = await take(aiter(stream_of(chunk(claim, 5, 8))), 2)
    assert (first.topic, first.partition, first.offset, first.key, first.value) == (TOPIC, 0, 5, b"k5", b"v5")
    assert second.offset == 6


async def test_a_message_is_processed_when_the_next_is_taken() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 3))
    iterator = aiter(stream)
    assert done(claim, stream) == 0
    for offset in range(3):
        assert (await take(iterator, 1))[0].offset == offset
        assert done(claim, stream) == offset
        assert claim.consumed == offset + 1
    with anyio.move_on_after(0.01):  # requesting the next one marks the last as processed
        await anext(iterator)
    assert done(claim, stream) == 3
    assert claim.settled


async def test_ack_marks_at_once() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 3))
    iterator = aiter(stream)
    await take(iterator, 2)
    stream.ack()
    assert done(claim, stream) == 2
    stream.ack()
    assert done(claim, stream) == 2
    assert [message.offset for message in await take(iterator, 1)] == [2]
    assert done(claim, stream) == 2


async def test_a_part_of_a_batch_is_processed() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 6))
    assert rows((await take(stream.batches(), 1))[0]) == list(range(6))
    for offset, processed in ((0, 0), (4, 4), (2, 4), (99, 6)):
        stream.ack_below(offset)
        assert done(claim, stream) == processed


async def test_ack_without_anything_in_hand() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 3))
    stream.ack()
    stream.cursor.checkpoint()
    assert claim.processed == 0


async def test_ack_of_none_is_not_an_ack_of_the_last_one() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 3), explicit=True)
    await take(aiter(stream), 1)
    with pytest.raises(TypeError, match=r"ack\(None\): give a message or a batch"):
        stream.ack(None)  # type: ignore[arg-type]
    assert done(claim, stream) == 0
    assert stream.ack()
    assert done(claim, stream) == 1


async def test_gaps_in_the_log_count_as_processed() -> None:
    claim = progress(start=10)
    stream = stream_of(chunk(claim, 10, 20, offsets=[12, 15]), hole(claim, 20, 23), chunk(claim, 23, 25))
    iterator = aiter(stream)
    await take(iterator, 1)
    assert done(claim, stream) == 12
    await take(iterator, 1)
    assert done(claim, stream) == 15
    assert (await take(iterator, 1))[0].offset == 23
    assert done(claim, stream) == 23


async def test_partitions_interleave_and_each_keeps_its_place() -> None:
    one, two = progress(0), progress(1, start=100)
    stream = stream_of(chunk(one, 0, 2), chunk(two, 100, 102), chunk(one, 2, 4))
    found = [(message.partition, message.offset) for message in await take(aiter(stream), 5)]
    assert found == [(0, 0), (0, 1), (1, 100), (1, 101), (0, 2)]
    assert (done(one, stream), done(two, stream)) == (2, 102)


async def test_more_rows_than_fit_into_one_lot_of_messages() -> None:
    number = LOT_ROWS * 2 + 7
    claim = progress()
    stream = stream_of(chunk(claim, 0, number))
    assert await take_offsets(stream, number) == list(range(number))
    assert done(claim, stream) == number - 1


async def test_alternating_iterators_share_one_position() -> None:
    number = LOT_ROWS * 8
    claim = progress()
    stream = stream_of(chunk(claim, 0, number))
    one, other = aiter(stream), aiter(stream)
    found = [message.offset for iterator in (one, other, one) for message in await take(iterator, LOT_ROWS * 5 // 2)]
    assert found == list(range(len(found)))
    assert done(claim, stream) == len(found) - 1


async def test_batches_are_as_they_were_fetched() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 3), chunk(claim, 3, 8, offsets=[4]), hole(claim, 8, 9), chunk(claim, 9, 10))
    iterator = stream.batches()
    positions = []
    for _ in range(3):
        (batch,) = await take(iterator, 1)
        positions.append((rows(batch), claim.consumed, done(claim, stream)))
    assert positions == [([0, 1, 2], 3, 0), ([4], 8, 3), ([9], 10, 9)]
    stream.ack()
    assert done(claim, stream) == 10


async def test_iteration_continues_after_a_break() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 6))
    found = []
    for _ in range(3):
        async for message in stream:
            found.append(message.offset)
            if message.offset % 2:
                break
    assert found == [0, 1, 2, 3, 4, 5]
    assert done(claim, stream) == 5


async def test_from_messages_to_batches() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 6), chunk(claim, 6, 7))
    assert await take_offsets(stream, 2) == [0, 1]
    batches = stream.batches()
    assert rows((await take(batches, 1))[0]) == [2, 3, 4, 5]
    assert (done(claim, stream), claim.consumed) == (2, 6)
    assert rows((await take(batches, 1))[0]) == [6]
    assert done(claim, stream) == 6


async def test_from_messages_to_batches_over_the_rows_made_so_far() -> None:
    number = LOT_ROWS + 500
    claim = progress()
    stream = stream_of(chunk(claim, 0, number))
    await take_offsets(stream, LOT_ROWS + 1)
    assert rows((await take(stream.batches(), 1))[0]) == list(range(LOT_ROWS + 1, number))


async def test_from_batches_to_messages() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 3), chunk(claim, 3, 6))
    assert rows((await take(stream.batches(), 1))[0]) == [0, 1, 2]
    assert await take_offsets(stream, 1) == [3]
    assert done(claim, stream) == 3


async def test_alternating_between_messages_and_batches() -> None:
    claim = progress()
    stream = stream_of(*(chunk(claim, first, first + 4) for first in range(0, 16, 4)))
    found = await take_offsets(stream, 1)
    found += rows((await take(stream.batches(), 1))[0])
    found += await take_offsets(stream, 2)
    found += rows((await take(stream.batches(), 1))[0])
    found += rows((await take(stream.batches(), 1))[0])
    assert found == list(range(12))
    found += await take_offsets(stream, 4)
    assert found == list(range(16))
    assert done(claim, stream) == 15


async def test_an_exception_of_the_body_leaves_the_message_in_hand() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 3))

    async def consume() -> None:
        async for message in stream:
            _ = 1 // (1 - message.offset)

    with pytest.raises(ZeroDivisionError):
        await consume()
    assert done(claim, stream) == 1


async def test_drop_takes_back_messages_that_were_not_handed_out() -> None:
    going, staying = progress(0), progress(1)
    stream = stream_of(chunk(going, 0, 5), chunk(staying, 0, 2), chunk(going, 5, 9))
    iterator = aiter(stream)
    await take(iterator, 2)
    settled = list[int]()
    stream.cursor.drop(going)
    going.close(lambda: settled.append(going.processed))
    assert (going.consumed, going.processed, settled) == (2, 1, [])
    (message,) = await take(iterator, 1)
    assert (message.partition, message.offset) == (1, 0)
    assert (going.processed, settled) == (2, [2])


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
    claim.when_closed(lambda: stream.cursor.drop(claim))
    settled: list[int] = []
    iterator = aiter(stream)
    await take(iterator, 4)
    claim.close(lambda: settled.append(claim.processed))
    assert (claim.processed, claim.consumed, claim.lost, settled) == (3, 4, False, [])
    with anyio.move_on_after(0.01):  # the body of the fourth has ended
        await anext(iterator)
    assert settled == [4]


async def test_drop_with_nothing_in_hand_ends_at_once() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 5))
    await take_offsets(stream, 2)
    stream.ack()
    stream.cursor.drop(claim)
    settled = list[int]()
    claim.close(lambda: settled.append(claim.processed))
    assert settled == [2]


async def test_drop_after_a_change_from_messages_to_batches() -> None:
    going, staying = progress(0), progress(1)
    stream = stream_of(chunk(going, 0, 5), chunk(staying, 0, 2))
    await take_offsets(stream, 1)
    stream.cursor.drop(going)
    going.close(lambda: None)
    assert rows((await take(stream.batches(), 1))[0]) == [0, 1]
    assert going.processed == 1


async def test_drop_of_another_claim_changes_nothing() -> None:
    here, there = progress(0), progress(1)
    stream = stream_of(chunk(here, 0, 3), chunk(there, 0, 3))
    iterator = aiter(stream)
    await take(iterator, 1)
    stream.cursor.drop(there)
    there.close()
    assert [message.offset for message in await take(iterator, 2)] == [1, 2]


async def test_a_partition_that_is_assigned_again_starts_from_its_new_claim() -> None:
    before, after = progress(), progress(start=1)
    stream = stream_of(chunk(before, 0, 5))
    iterator = aiter(stream)
    await take(iterator, 2)
    stream.cursor.drop(before)
    before.close()
    put(stream.cursor.queue, chunk(after, 1, 3))
    assert [message.offset for message in await take(iterator, 2)] == [1, 2]
    assert (done(after, stream), before.processed) == (2, 1)


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
    stream = stream_of()
    waiting = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0)
    stream.cursor.close()
    with pytest.raises(StopAsyncIteration):
        async with asyncio.timeout(LIMIT):
            await waiting


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


async def test_an_error_is_raised_after_all_records_before_it() -> None:
    claim, other = progress(0), progress(1)
    lost = OffsetLostError("orders-0 is gone")
    stream = stream_of(chunk(claim, 0, 2), failure(claim, 2, lost), chunk(other, 0, 1))
    iterator = aiter(stream)
    taken = [(message.partition, message.offset) for message in await take(iterator, 3)]
    assert taken == [(0, 0), (0, 1), (1, 0)]  # its error waits for its turn, too
    with pytest.raises(OffsetLostError, match="orders-0 is gone"):
        await take(iterator, 1)
    assert done(claim, stream) == 2
    put(stream.cursor.queue, chunk(other, 1, 2))
    assert await take_offsets(stream, 1) == [1]  # the other partition continues


async def test_a_cancelled_wait_loses_nothing() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 2))
    iterator = aiter(stream)
    await take(iterator, 2)
    with anyio.move_on_after(0.01) as scope:
        await anext(iterator)
    assert scope.cancelled_caught
    assert done(claim, stream) == 2
    put(stream.cursor.queue, chunk(claim, 2, 4))
    assert await take_offsets(stream, 2) == [2, 3]


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


async def test_an_abandoned_wait_does_not_block_the_iterator() -> None:
    claim = progress()
    stream = stream_of()
    iterator = aiter(stream)
    abandoned = anext(iterator).__await__()
    next(abandoned)
    del abandoned
    gc.collect()
    put(stream.cursor.queue, chunk(claim, 0, 1))
    assert (await take(iterator, 1))[0].offset == 0


async def test_a_message_of_another_stream_cannot_be_acknowledged() -> None:
    claim = progress()
    one, other = stream_of(chunk(claim, 0, 5)), stream_of(chunk(progress(1), 0, 5))
    (message,) = await take(aiter(one), 1)
    await take(aiter(other), 1)
    with pytest.raises(ValueError, match="has not handed out"):
        other.ack(message)
    assert one.ack(copy.copy(message))
    assert claim.processed == 1


async def test_a_task_that_ends_while_it_waits_leaves_the_iterator_usable() -> None:
    """Its coroutine is closed, as when an event loop ends."""
    claim = progress()
    stream = stream_of()
    iterator = aiter(stream)

    async def wait() -> None:
        await anext(iterator)

    waiting = wait()
    waiting.send(None)
    waiting.close()
    put(stream.cursor.queue, chunk(claim, 0, 1))
    assert (await take(iterator, 1))[0].offset == 0


async def test_anext_with_a_default() -> None:
    stream = stream_of(chunk(progress(), 0, 1))
    iterator = aiter(stream)
    assert (await take(iterator, 1))[0].offset == 0
    stream.cursor.close()
    assert await anext(iterator, None) is None
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)


async def test_streams_that_are_dropped_leave_nothing_behind() -> None:
    """A claim refers to its stream's cursor, which has messages that refer to the claim."""
    gc.collect()
    before = allocated_bytes()
    claim = progress()
    stream = stream_of(chunk(claim, 0, 1000))
    claim.when_closed(partial(stream.cursor.drop, claim))
    await take(aiter(stream), 5)
    assert allocated_bytes() > before
    stream.cursor.pause(claim)
    del claim, stream
    gc.collect()
    assert allocated_bytes() == before


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


async def test_a_pause_holds_back_messages_and_a_resume_delivers_them_in_order() -> None:
    claim, other = progress(0), progress(1)
    stream = stream_of(chunk(claim, 0, 6), chunk(other, 0, 3), chunk(claim, 6, 9))
    iterator = aiter(stream)
    assert [message.offset for message in await take(iterator, 2)] == [0, 1]
    claim.paused = True
    stream.cursor.pause(claim)
    put(stream.cursor.queue, chunk(claim, 9, 10))  # requested before the pause
    assert [(m.partition, m.offset) for m in await take(iterator, 3)] == [(1, 0), (1, 1), (1, 2)]
    assert (claim.processed, claim.consumed) == (2, 2)  # the message in hand is processed
    claim.paused = False
    stream.cursor.resume(claim)
    assert [(m.partition, m.offset) for m in await take(iterator, 8)] == [(0, offset) for offset in range(2, 10)]
    stream.ack()
    assert (claim.processed, other.processed) == (10, 3)


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


async def test_a_stream_that_waits_does_not_keep_its_last_chunk() -> None:
    claim = progress()
    before = allocated_bytes()
    stream = stream_of(chunk(claim, 0, 4_000))
    assert allocated_bytes() - before > 1 << 17
    iterator = aiter(stream)
    await take(iterator, 4_000)
    waiting = asyncio.ensure_future(anext(iterator))
    for _ in range(10):
        await asyncio.sleep(0)
    assert allocated_bytes() - before < 1 << 14
    assert done(claim, stream) == 4_000
    waiting.cancel()


async def test_batches_without_references_in_the_application_are_not_kept() -> None:
    claim = progress()
    before = allocated_bytes()
    stream = stream_of(chunk(claim, 0, 4_000))
    batches = stream.batches()
    assert sum([batch.num_rows for batch in await take(batches, 1)]) == 4_000
    waiting = asyncio.ensure_future(anext(batches))
    for _ in range(10):
        await asyncio.sleep(0)
    assert allocated_bytes() - before < 1 << 14
    waiting.cancel()


async def test_a_pause_between_batches_and_with_a_batch_in_hand() -> None:
    claim, other = progress(0), progress(1)
    stream = stream_of(chunk(claim, 0, 4), chunk(claim, 4, 8), chunk(other, 0, 2))
    batches = stream.batches()
    assert [rows(batch) for batch in await take(batches, 1)] == [[0, 1, 2, 3]]
    claim.paused = True
    stream.cursor.pause(claim)
    assert [rows(batch) for batch in await take(batches, 1)] == [[0, 1]]
    assert claim.processed == 4
    claim.paused = False
    stream.cursor.resume(claim)
    assert [rows(batch) for batch in await take(batches, 1)] == [[4, 5, 6, 7]]


async def test_a_pause_over_holes_and_a_drop_while_paused() -> None:
    claim, other = progress(0), progress(1)
    stream = stream_of(chunk(claim, 0, 10, offsets=[1, 4, 8]), hole(claim, 10, 12))
    iterator = aiter(stream)
    assert [message.offset for message in await take(iterator, 1)] == [1]
    claim.paused = True
    stream.cursor.pause(claim)
    claim.paused = False
    stream.cursor.resume(claim)
    assert [message.offset for message in await take(iterator, 2)] == [4, 8]
    claim.paused = True
    stream.cursor.pause(claim)
    claim.close()
    stream.cursor.drop(claim)
    put(stream.cursor.queue, chunk(other, 0, 1))
    assert [message.partition for message in await take(iterator, 1)] == [1]
    assert stream.cursor.queue.has_room
    assert stream.cursor.queue.filled[1] == 0
