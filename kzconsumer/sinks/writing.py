"""Writes one batch with the sink: within the lease, until it is written or its partitions are lost.

With `[sink] on_batch_failure = "quarantine"` a batch that failed is written range by range, and a range that fails
alone is kept in the quarantine. Records that the sink rejects are handled as `[rejected]` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias

import anyio

from kzconsumer.errors import DestinationWentBackError, RecordRejectedError, SinkError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.rejected.rejects import RejectedRecord
from kzconsumer.sinks.failures import sink_failures
from kzconsumer.sinks.interface import Batch, RangeData, RecordsRejectedError, Rejected, Sink
from kzconsumer.sinks.owned_ranges import OwnedRanges
from kzconsumer.sinks.planning import RangePlans
from kzconsumer.sinks.quarantine import RangeQuarantine
from kzconsumer.sinks.steps import Steps
from kzconsumer.streams.message import Message

log = get_logger("kzconsumer.sink")

HandleRejected: TypeAlias = Callable[[Sequence[RejectedRecord], Callable[[], bool]], Awaitable[bool]]

# Rejected records that are handled at a time.
_PIECE = 500


class BatchWriter:
    """A failure while the lease is in doubt does not count: the loss of the lease may be its reason."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        range_lost: Callable[[RangeData], None],
        owned: OwnedRanges,
        plans: RangePlans | None,
        quarantine: RangeQuarantine | None,
        rejected: HandleRejected | None,
    ) -> None:
        self._name = name
        self._sink = sink
        self._owned = owned
        self._plans = plans
        self._quarantine = quarantine
        self._rejected = rejected
        self._range_lost = range_lost

    async def write(self, batch: Batch, claims: list[OffsetTracker]) -> bool:
        """Whether the batch was written as a whole. Ranges written or quarantined are marked. Raises SinkError."""
        try:
            return await self._write_in_lease(batch, claims)
        except SinkError as error:
            if self._quarantine is None or isinstance(error, DestinationWentBackError):
                log.error("batch failed, nothing of it is committed", ranges=[str(part.range) for part in batch.ranges])
                raise
            log.warning("batch failed, writing its ranges one by one", reason=str(error))
            for claim, part in zip(claims, batch.ranges, strict=True):
                follows = tuple(each for each in batch.follows if each.topic_partition == part.topic_partition)
                alone = Batch((part,), batch.is_replay, self._steps_of(claim, batch), follows)
                await self._write_alone(alone, claim, self._quarantine)
            return False

    def _steps_of(self, claim: OffsetTracker, batch: Batch) -> Steps | None:
        """Steps of one range: those that are recorded from now on are not done for the others of its batch."""
        if self._plans is None or batch.steps is None:
            return None
        return self._plans.steps([claim], batch.steps.done)

    async def _write_alone(self, batch: Batch, claim: OffsetTracker, quarantine: RangeQuarantine) -> None:
        """Write one range of a batch that failed, or keep it in the quarantine."""
        if claim.lost:
            return  # the next owner finds its plan, or the stored offset
        await self._owned.lease.wait()
        try:
            await self._write_in_lease(batch, [claim])
        except DestinationWentBackError:
            raise  # nothing of the partition may be committed, so nothing is quarantined
        except SinkError as error:
            (part,) = batch.ranges
            kept = await quarantine.keep(part, str(error), partial(self._set_aside, part, claim, error))
            if kept is not None:
                log.error(
                    "range quarantined", **part.range._asdict(), records=part.records, reason=str(error), kept=str(kept)
                )
                claim.mark(part.first, part.until)  # no effect if lost: the next owner finds its plan
            else:
                _mark_written(claim, part)

    async def _set_aside(self, part: RangeData, claim: OffsetTracker, failure: SinkError) -> bool:
        """Whether the range is to be quarantined: then no member publishes it any more.

        False for a range that was published although its write failed.
        """
        await self._owned.lease.wait()
        if claim.lost:
            return False
        if self._plans is None:
            return True
        try:
            aside = await self._plans.destination.set_aside(part.identity, part.records)
        except SinkError as error:
            doubt = f"and whether the destination has it is unknown: {error}"
            raise SinkError(f"{part.range}: the sink cannot write it ({failure}), {doubt}") from error
        if not aside:
            log.warning("range was published, though its write failed", **part.identity._asdict(), reason=str(failure))
        return aside

    async def _write_in_lease(self, batch: Batch, claims: list[OffsetTracker]) -> bool:
        """Write a batch, and mark it. False if all its partitions were lost meanwhile."""
        written = False
        while not written and not all(claim.lost for claim in claims):
            try:
                written = await self._attempt(batch, claims)
            except SinkError as error:
                if all(claim.lost for claim in claims):
                    log.warning("batch failed, its partitions are lost", reason=str(error))
                elif self._owned.lease.held:
                    raise
                else:
                    log.warning("batch failed without the lease, waiting for the lease to retry", reason=str(error))
                    await self._owned.lease.wait()
        if written:
            for claim, part in zip(claims, batch.ranges, strict=True):
                _mark_written(claim, part)
        return written

    async def _attempt(self, batch: Batch, claims: list[OffsetTracker]) -> bool:
        """One call of the sink; False if it was cancelled, since every partition of the batch was lost."""
        scope = anyio.CancelScope()

        def give_up(part: RangeData) -> None:
            self._range_lost(part)
            if all(claim.lost for claim in claims):
                scope.cancel()

        with scope:
            for claim, part in zip(claims, batch.ranges, strict=True):
                claim.when_lost(partial(give_up, part))
            try:
                with sink_failures(self._name):
                    await self._sink.write(batch)
            except DestinationWentBackError as error:
                where = f"sink {self._name}" if self._plans is None else self._plans.destination
                raise DestinationWentBackError(error.lacking, error.ends, where) from error
            except RecordsRejectedError as error:
                if (
                    self._rejected is None
                    or self._plans is not None
                    or any(p.raw is not None or not p.fetched for p in batch.ranges)
                ):
                    reason = "this sink type cannot reject single records"
                    raise SinkError(f"sink {self._name}: {error}, and {reason}") from error
                await _handle_rejected(self._rejected, batch, error, lambda: all(claim.lost for claim in claims))
            finally:
                for claim in claims:
                    claim.when_lost(None)
        if scope.cancelled_caught:
            log.warning("batch dropped, its partitions are lost", ranges=[str(part.range) for part in batch.ranges])
        return not scope.cancelled_caught


def _mark_written(claim: OffsetTracker, part: RangeData) -> None:
    claim.written = part.first, part.until
    claim.mark(part.first, part.until)


async def _handle_rejected(
    handle: HandleRejected, batch: Batch, rejected: RecordsRejectedError, lost: Callable[[], bool]
) -> None:
    """Return when each record is handled as `[rejected]` says, or lost. Raises SinkError if its policy is "fail"."""
    found = _found(batch, rejected.records)
    try:
        while piece := list(islice(found, _PIECE)):
            if not await handle(piece, lost):
                return
    except (RecordRejectedError, ValueError) as error:
        raise SinkError(str(error)) from error


def _found(batch: Batch, records: Sequence[Rejected]) -> Iterator[RejectedRecord]:
    parts = {part.topic_partition: part for part in batch.ranges}
    for record in records:
        at = TopicPartition(record.topic, record.partition)
        message = _message(parts[at], record.offset) if at in parts else None
        if message is None:
            raise ValueError(f"the sink rejects {at} at offset {record.offset}, which is not in its batch")
        yield RejectedRecord(message, record.error_class, record.reason)


def _message(part: RangeData, offset: int) -> Message | None:
    for piece in part.pieces:
        row = piece.rows_below(offset)
        for message in piece.slice(row, row + 1).messages():
            if message.offset == offset:
                return message
    return None
