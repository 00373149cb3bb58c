"""How the runner of a sink ends: stopped, by an error of the sink, or by that of a stream, behind all its records."""

from __future__ import annotations

import asyncio
import time
from inspect import getfile
from types import TracebackType
from typing import Self

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import KzConsumerError, OffsetLostError, SinkError
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.interface import Batch
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.chunks import LeaseInHand, chunk, failure, progress, put
from tests.support.owned_ranges import Owned
from tests.support.sink_runs import LIMIT, Asking, Memory, failure_of, replay_of, runner_of, running, until


async def test_stop_does_not_wait_for_the_lease() -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory()
    put(queue, chunk(claim, 0, 3))
    runner = runner_of(sink, Owned(lease=LeaseInHand(held=False)))
    async with running(runner, [queue]) as task:
        await asyncio.sleep(0.05)
        async with asyncio.timeout(1):
            await runner.stop(60)
            await task
    assert (sink.events, claim.processed) == (["enter", "exit"], 0)


async def test_stop_lets_the_running_batch_finish_and_commits_it() -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory(open_gate=False)
    commits = Owned([claim])
    put(queue, *(chunk(claim, first, first + 5) for first in range(0, 20, 5)))
    runner = runner_of(sink, commits, records=5)
    async with running(runner, [queue]):
        await until(sink.writing.is_set)
        stopping = asyncio.create_task(runner.stop(LIMIT))
        await asyncio.sleep(0.02)
        assert not stopping.done()
        sink.gate.set()
        async with asyncio.timeout(LIMIT):
            await stopping
        assert (sink.ranges, commits.made) == ([(0, 0, 5)], [[5]])
        assert sink.events == ["enter", "write", "exit"]


@pytest.mark.parametrize("patience", [0.05, 0.0, -3.0])
async def test_stop_cancels_a_batch_that_takes_too_long(patience: float) -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory(open_gate=False)
    commits = Owned([claim])
    put(queue, chunk(claim, 0, 5))
    runner = runner_of(sink, commits)
    async with running(runner, [queue]) as task:
        await until(sink.writing.is_set)
        async with asyncio.timeout(LIMIT):
            await runner.stop(patience)
        assert sink.events == ["enter", "cancelled", "exit"], "the sink is closed when `stop` returns"
        async with asyncio.timeout(LIMIT):
            await task
    assert (claim.processed, commits.made) == (0, [])


class Threaded(Memory):
    """It writes in a thread, which ends when it notices that the write is cancelled, as that of the sink `parquet`."""

    async def write(self, batch: Batch) -> None:
        self.writing.set()
        await anyio.to_thread.run_sync(self._wait)

    @staticmethod
    def _wait() -> None:
        while True:
            anyio.from_thread.check_cancelled()
            time.sleep(0.005)


@pytest.mark.parametrize("why", ["stop", "lost"])
async def test_a_thread_of_the_sink_that_notices_its_end_has_not_failed(why: str) -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Threaded()
    put(queue, chunk(claim, 0, 5))
    runner = runner_of(sink)
    with capture_logs() as logs:
        async with running(runner, [queue]):
            await until(sink.writing.is_set)
            if why == "lost":
                claim.close()
                await until(lambda: runner.batches.unwritten == 1)
            async with asyncio.timeout(LIMIT):
                await runner.stop(0.0)
    warned = [each["event"] for each in logs if each["log_level"] != "info"]
    assert warned == (["batch dropped, its partitions are lost"] if why == "lost" else [])
    assert claim.processed == 0


async def test_stop_before_the_first_streams() -> None:
    sink = Memory()
    runner = runner_of(sink)

    async with anyio.create_task_group() as tasks:
        await tasks.start(runner.run)
        with anyio.fail_after(LIMIT):
            await runner.stop(0.01)
    assert sink.events == ["enter", "exit"]


async def require_failed_write(fault: BaseException, words: str) -> None:
    """The runner ends with SinkError, and nothing is marked."""
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory(fault)
    commits = Owned([claim])
    put(queue, chunk(claim, 0, 5))
    raised = await failure_of(runner_of(sink, commits), [queue])
    assert raised.group_contains(SinkError, match=f"sink memory: {words}")
    assert (claim.processed, commits.made, sink.events) == (0, [], ["enter", "exit"])


async def test_a_write_that_raises_ends_the_runner_with_nothing_marked() -> None:
    await require_failed_write(OSError("disk full"), rf"OSError: disk full \({getfile(Memory)}, line \d+\)$")


@pytest.mark.parametrize(
    ("fault", "words"),
    [(SystemExit(0), "SystemExit: 0"), (asyncio.CancelledError(), "something that it awaited was cancelled")],
)
async def test_a_sink_cannot_end_the_member_as_a_stop_does(fault: BaseException, words: str) -> None:
    await require_failed_write(fault, f".*{words}")


async def test_a_write_that_returns_false_or_a_coroutine_has_written_nothing() -> None:
    class Fails(Memory):
        async def write(self, batch: Batch) -> None:
            return False  # type: ignore[return-value]

    class Forgets(Memory):
        async def write(self, batch: Batch) -> None:
            return super().write(batch)  # type: ignore[return-value]

    for sink, returned in ((Fails(), "False"), (Forgets(), "a coroutine")):
        claim, queue = progress(), ChunkQueue(1 << 20)
        put(queue, chunk(claim, 0, 5))
        raised = await failure_of(runner_of(sink), [queue])
        assert raised.group_contains(SinkError, match=f"sink memory: `write` returned {returned}; it returns None once")
        assert claim.processed == 0


async def test_a_group_of_errors_of_the_sink_is_mapped() -> None:
    """A sink that uses a task group raises exception groups; the caller still gets a SinkError."""
    claim, queue = progress(), ChunkQueue(1 << 20)
    put(queue, chunk(claim, 0, 5))
    sink = Memory(ExceptionGroup("unhandled", [OSError("disk full"), ValueError("no")]))
    raised = await failure_of(runner_of(sink), [queue])
    assert raised.group_contains(SinkError)
    assert not raised.group_contains((OSError, ValueError))


async def test_a_sink_that_does_not_start() -> None:
    class Broken(Memory):
        async def __aenter__(self) -> Self:
            raise OSError("no JVM")

    runner = runner_of(Broken())
    with pytest.raises(SinkError, match="sink memory: OSError: no JVM"):  # noqa: PT012
        async with running(runner, []) as task:
            await until(task.done)
            await task
    async with asyncio.timeout(LIMIT):
        await runner.stop(LIMIT)  # a stop at this point does not wait


async def test_a_sink_that_fails_to_end_after_a_failed_write() -> None:
    """The error has the reason for the failed write, and is a SinkError."""

    class Broken(Memory):
        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            raise OSError("the JVM is gone")

    claim, queue = progress(), ChunkQueue(1 << 20)
    put(queue, chunk(claim, 0, 5))
    with pytest.raises((ExceptionGroup, KzConsumerError)) as raised:  # noqa: PT012
        async with running(runner_of(Broken(ValueError("no"))), [queue]) as task:
            await until(task.done)
            await task
    assert isinstance(raised.value, SinkError) or raised.group_contains(SinkError)


async def test_a_stream_error_is_raised_after_the_records_before_it() -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory()
    commits = Owned([claim])
    put(queue, chunk(claim, 0, 3), failure(claim, 3, OffsetLostError("gone")))
    raised = await failure_of(runner_of(sink, commits, time=60), [queue])
    assert raised.group_contains(OffsetLostError)
    assert (sink.ranges, commits.made[-1]) == ([(0, 0, 3)], [3])


async def test_a_stream_error_is_raised_even_while_other_partitions_flow() -> None:
    bad, good, sink = progress(0), progress(1), Memory()
    queues = [ChunkQueue(1 << 20), ChunkQueue(1 << 20)]
    put(queues[0], failure(bad, 0, OffsetLostError("gone")))
    put(queues[1], chunk(good, 0, 1))
    offset = 1

    class Busy(Owned):
        async def commit(self) -> None:
            nonlocal offset  # the fetcher delivers more during every write
            put(queues[1], chunk(good, offset, offset + 1))
            offset += 1
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    runner = runner_of(sink, Busy())
    runner.feed(queues)
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(1):
            await runner.run()
    assert raised.group_contains(OffsetLostError)


async def test_queues_that_are_closed() -> None:
    """The member has left: no more chunks arrive, and the runner waits to be stopped."""
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Memory()
    put(queue, chunk(claim, 0, 3))
    async with running(runner_of(sink), [queue]) as task:
        await until(lambda: claim.processed == 3)
        queue.close()
        await asyncio.sleep(0.02)
        assert not task.done()
    assert sink.events == ["enter", "write", "exit"]


async def test_stop_does_not_wait_until_the_sink_is_asked() -> None:
    claim, queue, sink = progress(), ChunkQueue(1 << 20), Asking()
    put(queue, chunk(claim, 0, 10))
    async with running(runner_of(sink), [queue]):
        await asyncio.sleep(0.05)
    assert sink.events == ["enter", "exit"]


async def test_replays_and_collected_records_are_written_before_a_stream_fails() -> None:
    plain, queue, sink = progress(9), ChunkQueue(1 << 20), Memory(open_gate=False)
    parts = [chunk(progress(number), 0, 3) for number in range(2)]
    replays = [replay_of(part) for part in parts]
    put(queue, chunk(plain, 0, 4))
    others, failing = [ChunkQueue(1 << 20) for _ in replays], ChunkQueue(1 << 20)
    async with running(runner_of(sink, records=4, time=60), [queue, *others, failing]) as task:
        await until(sink.writing.is_set)
        await asyncio.sleep(0.02)  # every stream is waited for
        for other, replay in zip(others, replays, strict=True):
            put(other, chunk(replay, 0, 3))
        put(failing, failure(progress(5), 0, OffsetLostError("gone")))
        await asyncio.sleep(0.02)
        sink.gate.set()
        await until(task.done)
        with pytest.raises(ExceptionGroup) as raised:
            await task
    assert raised.group_contains(OffsetLostError)
    assert sorted(sink.ranges) == [(0, 0, 3), (1, 0, 3), (9, 0, 4)]


async def test_records_below_the_floor_are_written_before_a_stream_fails() -> None:
    small, busy, queue, sink = progress(0), progress(1), ChunkQueue(1 << 20), Memory()
    limits = BatchSettings(max_records=100, max_bytes=1 << 20, max_time=60, min_records=8)
    put(queue, chunk(small, 0, 2), chunk(busy, 0, 8), failure(small, 2, OffsetLostError("gone")))
    raised = await failure_of(SinkRunner("memory", sink, limits, Owned()), [queue])
    assert raised.group_contains(OffsetLostError)
    assert sorted(sink.ranges) == [(0, 0, 2), (1, 0, 8)]
