"""Where one batch stands and what its stages have cost: for the log, and for whoever shows what a member does.

Owns the times of one batch, from its cut on. The sink runner makes one for each and moves it on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from kzconsumer.clock import now
from kzconsumer.sinks.interface import Batch

Stage = Literal["collect", "prepare", "wait", "plan", "write", "commit", "done"]


class BatchStatus:
    """`ranges` and `records` are what is written once that has begun; `written` says that it was not given up.

    `seconds` has an entry for each stage that has ended. "collect" is since the first record was taken; "wait" is what
    lies between stages: for the batch before, for the lease.
    """

    def __init__(self, batch: Batch, collected: float) -> None:
        self.written = False
        self.reduce_to(batch)
        self.seconds: dict[Stage, float] = {"collect": collected}
        self.stage: Stage = "wait"
        self._since = now()

    def __repr__(self) -> str:
        return f"<BatchStatus {self.stage} {self.records} records>"

    def reduce_to(self, batch: Batch) -> None:
        """Only this is left of it; the records themselves are not kept."""
        self.ranges = [str(part.range) for part in batch.ranges]
        self.records = batch.records

    @property
    def for_seconds(self) -> float:
        """How long it has been in its present stage."""
        return now() - self._since

    @contextmanager
    def during(self, stage: Stage) -> Iterator[None]:
        self._enter(stage)
        try:
            yield
        finally:
            self._enter("wait")

    def done(self) -> None:
        self._enter("done")

    def _enter(self, stage: Stage) -> None:
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + self.for_seconds
        self.stage, self._since = stage, now()

    def told(self) -> dict[str, object]:
        """As a line of the log has it."""
        return {"stage": self.stage, "ranges": len(self.ranges), "records": self.records, "seconds": self.rounded}

    @property
    def rounded(self) -> dict[str, float]:
        return {stage: round(spent, 3) for stage, spent in self.seconds.items()}
