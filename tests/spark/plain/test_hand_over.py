"""When a batch counts as written, and what Spark gets: `HandOver` between the runner and `latestOffset`."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from kzconsumer.records.forms import Unfetched
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer_spark.source.hand_over import HandOver
from kzconsumer_spark.source.stream_offset import StreamOffset

START = StreamOffset("g")


def batch(first: int, until: int) -> Batch:
    pieces = (Unfetched(first, until),)
    return Batch((RangeData(topic="t", partition=0, first=first, until=until, pieces=pieces, incarnation=1, epoch=0),))


class Writing:
    def __init__(self, scope: anyio.CancelScope) -> None:
        self.done = anyio.Event()
        self.cancel = scope.cancel


@asynccontextmanager
async def writing(sink: HandOver, what: Batch) -> AsyncIterator[Writing]:
    async with anyio.create_task_group() as tasks:
        now = Writing(tasks.cancel_scope)

        async def write() -> None:
            await sink.write(what)
            now.done.set()

        tasks.start_soon(write)
        yield now
        tasks.cancel_scope.cancel()


async def test_a_write_ends_when_spark_asks_for_what_follows() -> None:
    sink = HandOver(START, 1)
    async with writing(sink, batch(0, 5)) as first:
        end = await sink.following(START, math.inf)
        assert [(part.first, part.until) for part in end.ranges] == [(0, 5)]
        assert await sink.following(START, math.inf) == end  # asked again: not committed
        assert not first.done.is_set()
        assert not await sink.has([part.identity for part in batch(0, 5).ranges])
        assert await sink.following(end, 0) == end
        await first.done.wait()
        assert await sink.has([part.identity for part in batch(0, 5).ranges])
    async with writing(sink, batch(5, 9)):
        assert [part.first for part in (await sink.following(end, math.inf)).ranges] == [5]


async def test_nothing_within_its_patience() -> None:
    assert await HandOver(START, 1).following(START, 0.01) == START


async def test_what_the_checkpoint_has_is_written_already() -> None:
    sink = HandOver(START, 1)
    async with writing(sink, batch(0, 5)):
        end = await sink.following(START, math.inf)
    restarted = HandOver(end, 1)
    await restarted.write(batch(0, 5))
    async with writing(restarted, batch(0, 7)):
        assert [(part.first, part.until) for part in (await restarted.following(end, math.inf)).ranges] == [(5, 7)]


async def test_a_range_that_was_lost_and_comes_again_while_spark_has_it_is_not_delivered_again() -> None:
    sink = HandOver(START, 1)
    async with writing(sink, batch(0, 5)) as lost:
        end = await sink.following(START, math.inf)
        lost.cancel()
    async with writing(sink, batch(0, 5)) as again:
        assert await sink.following(end, 0) == end
        await again.done.wait()


async def test_a_batch_that_was_lost_is_not_handed_out() -> None:
    sink = HandOver(START, 1)
    async with writing(sink, batch(0, 5)) as lost:
        await anyio.lowlevel.checkpoint()
        lost.cancel()
    assert await sink.following(START, 0.01) == START
