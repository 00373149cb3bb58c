"""When a batch counts as written, and what Spark gets: `HandOver` between the runner and `latestOffset`."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import msgspec
from structlog.testing import capture_logs

from kzconsumer.model import OffsetRange
from kzconsumer.records.forms import Unfetched
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer.zookeeper.session import Lease
from kzconsumer_spark.source.query_member import HandOver
from kzconsumer_spark.source.stream_offset import StreamOffset
from tests.support.chunks import LeaseInHand

START = StreamOffset("g")


def sink_of(offset: StreamOffset, lease: Lease | None = None) -> HandOver:
    return HandOver(offset, 1, lease or LeaseInHand())


def batch(first: int, until: int, *partitions: int) -> Batch:
    """Of partition 0 if none is given."""
    one = RangeData(
        topic="t", partition=0, first=first, until=until, pieces=(Unfetched(first, until),), incarnation=1, epoch=0
    )
    return Batch(tuple(msgspec.structs.replace(one, partition=n) for n in partitions or (0,)))


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
    sink = sink_of(START)
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
    assert await sink_of(START).following(START, 0.01) == START


async def test_what_the_checkpoint_has_is_written_already() -> None:
    sink = sink_of(START)
    async with writing(sink, batch(0, 5)):
        end = await sink.following(START, math.inf)
    restarted = sink_of(end)
    with capture_logs() as logs:
        await restarted.write(batch(0, 5))
        async with writing(restarted, batch(0, 7)):
            assert [(part.first, part.until) for part in (await restarted.following(end, math.inf)).ranges] == [(5, 7)]
    assert [(line["event"], line["ranges"]) for line in logs] == [("ranges committed by Spark already", ["t-0[0..5)"])]


async def test_a_range_that_was_lost_and_comes_again_while_spark_has_it_is_not_delivered_again() -> None:
    sink = sink_of(START)
    async with writing(sink, batch(0, 5)) as lost:
        end = await sink.following(START, math.inf)
        lost.cancel()
    async with writing(sink, batch(0, 5)) as again:
        assert await sink.following(end, 0) == end
        await again.done.wait()


async def test_a_batch_that_was_lost_is_not_handed_out() -> None:
    sink = sink_of(START)
    async with writing(sink, batch(0, 5)) as lost:
        await anyio.lowlevel.checkpoint()
        lost.cancel()
    assert await sink.following(START, 0.01) == START


async def test_a_range_that_is_lost_before_spark_asks_is_left_to_the_next_owner() -> None:
    """The others are handed out, and Spark's commit of them ends the write."""
    sink, two = sink_of(START), batch(0, 5, 0, 1)
    async with writing(sink, two) as both:
        await anyio.lowlevel.checkpoint()
        sink.range_lost(two.ranges[0])
        end = await sink.following(START, math.inf)
        assert [part.partition for part in end.ranges] == [1]
        assert not both.done.is_set()
        assert await sink.following(end, 0.01) == end
        assert both.done.is_set()
    async with writing(sink, two):  # claimed again
        assert [part.partition for part in (await sink.following(end, math.inf)).ranges] == [0]


async def test_a_range_that_was_lost_before_the_write_is_not_handed_out() -> None:
    sink, two = sink_of(START), batch(0, 5, 0, 1)
    sink.range_lost(two.ranges[0])
    async with writing(sink, two):
        assert [part.partition for part in (await sink.following(START, math.inf)).ranges] == [1]


async def test_a_range_that_was_lost_before_its_write_is_handed_out_when_its_plan_is_replayed() -> None:
    """The session expired while the lease was awaited, so `write` was never called; then the plan is found again."""
    sink = sink_of(START)
    sink.range_lost(batch(0, 5).ranges[0])
    async with writing(sink, batch(0, 5)) as replay:
        end = await sink.following(START, 0.5)
        assert [(part.first, part.until) for part in end.ranges] == [(0, 5)]
        assert await sink.following(end, 0) == end
        await replay.done.wait()


async def test_a_write_of_lost_ranges_does_not_return() -> None:
    """The runner cancels it; nothing is marked as written."""
    sink, one = sink_of(START), batch(0, 5)
    async with writing(sink, one) as lost:
        await anyio.lowlevel.checkpoint()
        sink.range_lost(one.ranges[0])
        assert await sink.following(START, 0.01) == START
        assert not lost.done.is_set()


async def test_nothing_is_handed_out_without_the_lease() -> None:
    """A suspended process may be asked before it finds that its session has expired."""
    lease = LeaseInHand()
    sink = sink_of(START, lease)
    async with writing(sink, batch(0, 5)):
        lease.lose()
        assert await sink.following(START, 0.01) == START
        lease.hold()
        assert await sink.following(START, math.inf) != START


async def test_a_write_ends_when_a_listener_reports_its_end() -> None:
    sink = sink_of(START)
    sink.socket = "/s"
    async with writing(sink, batch(0, 5)) as first:
        end = await sink.following(START, math.inf)
        assert end.socket == "/s"
        for other in (START, msgspec.structs.replace(end, socket="/t"), msgspec.structs.replace(end, ranges=())):
            sink.take(other)
            await anyio.lowlevel.checkpoint()
        assert not first.done.is_set(), "of another process, or not what Spark was given"
        sink.take(end)
        await first.done.wait()
    async with writing(sink, batch(5, 8)):
        sink.take(end)  # late
        following = await sink.following(end, math.inf)
        assert [(part.first, part.until) for part in following.ranges] == [(5, 8)]


async def test_a_batch_is_asked_for_while_spark_waits_for_one() -> None:
    sink = sink_of(START)
    async with anyio.create_task_group() as tasks:
        asked = anyio.Event()

        async def ask() -> None:
            await sink.asked()
            asked.set()

        tasks.start_soon(ask)
        await anyio.sleep(0.01)
        assert not asked.is_set()
        tasks.start_soon(sink.following, START, 0.05)
        await asked.wait()
    with anyio.move_on_after(0.01) as limit:
        await sink.asked()
    assert limit.cancelled_caught, "Spark no longer waits"


async def test_the_end_of_a_batch_has_its_leader_epochs() -> None:
    sink, offered = sink_of(START), batch(0, 5, 0, 1)
    known = msgspec.structs.replace(offered.ranges[1], leader_epoch=3)
    async with writing(sink, msgspec.structs.replace(offered, ranges=(offered.ranges[0], known))):
        end = await sink.following(START, math.inf)
        assert [end.epoch(OffsetRange("t", number, 0, 5)) for number in range(2)] == [-1, 3]
        assert StreamOffset.of_json(end.as_json(), "g") == end


async def test_the_end_of_a_batch_has_the_sizes_of_its_records() -> None:
    sink, offered = sink_of(START), batch(0, 5, 0, 1)
    known = msgspec.structs.replace(offered.ranges[1], pieces=(Unfetched(0, 5, 50e6),))
    async with writing(sink, msgspec.structs.replace(offered, ranges=(offered.ranges[0], known))):
        assert (await sink.following(START, math.inf)).weights == {"t-1": 50e6}
