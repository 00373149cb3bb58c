"""Explicit acknowledgement: a record counts as processed only when the application acknowledges it, in any order."""

from __future__ import annotations

import asyncio
import gc

import anyio
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from kzconsumer.offsets.progress import Chunk, HandedOut, Message, Progress
from kzconsumer.streams import cursor
from kzconsumer.streams.chunk_queue import ChunkQueue
from kzconsumer.streams.cursor import StreamCursor, Unacknowledged
from tests.support.chunks import TOPIC, LeaseInHand, chunk, hole, progress, put
from tests.support.reachable import reachable
from tests.support.streams import LIMIT, HeldStream, assert_close_ends_a_wait, rows, stream_of, take


def explicit(*chunks: Chunk, most: int = 1_000) -> HeldStream:
    return HeldStream(*chunks, cursor=StreamCursor(ChunkQueue(1 << 20), LeaseInHand(), Unacknowledged(most)))


def committed(progress: Progress, stream: HeldStream) -> int:
    """What a commit would store now."""
    stream.cursor.checkpoint()
    return progress.processed


async def waits(stream: HeldStream) -> bool:
    with anyio.move_on_after(0.02) as scope:
        await anext(aiter(stream))
    return scope.cancelled_caught


async def test_any_order_commits_the_contiguous_prefix() -> None:
    claim = progress(start=7)
    stream = explicit(chunk(claim, 7, 10), chunk(claim, 10, 12))
    messages = await take(aiter(stream), 5)
    found = []
    for number in (4, 1, 2, 2, 0, 3):
        assert stream.ack(messages[number])
        found.append(committed(claim, stream))
    assert found == [7, 7, 7, 7, 10, 12]


async def test_ack_without_argument_acknowledges_the_message_in_hand() -> None:
    claim = progress()
    stream = explicit(chunk(claim, 0, 4))
    assert stream.ack()  # nothing is in hand
    async for message in stream:
        if message.offset != 2:
            stream.ack()
        if message.offset == 3:
            break
    assert (committed(claim, stream), claim.consumed) == (2, 4)
    batches = explicit(chunk(other := progress(), 0, 4))
    await take(batches.batches(), 1)
    assert batches.ack()
    assert batches.ack()
    assert other.processed == 4


@pytest.mark.parametrize("how", ["explicit", "implicit"])
async def test_with_nothing_in_hand_nothing_is_lost(how: str) -> None:
    """Before the first message there is no claim that could be."""
    assert (explicit() if how == "explicit" else stream_of()).ack()


async def test_holes_of_the_log_need_no_acknowledgement() -> None:
    """Compaction and control records: offsets without a record cannot be acknowledged and block nothing."""
    claim = progress()
    stream = explicit(chunk(claim, 0, 10, offsets=[2, 5, 6]), hole(claim, 10, 12), chunk(claim, 12, 20, offsets=[15]))
    messages = await take(aiter(stream), 4)
    assert [message.offset for message in messages] == [2, 5, 6, 15]
    stream.ack(messages[2])
    stream.ack(messages[1])
    assert committed(claim, stream) == 0
    stream.ack(messages[0])
    assert committed(claim, stream) == 12
    stream.ack(messages[3])
    assert committed(claim, stream) == 16
    assert await waits(stream)
    assert (committed(claim, stream), claim.settled) == (20, True)


async def test_batches_are_acknowledged_in_any_order() -> None:
    claim = progress()
    stream = explicit(chunk(claim, 0, 10, offsets=[1, 4]), chunk(claim, 10, 12), hole(claim, 12, 14))
    first, second = await take(stream.batches(), 2)
    assert stream.ack(second)
    assert committed(claim, stream) == 0
    assert stream.ack(first)
    assert stream.ack(first)
    assert committed(claim, stream) == 12
    with pytest.raises(ValueError, match="has not handed out"):
        stream.ack(first.slice(0, 1))


async def test_acknowledging_a_message_of_no_stream_or_another_stream_is_refused() -> None:
    claim = progress()
    stream, other = explicit(chunk(claim, 0, 3)), explicit()
    (message,) = await take(aiter(stream), 1)
    with pytest.raises(ValueError, match=f"has not handed out {TOPIC}-0 at "):
        stream.ack(Message(TOPIC, 0, 0, b"k0", b"v0"))
    with pytest.raises(ValueError, match=f"has not handed out {TOPIC}-0 at "):
        other.ack(message)
    with pytest.raises(ValueError, match="has not handed out"):
        stream.ack(pa.RecordBatch.from_pydict({"offset": [0]}))
    assert committed(claim, stream) == 0


async def test_a_stream_waits_while_too_much_is_unacknowledged() -> None:
    claim = progress()
    stream = explicit(chunk(claim, 0, 100), most=10)
    messages = await take(aiter(stream), 10)
    assert await waits(stream)
    stream.ack(messages[4])
    assert [message.offset for message in await take(aiter(stream), 1)] == [10]
    assert await waits(stream)
    waiting = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0)
    stream.ack(messages[7])
    async with asyncio.timeout(LIMIT):
        assert (await waiting).offset == 11


async def test_a_batch_is_delivered_whole_if_there_is_room_for_one_record() -> None:
    claim = progress()
    stream = explicit(chunk(claim, 0, 8), chunk(claim, 8, 16), chunk(claim, 16, 24), most=10)
    first, second = await take(stream.batches(), 2)
    assert rows(second) == list(range(8, 16))
    assert await waits(stream)
    stream.ack(first)
    assert rows((await take(stream.batches(), 1))[0]) == list(range(16, 24))


async def test_what_is_behind_the_last_record_of_a_batch_needs_no_acknowledgement() -> None:
    claim = progress()
    stream = explicit(chunk(claim, 0, 10, offsets=[2, 5]), chunk(claim, 10, 12), most=1)
    await take(stream.batches(), 1)
    stream.ack_below(5)
    assert committed(claim, stream) == 5
    stream.ack_below(6)
    assert committed(claim, stream) == 10
    assert rows((await take(stream.batches(), 1))[0]) == [10, 11]


async def test_lost_records_free_their_room() -> None:
    going, staying = progress(0), progress(1)
    stream = explicit(chunk(going, 0, 20), chunk(staying, 0, 5), most=10)
    await take(aiter(stream), 10)
    waiting = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0)
    stream.cursor.drop(going)
    going.close(lambda: None)
    await asyncio.sleep(0)
    assert not waiting.done()
    going.close()
    async with asyncio.timeout(LIMIT):
        assert (await waiting).partition == 1


async def test_messages_taken_back_by_a_pause_are_not_counted() -> None:
    """A pause takes back messages that were made but not handed out."""
    claim, other = progress(0), progress(1)
    stream = explicit(chunk(claim, 0, 10), chunk(other, 0, 10), most=10)
    await take(aiter(stream), 2)
    claim.paused = True
    stream.cursor.pause(claim)
    assert len(await take(aiter(stream), 8)) == 8
    assert await waits(stream)


async def test_close_ends_a_wait_for_acknowledgements() -> None:
    claim = progress()
    stream = explicit(chunk(claim, 0, 20), most=3)
    await take(aiter(stream), 3)
    await assert_close_ends_a_wait(stream)


async def test_a_long_wait_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor, "PATIENCE", 0.01)
    claim = progress()
    stream = explicit(chunk(claim, 0, 20), most=3)
    messages = await take(aiter(stream), 3)
    stream.ack(messages[0])
    await take(aiter(stream), 1)
    with capture_logs() as output, anyio.fail_after(LIMIT):
        while not output:  # a loaded machine may be late with both timers
            assert await waits(stream)
    line = output[0]
    assert (line["log_level"], line["records"], line["most"]) == ("warning", 3, 3)
    assert (line["topic"], line["partition"], line["first_unacknowledged"]) == (TOPIC, 0, 1)


async def test_batches_without_references_are_forgotten() -> None:
    claim = progress()
    stream = explicit(chunk(claim, 0, 8), chunk(claim, 8, 16))
    kept = []

    def known() -> set[int]:
        return {each.first for each in reachable(stream.cursor) if isinstance(each, HandedOut)}

    async for batch in stream.batches():
        kept.append(batch)
        if len(kept) == 2:
            break
    assert known() == {0, 8}
    del batch
    kept.clear()
    await waits(stream)
    gc.collect()
    assert known() == {8}, "ack() acknowledges the last one"


async def test_a_cancelled_look_for_the_next_leaves_the_last_one_in_hand() -> None:
    claim = progress()
    stream = explicit(chunk(claim, 0, 1))
    await take(aiter(stream), 1)
    assert await waits(stream)
    stream.ack_below(1)  # nothing: it is no batch
    assert committed(claim, stream) == 0
    assert stream.ack()
    assert committed(claim, stream) == 1
    put(stream.cursor.queue, chunk(claim, 1, 5))
    await take(stream.batches(), 1)
    assert await waits(stream)
    stream.ack_below(3)
    assert committed(claim, stream) == 3
    assert stream.ack()
    assert committed(claim, stream) == 5


async def test_implicit_acknowledgement_takes_a_message_or_batch_as_well() -> None:
    claim = progress()
    stream = stream_of(chunk(claim, 0, 3), chunk(claim, 3, 6))
    one, two = await take(aiter(stream), 2)
    assert stream.ack(two)
    assert committed(claim, stream) == 2
    assert stream.ack(one)  # acknowledged when the next one was taken
    (rest,) = await take(stream.batches(), 1)
    assert stream.ack(rest)
    assert committed(claim, stream) == 3
    stream.cursor.drop(claim)
    claim.close()
    assert not stream.ack(rest)
    assert not stream.ack()
