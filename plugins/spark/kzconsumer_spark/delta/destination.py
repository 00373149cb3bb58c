"""The Delta destination in the worker: ranges as Parquet files, committed to the table by one entry of its log."""

from __future__ import annotations

import shutil
import uuid

from pyspark.sql import SparkSession

from kzconsumer_files.private_directory import PrivateDirectory, sweep
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.writer import Written
from kzconsumer_spark.delta.target import DeltaTarget
from kzconsumer_spark.pipe.messages import ToDelta
from kzconsumer_spark.ranges.batch import SparkBatch
from kzconsumer_spark.ranges.files import RangeFiles
from kzconsumer_spark.ranges.lease import Lease
from kzconsumer_spark.ranges.tags import Shaping


class DeltaDestination:
    """Commits each range once, together with the version of its partition."""

    def __init__(self, session: SparkSession, to: ToDelta, lease: Lease, shaping: Shaping | None = None) -> None:
        self._files = RangeFiles(session, to.files, shaping)
        self._target = DeltaTarget(to)
        self._lease = lease
        sweep(self._target.attempts)
        self._staging = PrivateDirectory(self._target.attempts)

    def write(self, batch: SparkBatch) -> Written:
        for failed in sorted(self._staging.path.iterdir()):
            shutil.rmtree(failed)
        table = self._target.open()
        missing = self._target.missing(table, batch.ranges)
        if not missing:
            return Written(0, 0, len(batch.ranges))
        attempt = uuid.uuid4().hex
        output = self._staging.path / attempt
        staged = [StagedRange(part, 0, 0, ()) for part in missing if not part.records]
        columns = None
        if with_rows := [part for part in missing if part.records]:
            files, kinds = self._files.stage(batch.rows(with_rows), with_rows, output)
            staged += files
            columns = kinds.json()
        published = self._target.publish(table, staged, attempt, columns, self._lease.require)
        shutil.rmtree(output, ignore_errors=True)
        return Written(sum(each.rows for each in staged), published, len(batch.ranges) - published)

    def close(self) -> None:
        self._staging.remove()
