"""The destination `function` in the worker: calls the user's function as foreachBatch does, never without rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from kzconsumer_files.writer import Written
from kzconsumer_spark.function.batch import FunctionBatch, function_range, require_done, takes_batch
from kzconsumer_spark.function.step_recorder import StepRecorder
from kzconsumer_spark.ranges.batch import SparkBatch
from kzconsumer_spark.ranges.lease import Permission
from kzconsumer_spark.ranges.tags import Shaping


class FunctionDestination:
    """Calls `function(df, batch_id)` or `function(df, batch_id, batch)`. Once it returns, the batch is durable.

    `df` is the query's own frame, shaped as the settings of columns require.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        scope: str,
        lease: Permission,
        shaping: Shaping,
        steps: StepRecorder,
    ) -> None:
        self._function = function
        self._takes_batch = takes_batch(function)
        self._scope = scope
        self._lease = lease
        self._shaping = shaping
        self._steps = steps

    def write(self, batch: SparkBatch) -> Written:
        rows = sum(part.records for part in batch.ranges)
        if rows:
            frame = self._shaping.shape(batch.frame, batch.ranges).frame
            if self._shaping.has_rows(frame):
                self._call(frame, batch)
        return Written(rows, len(batch.ranges), 0)

    def trial(self, batch: SparkBatch) -> None:
        raise NotImplementedError("what a function does stays")

    def close(self) -> None:
        return None

    def _call(self, frame: DataFrame, written: SparkBatch) -> None:
        if not self._takes_batch:
            require_done(self._function(frame, written.number))
            return
        batch = FunctionBatch(
            [function_range(part, self._scope) for part in written.ranges if part.records],
            is_replay=self._steps.batch.is_replay,
            done=self._steps.batch.steps,
            before_step=self._lease.require,
            record=self._recorded,
        )
        try:
            require_done(self._function(frame, written.number, batch))
        finally:
            batch.close()

    def _recorded(self, step: str) -> None:
        """With what was read by then: a replay that finds other records would do the steps that are left with them."""
        self._lease.report_read()
        self._steps.record(step)
