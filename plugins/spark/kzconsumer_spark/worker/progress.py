"""Spark's own report of each batch of the query, passed on to the daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kzconsumer_spark.pipe.messages import Progress


class ProgressReports(StreamingQueryListener):
    """Calls `report` some milliseconds after foreachBatch has returned."""

    def __init__(self, report: Callable[[Progress], None], warm_up: str) -> None:
        """`warm_up`: the run whose first batch has no records of ours."""
        self._report = report
        self._warm_up = warm_up

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if (str(progress.runId), progress.batchId) != (self._warm_up, 0):
            self._report(as_message(progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...


def as_message(progress: Any) -> Progress:
    return Progress(
        query=progress.name,
        run=str(progress.runId),
        batch_id=progress.batchId,
        timestamp=progress.timestamp,
        input_rows=progress.numInputRows,
        input_rows_per_second=progress.inputRowsPerSecond,
        processed_rows_per_second=progress.processedRowsPerSecond,
        milliseconds=dict(progress.durationMs),
    )
