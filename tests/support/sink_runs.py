"""A sink whose writes a test holds back or has fail, and its runner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import pytest

from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.records.checksums import contents_of
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.interface import Batch
from kzconsumer.sinks.range_plans import RangePlans
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.owned_ranges import Nothing, Owned
from tests.support.plans import plan_of

LIMIT = 5.0


class Memory:
    """A sink that keeps batches in a list. A test may hold its writes back, or have them fail."""

    def __init__(self, error: BaseException | None = None, *, open_gate: bool = True) -> None:
        self.events: list[str] = []
        self.batches: list[Batch] = []
        self.gate = asyncio.Event()
        self.writing = asyncio.Event()
        self.error = error
        if open_gate:
            self.gate.set()

    async def __aenter__(self) -> Self:
        self.events.append("enter")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.events.append("exit")

    async def write(self, batch: Batch) -> None:
        self.writing.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.events.append("cancelled")
            raise
        if self.error is not None:
            raise self.error
        self.batches.append(batch)
        self.events.append("write")

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        return [(part.partition, part.first, part.until) for batch in self.batches for part in batch.ranges]


def runner_of(
    sink: Memory, owned: Owned | None = None, *, records: int = 1000, size: int = 1 << 20, time: float = 0.02
) -> SinkRunner:
    limits = BatchSettings(max_records=records, max_bytes=size, max_time=time)
    return SinkRunner("memory", sink, limits, owned or Owned())


def planning(sink: Memory, owned: Owned, *, records: int) -> SinkRunner:
    """Of a replayable sink."""
    limits = BatchSettings(max_records=records, max_bytes=1 << 20, max_time=60)
    return SinkRunner("memory", sink, limits, owned, RangePlans(owned, Nothing(), "read_committed"))


@asynccontextmanager
async def running(runner: SinkRunner, queues: Iterable[ChunkQueue]) -> AsyncIterator[asyncio.Task[None]]:
    """The runner's task, entered and fed; stopped at the end if it is still running."""
    runner.feed(queues)
    task = asyncio.create_task(runner.run())
    try:
        yield task
        if not task.done():
            async with asyncio.timeout(LIMIT):
                await runner.stop(LIMIT)
                await task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.002)


def replay_of(part: Chunk) -> Progress:
    """The claim whose plan is just this chunk, not committed yet."""
    batch = part.records.columns()
    plan = plan_of(part.first, part.until, records=batch.num_rows, checksum=contents_of([batch]).checksum)
    return Progress(part.progress.topic_partition, part.first, replay=plan)


async def failure_of(runner: SinkRunner, queues: Iterable[ChunkQueue]) -> pytest.ExceptionInfo[ExceptionGroup[Any]]:
    """With what it ends, fed from these queues."""
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012
        async with running(runner, queues) as task:
            await until(task.done)
            await task
    return raised


class Asking(Memory):
    """A sink that takes a batch when a test sets `wants_one`."""

    def __init__(self) -> None:
        super().__init__()
        self.wants_one = asyncio.Event()

    async def asked(self) -> None:
        await self.wants_one.wait()
