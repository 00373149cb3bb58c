"""Stores the ranges that a replayable sink is about to write as plans in ZooKeeper, and ends replays."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
from crc32c import crc32c

from kzconsumer.errors import RangeChangedError, SessionExpiredError, SinkError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import RangeIdentity
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.registry.claim_record import Plan
from kzconsumer.registry.offset_list import Spans
from kzconsumer.sinks.destination import SinkDestination
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer.sinks.owned_ranges import OwnedRanges
from kzconsumer.sinks.steps import Steps

if TYPE_CHECKING:
    import pyarrow as pa  # loaded for replayable sinks

log = get_logger("kzconsumer.sink")

_NULL = -1  # in place of a length: a null key differs from an empty one


class RangePlans:
    """Plans what a replayable sink is about to write, and checks what it writes again.

    The fingerprint in a plan is that of `destination` when the plan is made: a destination may find its own in what it
    opens. With `refuses_loss` a range is not written again if the log no longer has the records that were planned.
    """

    def __init__(
        self, owned: OwnedRanges, destination: SinkDestination, isolation: str, *, refuses_loss: bool = False
    ) -> None:
        self._owned = owned
        self.destination = destination
        self._isolation = isolation
        self._refuses_loss = refuses_loss

    async def begin(self, batch: Batch, trackers: list[OffsetTracker]) -> tuple[Batch, list[OffsetTracker]]:
        """Returns the part of the batch that may be written: of claims still owned, and planned.

        A replay whose records differ from those planned is logged, or raises RangeChangedError. Raises ZooKeeperError
        when it is unknown whether the plans are stored.
        """
        if batch.is_replay:
            plan = trackers[0].replay
            assert plan is not None
            changed = _changed(batch.ranges[0], plan)
            if changed is not None and self._refuses_loss:
                raise RangeChangedError(f'{changed}. Set [offsets] reset = "smallest" to continue with these')
            if changed is not None:
                part = batch.ranges[0]
                log.error("planned range has changed in the log", **part.range._asdict(), reason=changed)
            ranges = tuple(_led(part.without(plan.left_out), trackers[0]) for part in batch.ranges)
            steps = self.steps(trackers, plan.done)
            return msgspec.structs.replace(batch, ranges=ranges, steps=steps, follows=follows(trackers)), trackers
        parts = dict(zip(trackers, batch.ranges, strict=True))
        try:
            ours = await self._owned.plan(
                {tracker: self._plan(tracker, part) for tracker, part in parts.items() if part.records}
            )
        except SessionExpiredError:
            ours = ()  # reported by `sessions`; the claims are gone
        parts = {tracker: part for tracker, part in parts.items() if tracker in ours or not part.records}
        kept = {tracker: _led(part, tracker) for tracker, part in parts.items()}
        return Batch(tuple(kept.values()), steps=self.steps(kept, ()), follows=follows(kept)), list(kept)

    async def end(self, batch: Batch, trackers: list[OffsetTracker]) -> None:
        """The batch is written, and committed unless the session expired."""
        if batch.is_replay:
            with contextlib.suppress(SessionExpiredError):  # as above
                await self._owned.resume_after_replay(trackers[0])

    def require_room(self, offsets: Mapping[OffsetTracker, Spans]) -> None:
        """Raises SinkError if `reject` would find these records too many."""
        try:
            self._owned.require_room(offsets)
        except ValueError as error:
            raise SinkError(f"rejected: {error}") from error

    async def reject(self, offsets: Mapping[OffsetTracker, Spans]) -> Collection[OffsetTracker]:
        """Store which records are not written with the ranges of these claims; returns the claims still owned.

        Raises SinkError if they are too many, ZooKeeperError.
        """
        try:
            return await self._owned.record_rejected(offsets)
        except SessionExpiredError:
            return ()  # as above
        except ValueError as error:
            raise SinkError(f"rejected: {error}") from error

    def steps(self, trackers: Collection[OffsetTracker], done: Iterable[str]) -> Steps:
        """The steps of a write of these claims' ranges; `done` are known to be done."""

        async def record(step: str) -> bool:
            try:
                return bool(await self._owned.record_step(trackers, step))
            except SessionExpiredError:
                return False  # as above

        return Steps(done, record)

    def _plan(self, tracker: OffsetTracker, part: RangeData) -> Plan:
        led = tracker.leader_epochs.before(part.until)
        return Plan(
            id=uuid.uuid4().hex,
            first=part.first,
            until=part.until,
            offset_version=-1,  # set by the committer
            records=part.records,
            checksum=_checksum(part),
            incarnation=f"{part.incarnation:#x}",
            epoch=part.epoch,
            isolation=self._isolation,
            fingerprint=self.destination.fingerprint,
            leader_epoch=led if led >= 0 else msgspec.UNSET,
        )


def _led(part: RangeData, tracker: OffsetTracker) -> RangeData:
    """With the leader epoch, if the sink fetches the range; of a replay that of its plan."""
    if part.fetched:
        return part
    plan = tracker.replay
    epoch = tracker.leader_epochs.before(part.until) if plan is None else plan.epoch_before_end
    return msgspec.structs.replace(part, leader_epoch=epoch)


def follows(trackers: Iterable[OffsetTracker]) -> tuple[RangeIdentity, ...]:
    """The last range that was written of each claim, if one is known."""
    return tuple(
        RangeIdentity(*each.topic_partition, each.incarnation, each.epoch, *each.written)
        for each in trackers
        if each.written is not None
    )


def _changed(part: RangeData, plan: Plan) -> str | None:
    """How the records of a replay differ from those that were planned; None if they are the same."""
    assert (part.first, part.until) == (plan.first, plan.until), f"{part.range} is not what was planned"
    found = part.records, _checksum(part)
    if found == (plan.records, plan.checksum) or not (found[1] and plan.checksum):
        return None
    return (
        f"{part.topic_partition}: offsets {plan.first} to {plan.until} were planned with {plan.records} records "
        f"(checksum {plan.checksum}) and not committed; the log holds {found[0]} there now (checksum {found[1]})"
    )


def _checksum(part: RangeData) -> str:
    """Empty if the records are not at hand."""
    return checksum(part.batches) if part.fetched else ""


def checksum(batches: Iterable[pa.RecordBatch]) -> str:
    """Of offsets, keys and values in offset order, however they are divided into batches: 40 hexadecimal digits."""
    import pyarrow.compute as pc

    offsets = 0
    lengths = {"key": 0, "value": 0}
    contents = {"key": 0, "value": 0}
    for batch in batches:
        offsets = crc32c(_numbers(batch.column("offset"), 8), offsets)
        for name in lengths:
            column = batch.column(name)
            _, ends_buffer, data = column.buffers()
            if ends_buffer is None or len(column) == 0:
                continue
            lengths[name] = crc32c(
                _numbers(pc.binary_length(cast("pa.BinaryArray", column)).fill_null(_NULL), 4), lengths[name]
            )
            if data is not None:
                ends = memoryview(ends_buffer).cast("B").cast("i")
                begin, end = ends[column.offset], ends[column.offset + len(column)]
                contents[name] = crc32c(memoryview(data)[begin:end], contents[name])
    return "".join(f"{crc:08x}" for crc in (offsets, *lengths.values(), *contents.values()))


def _numbers(column: pa.Array[Any], size: int) -> memoryview:
    """The bytes of a column of numbers of `size` bytes."""
    _, data = column.buffers()
    begin = size * column.offset
    return memoryview(data if data is not None else b"")[begin : begin + size * len(column)]
