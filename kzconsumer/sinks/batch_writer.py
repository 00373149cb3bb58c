"""Writes one batch with the sink: within the lease, until it is written or its partitions are lost.

Records that the sink rejects are handled as `[rejected]` says. Where a replayable sink does not know which records its
destination refuses, they are searched for. With `[sink] on_batch_failure = "quarantine"` a batch that failed
nevertheless is written range by range, and a range that fails alone is kept in the quarantine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import anyio.lowlevel

from kzconsumer.errors import (
    ContentRefusedError,
    DestinationWentBackError,
    KzConsumerError,
    RecordNotWrittenError,
    SinkError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import RangeIdentity
from kzconsumer.offsets.progress import Progress
from kzconsumer.offsets.start_rules import SinkDestination
from kzconsumer.registry.claim_record import spans_of
from kzconsumer.sinks.batch_builder import OwnedBatch
from kzconsumer.sinks.capabilities import Capabilities, require_written
from kzconsumer.sinks.interface import Batch, RangeData, RecordsRejectedError, Rejected, Sink, Steps
from kzconsumer.sinks.quarantine import RangeQuarantine
from kzconsumer.sinks.range_plans import OwnedRanges, RangePlans
from kzconsumer.sinks.sink_failures import sink_failures
from kzconsumer.sinks.sink_rejections import Policy, Rejecting, Separating

log = get_logger("kzconsumer.sink")

# One record has to be decided about, or nothing of the partition may be committed: not failures of a whole range.
_NOT_QUARANTINED = RecordNotWrittenError, DestinationWentBackError


class BatchWriter:
    """A failure while the lease is in doubt does not count: the loss of the lease may be its reason."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        can: Capabilities,
        owned: OwnedRanges,
        plans: RangePlans | None,
        quarantine: RangeQuarantine | None,
        rejected: Policy | None,
    ) -> None:
        self._name = name
        self._sink = sink
        self._can = can
        self._owned = owned
        self._plans = plans
        self._quarantine = quarantine
        require_room = plans.require_room if plans is not None else None
        self._rejecting = Rejecting(owned, rejected, require_room) if rejected is not None else None

    async def write(self, work: OwnedBatch) -> bool:
        """Whether the batch was written as a whole. Ranges written or quarantined are marked. Raises SinkError."""
        try:
            return await self._write_in_lease(work)
        except SinkError as error:
            if self._quarantine is None or isinstance(error, _NOT_QUARANTINED):
                log.error("batch failed, nothing of it is committed", ranges=work.shown)
                raise
            log.warning("batch failed, writing its ranges one by one", reason=str(error))
            batch = work.batch
            for progress, part in work.parts.items():
                follows = tuple(each for each in batch.follows if each.topic_partition == part.topic_partition)
                like = Batch((), batch.is_replay, self._steps_of(progress, batch), follows, batch.found)
                await self._write_alone(OwnedBatch({progress: part}, like), self._quarantine)
            return False

    def _steps_of(self, progress: Progress, batch: Batch) -> Steps | None:
        """Steps of one range: those that are recorded from now on are not done for the others of its batch."""
        if self._plans is None or batch.steps is None:
            return None
        return self._plans.steps([progress], batch.steps.done)

    async def _write_alone(self, work: OwnedBatch, quarantine: RangeQuarantine) -> None:
        """Write one range of a batch that failed, or keep it in the quarantine."""
        (progress,) = work.parts
        if progress.lost:
            return  # the next owner finds its plan, or the stored offset
        try:
            await self._write_in_lease(work)
        except _NOT_QUARANTINED:
            raise
        except SinkError as error:
            (part,) = work.parts.values()
            part = await self._with_records(progress, part, error)
            if progress.lost:
                return  # as above
            kept = await quarantine.keep(part, str(error), partial(self._set_aside, part, work, error))
            if kept is not None:
                log.error(
                    "range quarantined", **part.range._asdict(), records=part.records, reason=str(error), kept=str(kept)
                )
                progress.mark(part.first, part.until)  # no effect if lost: the next owner finds its plan
            else:
                progress.wrote(part.first, part.until)

    async def _with_records(self, progress: Progress, part: RangeData, failure: SinkError) -> RangeData:
        """Raises SinkError if they have to be fetched, and cannot be."""
        if part.fetched:
            return part
        try:
            with_records = await self._owned.fetched(part)
            await self._owned.lose_recreated([progress])  # see `RangePlans.begin`
            return with_records
        except KzConsumerError as error:
            why = f"the sink cannot write it ({failure}), nor can its records be fetched for the quarantine: {error}"
            raise SinkError(f"{part.range}: {why}") from error

    async def _set_aside(self, part: RangeData, work: OwnedBatch, failure: SinkError) -> bool:
        """Whether the range is to be quarantined: then no member publishes it any more.

        False for a range that was published although its write failed. Raises DestinationWentBackError.
        """
        await self._owned.lease.wait()
        if work.lost:
            return False
        if self._plans is None:
            return True
        try:
            await self._require_followed(self._plans.destination, work.batch.follows)
            aside = await self._plans.destination.set_aside(part.identity, part.records)
        except DestinationWentBackError:
            raise
        except SinkError as error:
            doubt = f"and whether the destination has it is unknown: {error}"
            raise SinkError(f"{part.range}: the sink cannot write it ({failure}), {doubt}") from error
        if not aside:
            log.warning("range was published, though its write failed", **part.identity._asdict(), reason=str(failure))
        return aside

    @staticmethod
    async def _require_followed(destination: SinkDestination, follows: Sequence[RangeIdentity]) -> None:
        # A table that knows each partition's end alone would have it behind this range, and hide what it has lost.
        if not destination.remembers or not follows:
            return
        there = await destination.has(follows)
        for each in follows:
            if each not in there:
                raise DestinationWentBackError(each, destination=destination)

    async def _write_in_lease(self, work: OwnedBatch) -> bool:
        """Write a batch, and mark it. False if all its partitions were lost meanwhile."""
        written = False
        searched = False
        refusal: ContentRefusedError | None = None  # the records that are the reason are to be found
        while not written and not work.lost:
            try:
                if refusal is not None:
                    await self._separate(work, refusal)
                    refusal, searched = None, True  # once: what is refused then is refused as a whole
                written = await self._attempt(work)
            except SinkError as error:
                if work.lost:
                    log.warning("batch failed, its partitions are lost", reason=str(error))
                elif not self._owned.lease.held:
                    log.warning("batch failed without the lease, waiting for the lease to retry", reason=str(error))
                elif isinstance(error, ContentRefusedError) and not searched and refusal is None:
                    refusal = error
                else:
                    raise
        if written:
            for progress, part in work.parts.items():
                progress.wrote(part.first, part.until)
        return written

    async def _attempt(self, work: OwnedBatch) -> bool:
        """Call the sink, with the lease, until it has written the batch, or the rest; False if all of it was lost."""
        scope = anyio.CancelScope()
        watched = list(work.parts)

        def give_up(part: RangeData) -> None:
            self._can.range_lost(part)
            if work.lost:
                scope.cancel()

        write: Callable[[Batch], Awaitable[object]] = self._sink.write  # a plugin may return what it should not
        with scope:
            for progress, part in work.parts.items():
                progress.when_lost(partial(give_up, part))
            try:
                # It was held before the batch was planned, but this process may have been suspended since.
                await self._owned.lease.wait()
                while work.parts:
                    try:
                        with sink_failures(self._name):
                            require_written(f"sink {self._name}: `write`", await write(work.batch))
                    except RecordsRejectedError as error:
                        with sink_failures(self._name):
                            if await self._reject(work, error):
                                break
                    else:
                        break
            except DestinationWentBackError as error:
                where = f"sink {self._name}" if self._plans is None else self._plans.destination
                raise DestinationWentBackError(error.lacking, error.ends, where) from error
            finally:
                for progress in watched:
                    progress.when_lost(None)
        if scope.cancelled_caught:
            log.warning("batch dropped, its partitions are lost", ranges=work.shown)
        return not scope.cancelled_caught

    async def _reject(self, work: OwnedBatch, error: RecordsRejectedError) -> bool:
        """Carry out `[rejected]`. Whether the batch is written then; otherwise it is to be written without them.

        It is if the sink had the records at hand, and no plan: it has written all others. One that fetches for itself
        finds records that it cannot use before it writes any, in either case.

        The order is what keeps a replay the same: dead letters are durable before the offsets are recorded in the plans
        (a member that dies in between lets them be written again), and they are recorded before anything of the rest is
        published, so that every later write of the range leaves out the same records and repeats no letter.
        """
        if self._rejecting is None:
            raise SinkError(f"sink {self._name}: {error}, and single records cannot be rejected here") from error
        offsets = await self._rejecting.carry_out(work.parts, error)
        if self._plans is None and self._can.wants != "ranges":
            return True
        if not offsets and not any(progress.lost for progress in work.parts):
            raise SinkError(f"sink {self._name}: no record is rejected by a write that rejects records") from error
        spans = {progress: spans_of(each) for progress, each in offsets.items()}
        held = [progress for progress in spans if not progress.lost]
        ours = await self._plans.reject(spans) if self._plans is not None else held
        left = {}
        for progress, part in work.parts.items():
            if progress not in spans:
                if not progress.lost:
                    left[progress] = part
            elif progress in ours and (rest := part.without(spans[progress])).records:
                left[progress] = rest
            elif progress in ours:
                progress.mark(part.first, part.until)  # nothing of it is left to be published
        work.keep(left)
        return False

    async def _separate(self, work: OwnedBatch, refusal: ContentRefusedError) -> None:
        """Find the records that the destination refuses, and reject them. Raises `refusal` if there are none.

        Of a claim that is lost meanwhile nothing is known: they may be its next owner's.
        """
        if self._can.trial is None or self._plans is None or self._rejecting is None:
            raise refusal
        separating = Separating(self._can.trial)
        found = []
        with sink_failures(self._name):
            for progress, part in work.parts.items():
                found += await _while_owned(progress, partial(separating.refused, part))
            if found:
                await self._reject(work, RecordsRejectedError(found))
                return
        left = {progress: part for progress, part in work.parts.items() if not progress.lost}
        if not left or len(left) == len(work.parts):
            raise refusal
        work.keep(left)


async def _while_owned(progress: Progress, search: Callable[[], Awaitable[list[Rejected]]]) -> list[Rejected]:
    """What `search` finds; nothing if the claim is lost, which ends it: each of its trials may be a job of Spark."""
    found: list[Rejected] = []
    with anyio.CancelScope() as scope:
        progress.when_lost(scope.cancel)
        try:
            await anyio.lowlevel.checkpoint()  # it may be lost already
            found = await search()
        finally:
            progress.when_lost(None)
    return [] if progress.lost else found
