"""The destination `function` in the worker: calls the user's function with a DataFrame, never one without rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kzconsumer_files.writer import Written
from kzconsumer_spark.function.batch import FunctionBatch, function_range, require_done, takes_batch
from kzconsumer_spark.function.step_recorder import StepRecorder
from kzconsumer_spark.pipe.messages import SpooledRange
from kzconsumer_spark.ranges.lease import Lease
from kzconsumer_spark.ranges.spool_reader import read_spool
from kzconsumer_spark.ranges.tags import Shaping


class FunctionDestination:
    """Calls `function(df, batch_id)` or `function(df, batch_id, batch)`. Once it returns, the batch is durable."""

    def __init__(
        self,
        session: SparkSession,
        function: Callable[..., Any],
        scope: str,
        lease: Lease,
        shaping: Shaping,
        steps: StepRecorder,
    ) -> None:
        self._session = session
        self._function = function
        self._takes_batch = takes_batch(function)
        self._scope = scope
        self._lease = lease
        self._shaping = shaping
        self._steps = steps

    def write(self, number: int, ranges: Sequence[SpooledRange]) -> Written:
        rows = sum(part.records for part in ranges)
        if rows:
            frame = self._shaping.shape(read_spool(self._session, ranges), ranges).frame
            if not self._shaping.leaves_out_rows or not frame.isEmpty():
                self._call(frame, number, ranges)
        return Written(rows, len(ranges), 0)

    def close(self) -> None:
        return None

    def _call(self, frame: DataFrame, number: int, ranges: Sequence[SpooledRange]) -> None:
        if not self._takes_batch:
            require_done(self._function(frame, number))
            return
        batch = FunctionBatch(
            [function_range(part, self._scope) for part in ranges if part.records],
            is_replay=self._steps.batch.is_replay,
            done=self._steps.batch.steps,
            before_step=self._lease.require,
            record=self._steps.record,
        )
        try:
            require_done(self._function(frame, number, batch))
        finally:
            batch.close()
