"""The stage of each batch and the time its stages took, for the log and the status pages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from kzconsumer.clock import now
from kzconsumer.counters import Timing
from kzconsumer.sinks.interface import Batch

#: How many of the latest batches are kept.
LAST = 20

Stage = Literal["collect", "prepare", "wait", "plan", "write", "commit", "done"]


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
