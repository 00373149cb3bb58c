"""Feeds the member's one sink from all its streams: collect, cut, plan, write, mark, commit.

Owns the sink's lifetime, the batch being collected, the one prepared and the one being written. The daemon runs it. The
next batch is collected while one is written, up to the limits of a batch; a sink that prepares is given it meanwhile,
and another one is collected. Then the queues fill and the fetchers park: a slow sink is its own backpressure. A record
is processed when `write` returned. A sink's exceptions become SinkFailed here.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio
import structlog
from anyio.abc import TaskStatus

from kzconsumer.clock import now
from kzconsumer.errors import CoordinatorFailed, KzConsumerError, SessionExpired, SinkFailed, ZooKeeperError
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.batch_builder import BatchBuilder
from kzconsumer.sinks.batch_status import BatchStatus, BatchTally
from kzconsumer.sinks.interface import Batch, RangeData, RecordsRejected, Sink, wanted_by
from kzconsumer.sinks.owned_ranges import OwnedRanges
from kzconsumer.sinks.planning import RangePlans
from kzconsumer.sinks.quarantine import Quarantine
from kzconsumer.sinks.rejections import Settle, settle_rejected
from kzconsumer.sinks.steps import StepNotRecorded, Steps
from kzconsumer.streams.chunk_queue import ChunkQueue, EndOfStream

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger("kzconsumer.sink")


class _Cut(NamedTuple):
    """A batch on its way; `failed` is why its streams end behind it."""

    batch: Batch
    trackers: list[OffsetTracker]
    status: BatchStatus
    failed: Exception | None


class SinkRunner:
    """One sink's life: run as a task, fed when the member has joined, stopped before it leaves."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        limits: BatchSettings,
        owned: OwnedRanges,
        plans: RangePlans | None = None,
        quarantine: Quarantine | None = None,
        settle: Settle | None = None,
    ) -> None:
        """`plans` is for a replayable sink. `quarantine` keeps ranges that the sink cannot write and that its
        destination does not have; `settle` handles single records that it rejects."""
        self._name = name
        self._owned = owned
        self._plans = plans
        self._quarantine = quarantine
        self._settle = settle
        self._sink = sink
        self._prepare: Callable[[Batch], Awaitable[None]] | None = getattr(sink, "prepare", None)
        self._builder = BatchBuilder(limits, wanted_by(sink))
        self.status: BatchStatus | None = None
        """The batch being planned, written or committed; between two of them the last one."""
        self.batches = BatchTally()
        self._stream_error: Exception | None = None
        self._queues: tuple[ChunkQueue, ...] = ()
        self._fed = anyio.Event()
        self._stopping = False
        self._change = anyio.Event()
        self._room = anyio.Event()
        self._ended = anyio.Event()
        self._waiting = anyio.CancelScope()  # for a batch to be due; `stop` ends it
        self._scope = anyio.CancelScope()

    def __repr__(self) -> str:
        return f"<SinkRunner {self._name} {self._builder}>"

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Enter the sink, then write what comes from the queues of `feed`, until `stop`.

        Raises SinkFailed, or the error a stream ended with, after what came before it has been written and committed.
        """
        try:
            with self._scope:
                async with self._opened():
                    task_status.started()
                    await self._fed.wait()
                    async with anyio.create_task_group() as tasks:
                        for queue in self._queues:
                            tasks.start_soon(self._collect, queue)
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
        """The sink, open. What it does while closing never hides why it is closed."""
        began = now()
        log.info("sink starts", sink=self._name)
        with self._mapped():
            await self._sink.__aenter__()
        log.info("sink ready", sink=self._name, seconds=round(now() - began, 3))
        try:
            yield
        except BaseException as error:
            try:
                await self._sink.__aexit__(type(error), error, error.__traceback__)
            except Exception as late:
                log.error("the sink did not close", sink=self._name, reason=f"{type(late).__name__}: {late}")
            raise
        with self._mapped():
            await self._sink.__aexit__(None, None, None)

    def limit(self, limits: BatchSettings) -> None:
        """Cut by other limits from now on."""
        self._builder.limit(limits)
        self._change.set()
        self._tell_of_room()

    async def stop(self, patience: float) -> None:
        """Begin no batch; let the one being written end within `patience` seconds, else cancel it; close the sink."""
        self._stopping = True
        self._waiting.cancel()
        with anyio.move_on_after(patience):
            await self._ended.wait()
        self._scope.cancel()
        await self._ended.wait()

    def _tell_of_room(self) -> None:
        self._room.set()
        self._room = anyio.Event()

    async def _collect(self, queue: ChunkQueue) -> None:
        while True:
            while self._builder.full:
                await self._room.wait()
            try:
                chunk = await queue.get()
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
        following: _Cut | None = None

        async def prepare_next() -> None:
            nonlocal following
            following = await self._next()

        while not self._stopping and (cut := following or await self._next()) is not None:
            following = None
            with anyio.CancelScope() as self._waiting:
                await self._owned.lease.wait()
            if self._stopping:
                return
            async with anyio.create_task_group() as tasks:
                batch, claims = await self._begin(cut)
                if self._prepare is not None and cut.failed is None:
                    tasks.start_soon(prepare_next)  # not sooner: `write` has yet to take what was prepared for it
                if claims:
                    await self._write(cut, batch, claims)
                with cut.status.during("commit"):
                    await self._commit()
                if self._plans is not None:
                    await self._plans.end(cut.batch, cut.trackers)
                cut.status.done()
                self.batches.add(cut.status)
                if cut.status.written:
                    self._tell(cut.status)
                if cut.failed is not None:
                    raise cut.failed

    async def _next(self) -> _Cut | None:
        """The next batch, as soon as it is due; prepared, where the sink does that. None once stopping."""
        if self._stopping:
            return None
        with anyio.CancelScope() as self._waiting:
            await self._until_due()
            error = self._stream_error
            began = self._builder.begun
            batch, trackers = self._builder.cut(now() if error is None else math.inf)
            failed = None if self._builder else error  # replays go one by one: all that came before it is written
            self._tell_of_room()
            status = BatchStatus(batch, now() - began if math.isfinite(began) else 0.0)
            if self._prepare is not None and batch.records:
                with status.during("prepare"):
                    await self._prepared(self._prepare, _with_records(batch))
        return None if self._stopping else _Cut(batch, trackers, status, failed)

    async def _until_due(self) -> None:
        """Until a limit is reached or a stream has failed."""
        while self._stream_error is None and (left := self._builder.due_at - now()) > 0:
            self._change = anyio.Event()
            with anyio.move_on_after(left if math.isfinite(left) else None):
                await self._change.wait()

    async def _prepared(self, prepare: Callable[[Batch], Awaitable[None]], batch: Batch) -> None:
        try:
            with self._mapped():
                await prepare(batch)
        except KzConsumerError as error:
            log.warning("batch not prepared: its write has to do without", reason=str(error))

    async def _begin(self, cut: _Cut) -> tuple[Batch, list[OffsetTracker]]:
        """What is to be written of a batch, handed over and planned, and its claims; without any, nothing is."""
        self.status = cut.status
        # Claims may have ended since the cut; nothing of theirs has been handed over, so nobody has waited for it.
        ours = {tracker: part for tracker, part in zip(cut.trackers, cut.batch.ranges, strict=True) if tracker.open}
        if not ours:
            return Batch(()), []
        batch, trackers = Batch(tuple(ours.values()), cut.batch.is_replay), list(ours)
        for tracker, part in ours.items():
            tracker.hand_over(part.until)
        if self._plans is not None:
            with cut.status.during("plan"):
                batch, trackers = await self._plans.begin(batch, trackers)
        claims = []
        for tracker, part in zip(trackers, batch.ranges, strict=True):
            if part.records:
                claims.append(tracker)
            else:
                tracker.mark(part.first, part.until)
        batch = _with_records(batch)
        if claims:
            cut.status.reduce_to(batch)
        return batch, claims

    async def _write(self, cut: _Cut, batch: Batch, claims: list[OffsetTracker]) -> None:
        with cut.status.during("write"):
            try:
                cut.status.written = await self._write_in_lease(batch, claims)
            except SinkFailed as error:
                if self._quarantine is None:
                    log.error("batch failed, nothing of it is committed", ranges=cut.status.ranges)
                    raise
                log.warning("batch failed, its ranges are tried one by one", reason=str(error))
                for claim, part in zip(claims, batch.ranges, strict=True):
                    alone = Batch((part,), batch.is_replay, self._steps_of(claim, batch))
                    await self._write_alone(alone, claim, self._quarantine)

    def _steps_of(self, claim: OffsetTracker, batch: Batch) -> Steps | None:
        """A step that is done for one range alone is not done for the others of its batch."""
        if self._plans is None or batch.steps is None:
            return None
        return self._plans.steps([claim], batch.steps.done)

    async def _write_alone(self, batch: Batch, claim: OffsetTracker, quarantine: Quarantine) -> None:
        """Have the sink write a range of a batch that it could not; one that it cannot write alone is kept aside."""
        if claim.lost:
            return  # somebody else finds its plan, or its stored offset
        await self._owned.lease.wait()
        try:
            await self._write_in_lease(batch, [claim])
        except SinkFailed as error:
            (part,) = batch.ranges
            kept = await quarantine.keep(part, str(error), partial(self._set_aside, part, claim, error))
            if kept is not None:
                event = "records are not in the destination: the sink cannot write them, and they are kept aside"
                log.error(event, **part.range._asdict(), records=part.records, reason=str(error), kept=str(kept))
                claim.mark(part.first, part.until)  # unless it is lost: somebody else finds its plan
            else:
                _mark_written(claim, part)

    async def _set_aside(self, part: RangeData, claim: OffsetTracker, failure: SinkFailed) -> bool:
        """Whether a range is to be kept aside: nobody publishes it then. Not one that is there though its write failed:
        what failed was the answer, or what comes after it."""
        await self._owned.lease.wait()
        if claim.lost:
            return False
        if self._plans is None:
            return True
        try:
            aside = await self._plans.destination.set_aside(part.identity, part.records)
        except SinkFailed as error:
            doubt = f"nor can it be told whether the destination has it: {error}"
            raise SinkFailed(f"{part.range}: the sink cannot write it ({failure}), {doubt}") from error
        if not aside:
            log.warning(
                "range was published, though its write failed", range=part.identity._asdict(), reason=str(failure)
            )
        return aside

    async def _write_in_lease(self, batch: Batch, claims: list[OffsetTracker]) -> bool:
        """Have the sink write a batch, and mark it. A failure without the lease says nothing: it may be the reason.

        False when it was given up, or failed, with all its partitions lost.
        """
        written = False
        while not written and not all(claim.lost for claim in claims):
            try:
                written = await self._written(batch, claims)
            except SinkFailed as error:
                if all(claim.lost for claim in claims):
                    log.warning("batch failed, its partitions are lost", reason=str(error))
                elif self._owned.lease.held:
                    raise
                else:
                    log.warning("batch failed without the lease, trying again with it", reason=str(error))
                    await self._owned.lease.wait()
        if written:
            for claim, part in zip(claims, batch.ranges, strict=True):
                _mark_written(claim, part)
        return written

    def _tell(self, status: BatchStatus) -> None:
        # What is planned is worth a line: it is what plans, offsets and the destination are compared by.
        tell = log.debug if self._plans is None else log.info
        said = getattr(self._sink, "last_batch", {})
        tell("batch written", ranges=status.ranges, records=status.records, seconds=status.rounded, **said)

    async def _written(self, batch: Batch, claims: list[OffsetTracker]) -> bool:
        """Have the sink write a batch; False when it was given up, since every partition of it has been lost."""
        scope = anyio.CancelScope()

        def give_up() -> None:
            if all(claim.lost for claim in claims):
                scope.cancel()

        with scope:
            for claim in claims:
                claim.when_lost(give_up)
            try:
                with self._mapped():
                    await self._sink.write(batch)
            except RecordsRejected as rejected:
                if self._settle is None or self._plans is not None or any(p.raw is not None for p in batch.ranges):
                    raise SinkFailed(f"sink {self._name}: {rejected}, and it is of a kind that cannot") from rejected
                await settle_rejected(self._settle, batch, rejected, lambda: all(claim.lost for claim in claims))
            finally:
                for claim in claims:
                    claim.when_lost(None)
        if scope.cancelled_caught:
            log.warning("batch given up: its partitions are lost", ranges=[str(part.range) for part in batch.ranges])
        return not scope.cancelled_caught

    async def _commit(self) -> None:
        try:
            await self._owned.commit()
        except SessionExpired:
            pass  # reported by `sessions`; the claims are gone
        except (CoordinatorFailed, ZooKeeperError) as error:
            log.error("commit failed, trying again with the next", reason=str(error), again=True)

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except (StepNotRecorded, ZooKeeperError) as error:  # of a step: it is the write that fails
            raise SinkFailed(f"sink {self._name}: {error}") from error
        except KzConsumerError:
            raise
        except Exception as error:
            raise SinkFailed(f"sink {self._name}: {type(error).__name__}: {error}") from error


def _mark_written(claim: OffsetTracker, part: RangeData) -> None:
    claim.written = part.first, part.until
    claim.mark(part.first, part.until)


def _with_records(batch: Batch) -> Batch:
    """What the sink is given: ranges without records (control records, holes) are done as they are.

    Who wants bytes is told of holes.
    """
    return Batch(tuple(part for part in batch.ranges if part.records), batch.is_replay, batch.steps)
