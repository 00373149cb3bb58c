"""Before and after each write to a replayable sink: the plan that names the ranges in flight, and where a replay ends.

Owns no state. The sink runner calls it. What ZooKeeper holds is the member's to write; it is given as two calls.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping

from kzconsumer.errors import RangeChanged, SessionExpired
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer.sinks.range_checksum import checksum
from kzconsumer.zookeeper.znodes import Plan


class Planning:
    """`put` has plans stand and returns the claims that are still ours; `go_on` fetches on behind a replayed range."""

    def __init__(
        self,
        fingerprint: str,
        isolation: str,
        put: Callable[[Mapping[OffsetTracker, Plan]], Awaitable[Collection[OffsetTracker]]],
        go_on: Callable[[OffsetTracker], Awaitable[None]],
    ) -> None:
        self._fingerprint = fingerprint
        self._isolation = isolation
        self._put = put
        self._go_on = go_on

    async def begin(self, batch: Batch, trackers: list[OffsetTracker]) -> tuple[Batch, list[OffsetTracker]]:
        """Returns the part of the batch that may be written, of claims that are still ours, and planned.

        Raises RangeChanged for a replay of other records than were planned, ZooKeeperError when it is not known whether
        the plans stand.
        """
        if batch.is_replay:
            _require_same(batch.ranges[0], trackers[0].replay)
            return batch, trackers
        parts = dict(zip(trackers, batch.ranges, strict=True))
        try:
            ours = await self._put({tracker: self._plan(part) for tracker, part in parts.items() if part.records})
        except SessionExpired:
            ours = ()  # the connector says so, and the claims are gone
        kept = {tracker: part for tracker, part in parts.items() if tracker in ours or not part.records}
        return Batch(tuple(kept.values())), list(kept)

    async def end(self, batch: Batch, trackers: list[OffsetTracker]) -> None:
        """The batch is written, and committed if the session lasts."""
        if batch.is_replay:
            with contextlib.suppress(SessionExpired):  # as above
                await self._go_on(trackers[0])

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
            fingerprint=self._fingerprint,
        )


def _require_same(part: RangeData, plan: Plan | None) -> None:
    assert plan is not None
    found = part.records, checksum(part.batches)
    if (part.first, part.until, *found) != (plan.first, plan.until, plan.records, plan.checksum):
        raise RangeChanged(
            f"{part.topic_partition}: offsets {plan.first} to {plan.until} were planned with {plan.records} records "
            f"(checksum {plan.checksum}) and not committed; the log holds {found[0]} there now (checksum {found[1]})"
        )
