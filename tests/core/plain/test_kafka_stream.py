"""What a stream delivers, what it counts as processed, and how it ends."""

from __future__ import annotations

import asyncio
import copy

import anyio
import pytest

from kzconsumer.errors import OffsetLostError
from kzconsumer.records._native import allocated_bytes
from kzconsumer.streams.cursor import LOT_ROWS
from tests.support.chunks import chunk, failure, hole, progress, put
from tests.support.streams import done, rows, stream_of, take, take_offsets


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
    stream.ack()  # nothing is in hand
    assert done(claim, stream) == 0
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


async def test_more_rows_than_fit_into_one_lot_of_messages() -> None:
    number = LOT_ROWS * 2 + 7
    claim = progress()
    stream = stream_of(chunk(claim, 0, number))
    assert await take_offsets(stream, number) == list(range(number))
    assert done(claim, stream) == number - 1


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


async def test_from_messages_to_batches_over_the_rows_made_so_far() -> None:
    number = LOT_ROWS + 500
    claim = progress()
    stream = stream_of(chunk(claim, 0, number))
    await take_offsets(stream, LOT_ROWS + 1)
    assert rows((await take(stream.batches(), 1))[0]) == list(range(LOT_ROWS + 1, number))


async def test_an_exception_of_the_body_leaves_the_message_in_hand() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 3))

    async def consume() -> None:
        async for message in stream:
            _ = 1 // (1 - message.offset)

    with pytest.raises(ZeroDivisionError):
        await consume()
    assert done(claim, stream) == 1


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


async def test_a_message_of_another_stream_cannot_be_acknowledged() -> None:
    claim = progress()
    one, other = stream_of(chunk(claim, 0, 5)), stream_of(chunk(progress(1), 0, 5))
    (message,) = await take(aiter(one), 1)
    await take(aiter(other), 1)
    with pytest.raises(ValueError, match="has not handed out"):
        other.ack(message)
    assert one.ack(copy.copy(message))
    assert claim.processed == 1


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
