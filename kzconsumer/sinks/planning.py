"""Before and after each write to a replayable sink: the plan that names the ranges in flight, and where a replay ends.

Owns no state. The sink runner calls it. What ZooKeeper holds is the member's to write; it is given as calls.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import msgspec
import structlog

from kzconsumer.errors import RangeChanged, SessionExpired
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.registry.claim_record import Plan
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer.sinks.range_checksum import checksum
from kzconsumer.sinks.steps import Steps

log = structlog.get_logger("kzconsumer.sink")


class Planning:
    """`put` has plans stand, `record_step` has those in flight say that a step is done; both return the claims that are
    still ours. `go_on` fetches on behind a replayed range.

    `fingerprint` is the destination's, asked when a plan is made: a destination may find its own in what it opens. With
    `refuses_loss` a range that is not what was planned any more is not written.
    """

    def __init__(
        self,
        fingerprint: Callable[[], str],
        isolation: str,
        put: Callable[[Mapping[OffsetTracker, Plan]], Awaitable[Collection[OffsetTracker]]],
        go_on: Callable[[OffsetTracker], Awaitable[None]],
        record_step: Callable[[Collection[OffsetTracker], str], Awaitable[Collection[OffsetTracker]]],
        *,
        refuses_loss: bool = False,
    ) -> None:
        self._fingerprint = fingerprint
        self._isolation = isolation
        self._put = put
        self._go_on = go_on
        self._refuses_loss = refuses_loss
        self._record_step = record_step

    async def begin(self, batch: Batch, trackers: list[OffsetTracker]) -> tuple[Batch, list[OffsetTracker]]:
        """Returns the part of the batch that may be written, of claims that are still ours, and planned.

        A replay of other records than were planned is told with its offsets, or RangeChanged is raised. Raises
        ZooKeeperError when it is not known whether the plans stand.
        """
        if batch.is_replay:
            plan = trackers[0].replay
            assert plan is not None
            changed = _changed(batch.ranges[0], plan)
            if changed is not None and self._refuses_loss:
                raise RangeChanged(f'{changed}. Set [offsets] reset = "smallest" to go on with these')
            if changed is not None:
                part = batch.ranges[0]
                log.error("a planned range is written as the log has it now", **part.range._asdict(), reason=changed)
            return msgspec.structs.replace(batch, steps=self.steps(trackers, plan.done)), trackers
        parts = dict(zip(trackers, batch.ranges, strict=True))
        try:
            ours = await self._put({tracker: self._plan(part) for tracker, part in parts.items() if part.records})
        except SessionExpired:
            ours = ()  # the connector says so, and the claims are gone
        kept = {tracker: part for tracker, part in parts.items() if tracker in ours or not part.records}
        return Batch(tuple(kept.values()), steps=self.steps(kept, ())), list(kept)

    async def end(self, batch: Batch, trackers: list[OffsetTracker]) -> None:
        """The batch is written, and committed if the session lasts."""
        if batch.is_replay:
            with contextlib.suppress(SessionExpired):  # as above
                await self._go_on(trackers[0])

    def steps(self, trackers: Collection[OffsetTracker], done: Iterable[str]) -> Steps:
        """Those of a write of just these claims' ranges, some of which may be done."""

        async def record(step: str) -> bool:
            try:
                return bool(await self._record_step(trackers, step))
            except SessionExpired:
                return False  # as above

        return Steps(done, record)

    def _plan(self, part: RangeData) -> Plan:
        return Plan(
            id=uuid.uuid4().hex,
            first=part.first,
            until=part.until,
            offset_version=-1,  # known to who writes it
            records=part.records,
            checksum=checksum(part.batches),
            incarnation=f"{part.incarnation:#x}",
            epoch=part.epoch,
            isolation=self._isolation,
            fingerprint=self._fingerprint(),
        )


def _changed(part: RangeData, plan: Plan) -> str | None:
    """What tells the records of a replay from those that were planned."""
    assert (part.first, part.until) == (plan.first, plan.until), f"{part.range} is not what was planned"
    found = part.records, checksum(part.batches)
    if found == (plan.records, plan.checksum):
        return None
    return (
        f"{part.topic_partition}: offsets {plan.first} to {plan.until} were planned with {plan.records} records "
        f"(checksum {plan.checksum}) and not committed; the log holds {found[0]} there now (checksum {found[1]})"
    )
