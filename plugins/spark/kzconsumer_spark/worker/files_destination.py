"""The files destination in the worker: ranges written by Spark, and published by the target."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kzconsumer.errors import ConfigError
from kzconsumer_files.layout import Misfit
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.targets import target_at
from kzconsumer_files.writer import TargetWriter, Written
from kzconsumer_spark.pipe.messages import SpooledRange, ToFiles
from kzconsumer_spark.ranges.batch import SparkBatch
from kzconsumer_spark.ranges.files import RangeFiles
from kzconsumer_spark.ranges.lease import Permission
from kzconsumer_spark.ranges.tags import Shaping


class FilesDestination:
    """Each range as files named after it under the target; the first writer wins, the ledger entry comes last."""

    def __init__(self, session: SparkSession, to: ToFiles, lease: Permission, shaping: Shaping | None = None) -> None:
        """`shaping`: see `RangeFiles`. Raises ConfigError for columns that do not fit earlier rows."""
        self._files = RangeFiles(session, to, shaping)
        self._target = target_at(to.path, to.store_options)
        self._columns: StructType | None = None
        if shaping is not None and shaping.columns is not None:
            try:
                self._take(shaping.columns, whole=True)
            except Misfit as misfit:
                raise ConfigError([f"[sink.options]: {misfit}"]) from misfit
        self._writer = TargetWriter(self._target, lease.require_whole)

    def write(self, batch: SparkBatch) -> Written:
        return self._writer.write(batch.ranges, partial(self._stage, batch), batch.follows)

    def trial(self, batch: SparkBatch) -> None:
        self._writer.trial(lambda output: self._files.stage(batch.frame, batch.ranges, output))

    def close(self) -> None:
        self._writer.close()

    def _stage(self, batch: SparkBatch, ranges: Sequence[SpooledRange], output: Path) -> list[StagedRange]:
        staged, columns = self._files.stage(batch.rows(ranges), ranges, output)
        self._take(columns, whole=False)
        return staged

    def _take(self, columns: StructType, *, whole: bool) -> None:
        if columns != self._columns:
            self._target.take_columns(columns.json(), whole=whole)
            self._columns = columns
