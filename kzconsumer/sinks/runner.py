"""Writes the records of all streams of a member to its sink: collect, cut, plan, write, commit.

The next batch is collected while one is written. When it is full, the queues fill and fetching pauses: that is the
backpressure of a slow sink. A record is processed once `write` has returned.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Literal, NamedTuple

import anyio
from anyio.abc import TaskStatus

from kzconsumer.clock import now
from kzconsumer.counters import Timing
from kzconsumer.errors import CoordinatorError, SessionExpiredError, ZooKeeperError
from kzconsumer.logs.logger import get_logger
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.batch_builder import BatchBuilder, OwnedBatch
from kzconsumer.sinks.batch_writer import BatchWriter
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.interface import Batch, Sink
from kzconsumer.sinks.quarantine import RangeQuarantine
from kzconsumer.sinks.range_plans import OwnedRanges, RangePlans
from kzconsumer.sinks.sink_failures import sink_failures
from kzconsumer.sinks.sink_rejections import Policy
from kzconsumer.streams.chunk_queue import ChunkQueue, EndOfStream, ManyQueues

#: How many of the latest batches are kept.
LAST = 20

Stage = Literal["collect", "wait", "plan", "write", "commit", "done"]


class BatchStatus:
    """`ranges` and `records`: what is written, once that has begun. `written`: it was written as a whole.

    `seconds` has an entry for each stage that has ended. "collect" is since the first record was taken; "wait" is the
    time between stages: for the previous batch, for the lease.
    """

    def __init__(self, batch: Batch, collected: float) -> None:
        self.written = False
        self.reduce_to(batch)
        self.seconds: dict[Stage, float] = {"collect": collected}
        self.stage: Stage = "wait"
        self._since = now()
        self.ended: float | None = None
        """Seconds since 1970."""

    def reduce_to(self, batch: Batch) -> None:
        """Only these ranges are left of it."""
        self.ranges = [str(part.range) for part in batch.ranges]
        self.records = batch.records

    @contextmanager
    def during(self, stage: Stage) -> Iterator[None]:
        self._enter(stage)
        try:
            yield
        finally:
            self._enter("wait")

    def done(self) -> None:
        self._enter("done")
        self.ended = time.time()

    def _enter(self, stage: Stage) -> None:
        at = now()
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + at - self._since
        self.stage, self._since = stage, at

    def log_fields(self) -> dict[str, object]:
        return {"stage": self.stage, "ranges": len(self.ranges), "records": self.records, "seconds": self.rounded}

    @property
    def rounded(self) -> dict[str, float]:
        return {stage: round(spent, 3) for stage, spent in self.seconds.items()}


class BatchCounters:
    """Counts of ended batches."""

    def __init__(self) -> None:
        self.last: deque[BatchStatus] = deque(maxlen=LAST)
        self.records = 0
        self.unwritten = 0
        """Dropped, or not written as a whole."""
        self.stages: dict[Stage, Timing] = {}

    def add(self, status: BatchStatus) -> None:
        self.last.append(status)
        if status.written:
            self.records += status.records
        elif status.records:
            self.unwritten += 1
        for stage, seconds in status.seconds.items():
            self.stages.setdefault(stage, Timing()).add(seconds)


log = get_logger("kzconsumer.sink")


class _Cut(NamedTuple):
    """A batch to be written; `failed` is the error with which its streams end after it."""

    batch: OwnedBatch
    status: BatchStatus
    failed: Exception | None


class SinkRunner:
    """One sink: run as a task, fed when the member has joined, stopped before it leaves."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        limits: BatchSettings,
        owned: OwnedRanges,
        plans: RangePlans | None = None,
        quarantine: RangeQuarantine | None = None,
        rejected: Policy | None = None,
    ) -> None:
        """`plans` is for a replayable sink. `quarantine` keeps ranges that the sink cannot write and that its
        destination does not have; `rejected` handles single records that it rejects."""
        self.name = name
        self._sink = sink
        self._can = capabilities(sink)
        self._owned = owned
        self._plans = plans
        self._writer = BatchWriter(name, sink, self._can, owned, plans, quarantine, rejected)
        self._builder = BatchBuilder(limits, self._can.batch_bytes, self._can.due_records, self._can.wants)
        self.status: BatchStatus | None = None
        """The batch being planned, written or committed; between two of them the last one."""
        self.batches = BatchCounters()
        self._stream_error: Exception | None = None
        self._queues: tuple[ChunkQueue, ...] = ()
        self._fed = anyio.Event()
        self._stopping = False
        self._change = anyio.Event()
        self._room = anyio.Event()
        self._ended = anyio.Event()
        self._waiting = anyio.CancelScope()  # for a batch to be due; `stop` ends it
        self._scope = anyio.CancelScope()

    @property
    def start_limit(self) -> float:
        """See `kzconsumer.sinks.interface.Sink`; 0 if the sink has none."""
        return self._can.start_limit

    @property
    def sink_status(self) -> Mapping[str, object]:
        """What the sink shows of itself."""
        return self._can.status()

    @property
    def busy(self) -> bool:
        """Whether what is queued waits for the sink: it is writing, or the next batch is full."""
        return self._builder.full or (self.status is not None and self.status.stage == "write")

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Enter the sink, then write what comes from the queues of `feed`, until `stop`.

        Raises SinkError, or the error a stream ended with, after what came before it has been written and committed.
        """
        try:
            with self._scope:
                async with self._opened():
                    task_status.started()
                    await self._fed.wait()
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._collect, ManyQueues(self._queues))
                        await self._write_batches()
                        tasks.cancel_scope.cancel()
        finally:
            self._ended.set()

    def feed(self, queues: Iterable[ChunkQueue]) -> None:
        """The member has joined: take its records from these queues, one for each stream. Call it once."""
        self._queues = tuple(queues)
        self._fed.set()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        """The sink, open. An error while closing does not replace the error that closed it."""
        with sink_failures(self.name):
            await self._sink.__aenter__()
        try:
            yield
        except BaseException as error:
            try:
                await self._sink.__aexit__(type(error), error, error.__traceback__)
            except Exception as late:
                log.error("closing the sink failed", sink=self.name, reason=f"{type(late).__name__}: {late}")
            raise
        with sink_failures(self.name):
            await self._sink.__aexit__(None, None, None)

    def limit(self, limits: BatchSettings) -> None:
        """Replace the limits of batches."""
        self._builder.limit(limits)
        self._change.set()
        self._signal_room()

    async def stop(self, patience: float) -> None:
        """Begin no batch; let the one being written end within `patience` seconds, else cancel it; close the sink."""
        self._stopping = True
        self._waiting.cancel()
        with anyio.move_on_after(patience):
            await self._ended.wait()
        self._scope.cancel()
        await self._ended.wait()

    def _signal_room(self) -> None:
        self._room.set()
        self._room = anyio.Event()

    async def _collect(self, queues: ManyQueues) -> None:
        """One task for all streams, which take turns: whichever asked first would fill each batch alone."""
        while True:
            while self._builder.full:
                await self._room.wait()
            try:
                chunk = await queues.get()
            except EndOfStream:
                return
            if chunk.error is not None:
                self._stream_error = chunk.error
                self._change.set()
                return
            self._builder.add(chunk, now())
            del chunk  # not kept in memory while this waits for the next one
            self._change.set()

    async def _write_batches(self) -> None:
        # A batch, in this order:
        # 1. The lease is held: without it another member may own the partitions, and be writing the same records.
        # 2. Its ranges are handed over and planned (`_begin`). From here on a release waits for the work on them.
        # 3. It is written. If the member dies now, the next owner finds the plans and writes exactly these ranges, and
        #    the destination takes each once. Without plans (the sink is not replayable) records may come twice.
        # 4. The offsets are committed, by which the plans are emptied. If that fails, a later commit includes them.
        # 5. After a replay the partition is continued behind the planned range (`end`); until then nothing else of it
        #    is fetched.
        while (cut := await self._next()) is not None:
            with anyio.CancelScope() as self._waiting:
                await self._owned.lease.wait()
            if self._stopping:
                return
            ours = await self._begin(cut)
            if ours.parts:
                with cut.status.during("write"):
                    cut.status.written = await self._writer.write(ours)
            with cut.status.during("commit"):
                await self._commit()
            if self._plans is not None:
                await self._plans.end(cut.batch)
            cut.status.done()
            self.batches.add(cut.status)
            if cut.status.written:
                self._log(cut.status)
            if cut.failed is not None:
                raise cut.failed

    async def _next(self) -> _Cut | None:
        """The next batch, as soon as it is due. None once stopping."""
        if self._stopping:
            return None
        with anyio.CancelScope() as self._waiting:
            await self._until_due()
            if self._can.asked is not None:
                with sink_failures(self.name):
                    await self._can.asked()
            error = self._stream_error
            began = self._builder.begun
            batch = self._builder.cut(now() if error is None else math.inf)
            failed = None if self._builder else error  # replays go one by one: all that came before it is written
            self._signal_room()
            status = BatchStatus(batch.batch, now() - began if math.isfinite(began) else 0.0)
        return None if self._stopping else _Cut(batch, status, failed)

    async def _until_due(self) -> None:
        """Until a limit is reached or a stream has failed."""
        while self._stream_error is None and (left := self._builder.due_at - now()) > 0:
            self._change = anyio.Event()
            with anyio.move_on_after(left if math.isfinite(left) else None):
                await self._change.wait()

    async def _begin(self, cut: _Cut) -> OwnedBatch:
        """What is to be written of a batch, handed over and planned. Ranges without records are done."""
        self.status = cut.status
        # Claims may have ended since the cut; nothing of theirs was handed over, so their release did not wait.
        whole = cut.batch
        ours = OwnedBatch({progress: part for progress, part in whole.parts.items() if progress.open}, whole.batch)
        for progress, part in ours.parts.items():
            progress.hand_over(part.until)
        if self._plans is not None and ours.parts:
            with cut.status.during("plan"):
                ours = await self._plans.begin(ours)
        for progress, part in ours.parts.items():
            if not part.records:  # control records, gaps
                progress.mark(part.first, part.until)
        ours.keep({progress: part for progress, part in ours.parts.items() if part.records})
        if ours.parts:
            cut.status.reduce_to(ours.batch)
        return ours

    def _log(self, status: BatchStatus) -> None:
        # Planned ranges are logged at info: plans, offsets and the destination are compared by these lines.
        write = log.debug if self._plans is None else log.info
        seconds = status.rounded
        write("batch written", ranges=status.ranges, records=status.records, seconds=seconds, **self._can.last_batch())

    async def _commit(self) -> None:
        try:
            await self._owned.commit()
        except SessionExpiredError:
            pass  # reported by `sessions`; the claims are gone
        except (CoordinatorError, ZooKeeperError) as error:
            log.error("commit failed, the next one retries", reason=str(error), again=True)
