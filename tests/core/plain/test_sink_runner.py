"""Collect, cut, write, mark, commit: what a sink receives, when it counts as processed, and how the runner ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from kzconsumer.clock import now
from kzconsumer.errors import KzConsumerError, SessionExpiredError, ZooKeeperError
from kzconsumer.offsets.progress import Progress
from kzconsumer.registry.claim_record import Plan
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.chunks import LeaseInHand, chunk, hole, progress, put
from tests.support.owned_ranges import Owned
from tests.support.simulated.virtual_time import in_virtual_time
from tests.support.sink_runs import LIMIT, Asking, Memory, planning, replay_of, runner_of, running, until


async def test_write_then_mark_then_commit() -> None:
    claim, queue, sink = progress(start=4), ChunkQueue(1 << 20), Memory(open_gate=False)
    commits = Owned([claim])
    put(queue, chunk(claim, 4, 6), chunk(claim, 6, 9))
    async with running(runner_of(sink, commits), [queue]):
        await until(sink.writing.is_set)
        assert (claim.consumed, claim.processed, commits.made) == (9, 4, [])
        sink.gate.set()
        await until(lambda: commits.made)
        assert commits.made == [[9]]
    assert sink.ranges == [(0, 4, 9)]
    assert sink.events == ["enter", "write", "exit"]


async def test_a_batch_is_cut_by_records() -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory()
    put(queue, *(chunk(claim, first, first + 5) for first in range(0, 20, 5)))
    async with running(runner_of(sink, records=10, time=60), [queue]):
        await until(lambda: claim.processed == 20)
    assert sink.ranges == [(0, 0, 10), (0, 10, 20)]


@pytest.mark.parametrize(("size", "batch_bytes"), [(1000, None), (1 << 20, 1000), (1000, 1 << 20)])
async def test_a_batch_is_cut_by_bytes_and_by_those_that_the_sink_wants_if_they_are_fewer(
    size: int, batch_bytes: int | None
) -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory()
    if batch_bytes is not None:
        sink.batch_bytes = batch_bytes  # type: ignore[attr-defined]
    put(queue, chunk(claim, 0, 50), chunk(claim, 50, 100))
    async with running(runner_of(sink, size=size, time=60), [queue]):
        await until(lambda: claim.processed == 100)
    assert sink.ranges == [(0, 0, 50), (0, 50, 100)]


async def test_a_batch_is_due_with_the_records_that_the_sink_wants_and_grows_while_another_is_written() -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory(open_gate=False)
    sink.due_records = 8  # type: ignore[attr-defined]
    async with running(runner_of(sink, records=20, time=60), [queue]):
        put(queue, *(chunk(claim, first, first + 4) for first in range(0, 8, 4)))
        await sink.writing.wait()
        put(queue, *(chunk(claim, first, first + 4) for first in range(8, 24, 4)))
        await asyncio.sleep(0.05)  # all of it is collected, and nothing more happens
        sink.gate.set()
        await until(lambda: claim.processed == 24)
    assert sink.ranges == [(0, 0, 8), (0, 8, 24)]


async def test_other_settings_leave_the_bytes_that_the_sink_wants() -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory()
    sink.batch_bytes = 1000  # type: ignore[attr-defined]
    runner = runner_of(sink, size=500, time=60)
    runner.limit(BatchSettings(max_time=60))
    put(queue, chunk(claim, 0, 50), chunk(claim, 50, 100))
    async with running(runner, [queue]):
        await until(lambda: claim.processed == 100)
    assert sink.ranges == [(0, 0, 50), (0, 50, 100)]


async def test_a_batch_is_cut_by_the_time_since_its_first_record() -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory()
    async with running(runner_of(sink, time=0.15), [queue]):
        await asyncio.sleep(0.05)  # there is no record: the time has not started
        put(queue, chunk(claim, 0, 1))
        began = now()
        await asyncio.sleep(0.05)
        put(queue, chunk(claim, 1, 2))
        await until(lambda: sink.batches)
        assert 0.13 < now() - began < 1.0
    assert sink.ranges == [(0, 0, 2)]


async def test_all_streams_feed_the_one_sink() -> None:
    claims = [progress(number) for number in range(3)]
    queues, sink = [ChunkQueue(1 << 20) for _ in claims], Memory()
    for claim, queue in zip(claims, queues, strict=True):
        put(queue, chunk(claim, 0, 2))
    async with running(runner_of(sink, records=6, time=60), queues):
        await until(lambda: all(claim.processed == 2 for claim in claims))
    assert (len(sink.batches), sorted(sink.ranges)) == (1, [(0, 0, 2), (1, 0, 2), (2, 0, 2)])


async def test_the_next_batch_is_collected_while_one_is_written_and_no_more() -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory(open_gate=False)
    put(queue, *(chunk(claim, first, first + 5) for first in range(0, 40, 5)))
    waiting = queue.filled[0]
    async with running(runner_of(sink, records=10, time=60), [queue]):
        await until(sink.writing.is_set)
        await asyncio.sleep(0.02)
        # 0..9 are being written, 10..19 collected; the queue holds the rest back, and so the fetchers.
        assert queue.filled[0] == waiting - 4
        assert claim.consumed == 10
        sink.gate.set()
        await until(lambda: claim.processed == 40)
    assert [part[1:] for part in sink.ranges] == [(0, 10), (10, 20), (20, 30), (30, 40)]


async def test_ranges_without_records_are_not_passed_to_the_sink() -> None:
    claim, other, queue, sink = progress(0), progress(1), ChunkQueue(1 << 20), Memory()
    commits = Owned([claim])
    put(queue, hole(claim, 0, 7))
    async with running(runner_of(sink, commits), [queue]):
        await until(lambda: commits.made)
        assert (sink.batches, claim.processed) == ([], 7)
        put(queue, hole(claim, 7, 9), chunk(other, 0, 1))
        await until(lambda: claim.processed == 9 and other.processed == 1)
    assert sink.ranges == [(1, 0, 1)]


async def test_a_batch_whose_partitions_are_all_lost_is_cancelled_and_the_next_one_written() -> None:
    lost, gone, staying = progress(0), progress(1), progress(2)
    queue, sink, reported = ChunkQueue(1 << 20), Memory(open_gate=False), list[int]()
    sink.range_lost = lambda part: reported.append(part.partition)  # type: ignore[attr-defined]
    put(queue, chunk(lost, 0, 2), chunk(gone, 0, 2))
    async with running(runner_of(sink, records=4, time=0.05), [queue]):
        await until(sink.writing.is_set)
        lost.close()
        assert reported == [0]
        await asyncio.sleep(0.02)
        assert "cancelled" not in sink.events
        gone.close()
        await until(lambda: "cancelled" in sink.events)
        assert (lost.processed, gone.processed) == (0, 0)
        sink.gate.set()
        put(queue, chunk(staying, 0, 2))
        await until(lambda: staying.processed == 2)
    assert sink.ranges == [(2, 0, 2)]


async def test_a_batch_continues_while_a_release_waits_for_it() -> None:
    claim, queue, sink, output = progress(), ChunkQueue(1 << 20), Memory(open_gate=False), asyncio.Event()
    put(queue, chunk(claim, 0, 2))
    async with running(runner_of(sink), [queue]):
        await until(sink.writing.is_set)
        claim.close(output.set)
        await asyncio.sleep(0.02)
        assert not output.is_set()
        sink.gate.set()
        await asyncio.wait_for(output.wait(), LIMIT)
    assert (claim.processed, sink.events) == (2, ["enter", "write", "exit"])


async def test_records_of_a_closed_claim_are_not_written() -> None:
    going, staying, queue, sink = progress(0), progress(1), ChunkQueue(1 << 20), Memory()
    async with running(runner_of(sink, records=4, time=60), [queue]):
        put(queue, chunk(going, 0, 2))
        await until(lambda: not queue)
        await asyncio.sleep(0)
        going.close()
        put(queue, chunk(staying, 0, 2))
        await until(lambda: staying.processed == 2)
    assert sink.ranges == [(1, 0, 2)]
    assert (going.consumed, going.processed) == (0, 0)


async def test_no_batch_begins_without_the_lease() -> None:
    claim, queue, sink, lease = progress(), ChunkQueue(1 << 20), Memory(), LeaseInHand(held=False)
    put(queue, chunk(claim, 0, 3))
    async with running(runner_of(sink, Owned(lease=lease)), [queue]):
        await asyncio.sleep(0.05)
        assert (sink.batches, claim.consumed) == ([], 0)
        lease.hold()
        await until(lambda: claim.processed == 3)


async def test_ranges_that_are_lost_while_their_batch_waits_for_the_lease_are_not_written() -> None:
    lost, staying, queue, sink = progress(0), progress(1), ChunkQueue(1 << 20), Memory()
    lease, released = LeaseInHand(held=False), list[str]()
    put(queue, chunk(lost, 0, 2), chunk(staying, 0, 2))
    async with running(runner_of(sink, Owned([lost, staying], lease=lease)), [queue]):
        await asyncio.sleep(0.05)
        lost.close(lambda: released.append("at once"))  # nothing was handed over, so the release does not wait
        assert released == ["at once"]
        lease.hold()
        await until(lambda: staying.processed == 2)
    assert sink.ranges == [(1, 0, 2)]


@pytest.mark.parametrize("error", [SessionExpiredError("over"), ZooKeeperError("/a", "no quota")])
async def test_a_commit_that_fails_does_not_end_the_runner(error: KzConsumerError) -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory()
    commits = Owned([claim], error)
    put(queue, chunk(claim, 0, 3))
    async with running(runner_of(sink, commits), [queue]):
        await until(lambda: len(commits.made) == 1)
        commits.error = None
        put(queue, chunk(claim, 3, 5))
        await until(lambda: len(commits.made) == 2)
    assert commits.made == [[3], [5]]


async def test_a_replayable_sink_receives_planned_ranges() -> None:
    """Plan, write, commit, in this order; a range lost during planning is neither written nor marked."""
    kept, lost, queue, sink = progress(0), progress(1), ChunkQueue(1 << 20), Memory(open_gate=False)
    steps: list[object] = []

    class Planned(Owned):
        async def plan(self, plans: Mapping[Progress, Plan]) -> list[Progress]:
            steps.append({claim.topic_partition.partition: (plan.first, plan.until) for claim, plan in plans.items()})
            assert not sink.writing.is_set()
            lost.close()
            return [kept]

    commits = Planned([kept, lost])
    put(queue, chunk(kept, 0, 3), chunk(lost, 0, 2))
    async with running(planning(sink, commits, records=5), [queue]):
        await until(sink.writing.is_set)
        assert steps == [{0: (0, 3), 1: (0, 2)}]
        sink.gate.set()
        await until(lambda: commits.made)
    assert (sink.ranges, commits.made[0]) == ([(0, 0, 3)], [3, 0])


async def test_after_a_replay_the_member_continues_once_it_is_committed() -> None:
    claim = replay_of(chunk(progress(0), 0, 3))
    queue, sink = ChunkQueue(1 << 20), Memory()
    resumed: list[tuple[Progress, list[list[int]]]] = []

    class Replaying(Owned):
        async def plan(self, plans: Mapping[Progress, Plan]) -> list[Progress]:
            raise AssertionError("its plan stands")

        async def resume_after_replay(self, progress: Progress) -> None:
            resumed.append((progress, list(self.made)))

    put(queue, chunk(claim, 0, 3))
    async with running(planning(sink, Replaying([claim]), records=1000), [queue]):
        await until(lambda: resumed)
    assert resumed == [(claim, [[3]])]
    assert [batch.is_replay for batch in sink.batches] == [True]


async def test_a_replay_that_is_lost_before_its_turn_does_not_block_the_stream() -> None:
    """Its last chunk has paused the collecting: the stream's next chunks must still be taken."""
    staying, sink, queue, commits = progress(1), Memory(open_gate=False), ChunkQueue(1 << 20), Owned()
    lost = replay_of(chunk(progress(0), 0, 3))
    put(queue, chunk(staying, 0, 4), chunk(lost, 0, 3), chunk(staying, 4, 8))
    async with running(runner_of(sink, commits, records=4, time=60), [queue]):
        await until(sink.writing.is_set)
        await until(lambda: queue.filled[0] == 1)
        lost.close()
        sink.gate.set()
        await until(lambda: staying.processed == 8)
    assert sink.ranges == [(1, 0, 4), (1, 4, 8)]


async def test_a_batch_grows_and_is_not_planned_until_the_sink_is_asked() -> None:
    claim, queue, sink, plans = progress(), ChunkQueue(1 << 20), Asking(), list[tuple[int, int]]()

    class Planning(Owned):
        async def plan(self, wanted: Mapping[Progress, Plan]) -> list[Progress]:
            plans.extend((plan.first, plan.until) for plan in wanted.values())
            return list(wanted)

    runner = planning(sink, Planning(), records=10)
    put(queue, chunk(claim, 0, 10))
    async with running(runner, [queue]):
        await asyncio.sleep(0.05)
        assert (plans, claim.consumed) == ([], 0), "nothing is planned, and a release does not wait"
        sink.wants_one.set()
        await until(lambda: claim.processed == 10)
        assert plans == [(0, 10)]


async def test_a_replayable_sinks_next_batch_is_planned_only_when_this_one_is_committed() -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory(open_gate=False)
    steps: list[object] = []

    class Planned(Owned):
        async def plan(self, plans: Mapping[Progress, Plan]) -> list[Progress]:
            steps.append(([(plan.first, plan.until) for plan in plans.values()], list(self.made)))
            return list(plans)

    runner = planning(sink, Planned([claim]), records=5)
    put(queue, chunk(claim, 0, 5), chunk(claim, 5, 10))
    async with running(runner, [queue]):
        await until(sink.writing.is_set)
        await asyncio.sleep(0.02)
        assert steps == [([(0, 5)], [])]
        assert runner.status is not None
        assert runner.status.stage == "write"
        sink.gate.set()
        await until(lambda: claim.processed == 10)
        await until(lambda: runner.status is not None and runner.status.stage == "done")
    assert steps[1] == ([(5, 10)], [[5]])


@in_virtual_time
async def test_the_seconds_of_each_stage() -> None:
    class Slow(Owned):
        async def plan(self, plans: Mapping[Progress, Plan]) -> list[Progress]:
            await asyncio.sleep(1)
            return list(plans)

        async def commit(self) -> None:
            await asyncio.sleep(4)
            await super().commit()

    claim, queue, sink, lease = progress(), ChunkQueue(1 << 20), Memory(open_gate=False), LeaseInHand(held=False)
    runner = planning(sink, Slow([claim], lease=lease), records=5)
    await asyncio.sleep(7)
    async with running(runner, [queue]):
        put(queue, chunk(claim, 0, 2))
        await asyncio.sleep(3)
        put(queue, chunk(claim, 2, 5))
        await asyncio.sleep(5)
        lease.hold()
        await sink.writing.wait()
        await asyncio.sleep(2)
        sink.gate.set()
        await asyncio.sleep(4.5)
        (batch,) = runner.batches.last
    assert batch.seconds == pytest.approx({"collect": 3.0, "wait": 5.0, "plan": 1.0, "write": 2.0, "commit": 4.0})
    assert (batch.stage, batch.written, batch.records) == ("done", True, 5)


async def test_streams_take_turns_whichever_was_first() -> None:
    """A batch has room for one chunk: the first stream to be collected would fill each."""
    claims, queues, sink = [progress(0), progress(1)], [ChunkQueue(1 << 20), ChunkQueue(1 << 20)], Memory()
    for claim, queue in zip(claims, queues, strict=True):
        put(queue, *(chunk(claim, first, first + 5) for first in range(0, 20, 5)))
    async with running(runner_of(sink, records=5, time=60), queues):
        await until(lambda: all(claim.processed == 20 for claim in claims))
    assert [partition for partition, _, _ in sink.ranges] == [0, 1, 0, 1, 0, 1, 0, 1]


async def test_it_is_busy_while_the_sink_writes_and_while_a_full_batch_waits() -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory(open_gate=False)
    runner = runner_of(sink, records=10, time=60)
    async with running(runner, [queue]):
        assert not runner.busy
        put(queue, chunk(claim, 0, 10))
        await until(sink.writing.is_set)
        assert runner.busy
        sink.gate.set()
        await until(lambda: claim.processed == 10)
        await until(lambda: not runner.busy)
