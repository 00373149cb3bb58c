"""What one stream has handed out and the application has not acknowledged: records per claim, and which batches.

Only streams with explicit acknowledgement count records.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING

import anyio

from kzconsumer.clock import now
from kzconsumer.logs.logger import get_logger
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.streams.message import HandedOut

if TYPE_CHECKING:
    import pyarrow as pa

log = get_logger("kzconsumer")

# Seconds for which a stream waits for room before it is logged, and until it is logged again.
PATIENCE = 10.0
LOG_AGAIN = 60.0


class HandedOutBatches:
    """The range of each batch that the application still holds: its columns do not say where the range begins."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[pa.RecordBatch], HandedOut]] = {}

    def add(self, batch: pa.RecordBatch, handed_out: HandedOut) -> None:
        key = id(batch)
        self._known[key] = weakref.ref(batch, lambda _: self._known.pop(key, None)), handed_out

    def find(self, batch: pa.RecordBatch) -> HandedOut | None:
        known = self._known.get(id(batch))
        return known[1] if known is not None else None


class Unacknowledged:
    """At most about `most` records: a batch is handed out whole if there is room for one record."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._records: dict[OffsetTracker, int] = {}
        self.total = 0
        self._change = anyio.Event()

    @property
    def room(self) -> int:
        return max(0, self._most - self.total)

    def add(self, claim: OffsetTracker, records: int) -> None:
        """Count records; a negative number for records that were made and not handed out after all."""
        if claim not in self._records and records > 0:
            self._records[claim] = 0
            claim.when_lost(partial(self._forget, claim))
        if claim in self._records:
            self._records[claim] += records
            self.total += records

    def remove(self, claim: OffsetTracker, records: int) -> None:
        """Count records as acknowledged."""
        self.add(claim, -records)
        self._change.set()

    def _forget(self, claim: OffsetTracker) -> None:
        """The claim is lost: its records are not waited for."""
        self.total -= self._records.pop(claim, 0)
        self._change.set()

    async def until_room(self) -> None:
        """Wait for room; a long wait is logged with the claim that has most records unacknowledged."""
        began, patience = now(), PATIENCE
        while not self.room:
            self._change = anyio.Event()
            with anyio.move_on_after(patience) as waiting:
                await self._change.wait()
            if waiting.cancelled_caught:
                patience = LOG_AGAIN
                slowest = max(self._records, key=lambda claim: self._records[claim])
                log.warning(
                    "stream waiting, too many records unacknowledged",
                    records=self.total,
                    most=self._most,
                    seconds=round(now() - began, 1),
                    **slowest.topic_partition._asdict(),
                    first_unacknowledged=slowest.processed,
                )
