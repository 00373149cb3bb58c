"""Spark's own report of each batch of the query, passed on to the daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener

from kzconsumer_spark.pipe.messages import Progress


class ProgressReports(StreamingQueryListener):
    """Calls `report` some milliseconds after foreachBatch has returned.

    Takes the JSON of each report: PySpark copies them field by field, which costs a batch 60 ms of the JVM's processor
    time, since at the end of each map Java looks for classes that it does not have.
    """

    def __init__(self, report: Callable[[Progress], None], warm_up: str) -> None:
        """`warm_up`: the run whose first batch has no records of ours."""
        self._report = report
        self._warm_up = warm_up

    @property
    def _jlistener(self) -> Any:
        """What PySpark registers with the JVM: this, without its adapter that copies reports."""
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)  # type: ignore[union-attr]

    class Java:
        """For Py4J."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        """`event` is Java's."""
        report = msgspec.json.decode(event.progress().json(), type=_Report)
        if (report.run_id, report.batch_id) != (self._warm_up, 0):
            self._report(report.as_message())

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


class _Report(msgspec.Struct, rename="camel"):
    """Of `StreamingQueryProgress.json`, which leaves out rates that are not known."""

    run_id: str
    batch_id: int
    timestamp: str
    num_input_rows: int
    duration_ms: dict[str, int]
    name: str | None = None
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0

    def as_message(self) -> Progress:
        return Progress(
            query=self.name,
            run=self.run_id,
            batch_id=self.batch_id,
            timestamp=self.timestamp,
            input_rows=self.num_input_rows,
            input_rows_per_second=self.input_rows_per_second,
            processed_rows_per_second=self.processed_rows_per_second,
            milliseconds=self.duration_ms,
        )
