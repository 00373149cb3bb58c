"""What writes a batch in the worker: to files, to a table of files (Delta, Iceberg), to a function of the user.

Spark writes the files of the ranges, and the target publishes them. Tables of a database: `destinations.jdbc_writer`.
"""

from __future__ import annotations

import queue
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kzconsumer.errors import ConfigError
from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.records.checksums import Contents
from kzconsumer.sinks.interface import StepNotRecordedError
from kzconsumer_files.directory_target import target_at
from kzconsumer_files.layout import Misfit
from kzconsumer_files.object_store import Put
from kzconsumer_files.object_target import ObjectTarget
from kzconsumer_files.private_directory import PrivateDirectory, sweep
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.target_writer import TargetWriter, WriteResult
from kzconsumer_spark.destinations.function_batch import FunctionBatch, function_range, require_written, takes_batch
from kzconsumer_spark.executors.task_files import TaskFiles, nowhere
from kzconsumer_spark.ranges.batch import Permission, RowShaping, SparkBatch, require_all
from kzconsumer_spark.ranges.staged_files import RangeFiles
from kzconsumer_spark.worker_protocol.messages import BatchRange, RangesRead, Recorded, RunBatch, StepDone, ToFiles


class FilesDestination:
    """Each range as files named after it under the target; the first writer wins, the ledger entry comes last."""

    def __init__(
        self,
        session: SparkSession,
        to: ToFiles,
        lease: Permission,
        shaping: RowShaping | None = None,
        *,
        on_cluster: bool = False,
    ) -> None:
        """`shaping`: see `RangeFiles`. `on_cluster`: tasks run on other machines, and put files into stores.

        Raises ConfigError for columns that do not fit earlier rows.
        """
        self._files = RangeFiles(session, to, shaping)
        self._target = target_at(to.path, to.store_options)
        self._on_cluster = on_cluster
        self._columns: StructType | None = None
        if shaping is not None and shaping.columns is not None:
            try:
                self._take(shaping.columns, whole=True)
            except Misfit as misfit:
                raise ConfigError([f"[sink.options]: {misfit}"]) from misfit
        self._writer = TargetWriter(self._target, lease.require_whole)

    def write(self, batch: SparkBatch) -> WriteResult:
        return self._writer.write(batch.ranges, partial(self._stage, batch), batch.follows)

    def trial(self, batch: SparkBatch) -> None:
        elsewhere = TaskFiles(nowhere) if self._elsewhere(self._target.attempts) is not None else None
        self._writer.trial(lambda output: self._files.stage(batch.frame, batch.ranges, output, elsewhere))

    def close(self) -> None:
        self._writer.close()

    def _stage(self, batch: SparkBatch, ranges: Sequence[BatchRange], output: Path) -> list[StagedRange]:
        elsewhere = self._elsewhere(output.parent)
        staged, columns = self._files.stage(batch.rows(ranges), ranges, output, elsewhere)
        _require_all(batch, staged, self._files)
        self._take(columns, whole=False)
        return staged

    def _elsewhere(self, attempt: Path) -> TaskFiles | None:
        if self._on_cluster and isinstance(self._target, ObjectTarget):
            return TaskFiles(self._target.put(attempt))
        return None

    def _take(self, columns: StructType, *, whole: bool) -> None:
        if columns != self._columns:
            self._target.take_columns(columns.json(), whole=whole)
            self._columns = columns


def _require_all(batch: SparkBatch, staged: Sequence[StagedRange], files: RangeFiles) -> None:
    rows = {TopicPartition(each.part.topic, each.part.partition): each.rows for each in staged}
    require_all(batch, rows, files.shaping)


# A table as the worker's destination: ranges as Parquet files that Spark writes, committed to the table at once.

_Table = TypeVar("_Table")


class TableTarget(Protocol[_Table]):
    """Commits each range once, together with the end of its partition. All calls block, and raise OSError."""

    @property
    def attempts(self) -> Path:
        """The directory for files that are not committed yet, on the file system of the table."""
        ...

    def open(self) -> _Table:
        """The table as it is now."""
        ...

    def put(self, table: _Table) -> Put | None:
        """How tasks on other machines put files where those of the table are; None for a directory."""
        ...

    def missing(self, table: _Table, ranges: Sequence[BatchRange]) -> list[BatchRange]:
        """The ranges that the table does not have; the others are durable. Raises SetAside, RangeOverlap."""
        ...

    def publish(
        self,
        table: _Table,
        staged: Sequence[StagedRange],
        attempt: str,
        columns: str | None,
        require_lease: Callable[[], None],
        follows: Sequence[RangeIdentity] = (),
    ) -> int:
        """Commit the ranges that the table does not have; returns their number. `attempt` is a unique name.

        `columns` are Spark's, as JSON; None where no range has files. When this returns, the table has every range, on
        disk, possibly from another writer. Raises SetAside once it has all others; Misfit, RangeOverlap, OSError, after
        which the commit may or may not have been made; `missing` then shows which. Raises DestinationWentBackError, and
        commits nothing, if the table does not reach the end of one of `follows`.
        """
        ...


class TableDestination(Generic[_Table]):
    def __init__(
        self, files: RangeFiles, target: TableTarget[_Table], lease: Permission, *, on_cluster: bool = False
    ) -> None:
        """`on_cluster`: see `FilesDestination`."""
        self._on_cluster = on_cluster
        self._files = files
        self._target = target
        self._lease = lease
        attempts = target.attempts
        sweep(attempts)
        self._staging = PrivateDirectory(attempts)

    def write(self, batch: SparkBatch) -> WriteResult:
        for failed in self._staging.entries():
            shutil.rmtree(failed)
        table = self._target.open()
        missing = self._target.missing(table, batch.ranges)
        if not missing:
            return WriteResult(0, 0, len(batch.ranges))
        attempt = uuid.uuid4().hex
        output = self._staging.path / attempt
        staged = [StagedRange(part, 0, 0, ()) for part in missing if not part.records]
        columns = None
        if with_rows := [part for part in missing if part.records]:
            elsewhere = TaskFiles(put) if (put := self._put(table)) is not None else None
            files, kinds = self._files.stage(batch.rows(with_rows), with_rows, output, elsewhere)
            _require_all(batch, files, self._files)
            staged += files
            columns = kinds.json()
        published = self._target.publish(table, staged, attempt, columns, self._lease.require_whole, batch.follows)
        shutil.rmtree(output, ignore_errors=True)
        return WriteResult(sum(each.rows for each in staged), published, len(batch.ranges) - published)

    def trial(self, batch: SparkBatch) -> None:
        for failed in self._staging.entries():
            shutil.rmtree(failed)
        output = self._staging.path / uuid.uuid4().hex
        elsewhere = TaskFiles(nowhere) if self._put(self._target.open()) is not None else None
        self._files.stage(batch.frame, batch.ranges, output, elsewhere)
        shutil.rmtree(output, ignore_errors=True)

    def _put(self, table: _Table) -> Put | None:
        return self._target.put(table) if self._on_cluster else None

    def close(self) -> None:
        self._staging.remove()


# The steps of the current batch in the worker, and what executors have read of it, which the daemon records.
#
# The daemon answers each request. If it ends, the worker ends with it. If a step is not recorded, the batch must fail:
# its next attempt, or a replay, does the step again.


class StepRecorder:
    def __init__(self, say: Callable[[StepDone | RangesRead], None]) -> None:
        self._say = say
        self._answers: queue.SimpleQueue[Recorded] = queue.SimpleQueue()
        self.batch = RunBatch(number=0, ranges=())

    def begin(self, batch: RunBatch) -> None:
        self.batch = batch

    def record(self, step: str) -> None:
        """Return when `step` is stored as done for the current batch. Raises StepNotRecordedError."""
        self._ask(StepDone(number=self.batch.number, step=step))

    def record_read(self, contents: Mapping[TopicPartition, Contents]) -> None:
        """Return when the plans have what was read of the current batch. Raises StepNotRecordedError."""
        found = tuple(contents.get(part.range.topic_partition) for part in self.batch.ranges)
        self._ask(RangesRead(number=self.batch.number, contents=found))

    def _ask(self, event: StepDone | RangesRead) -> None:
        self._say(event)
        answer = self._answers.get()
        if answer.error is not None:
            raise StepNotRecordedError(answer.error)

    def answered(self, answer: Recorded) -> None:
        self._answers.put(answer)


# The destination `function` in the worker: calls the user's function as foreachBatch does.


class FunctionDestination:
    """Calls `function(df, batch_id)` or `function(df, batch_id, batch)`. Once it returns, the batch is durable.

    `df` is the query's own frame, shaped as the settings of columns require. If these leave no row, the function is not
    called; without them it is, as it would cost a second read to know that the log has no records there.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        scope: str,
        lease: Permission,
        shaping: RowShaping,
        steps: StepRecorder,
    ) -> None:
        self._function = function
        self._takes_batch = takes_batch(function)
        self._scope = scope
        self._lease = lease
        self._shaping = shaping
        self._steps = steps

    def write(self, batch: SparkBatch) -> WriteResult:
        rows = sum(part.records for part in batch.ranges)
        if rows:
            frame = self._shaping.shape(batch.frame, batch.ranges).frame
            if self._shaping.has_rows(frame):
                self._call(frame, batch)
        return WriteResult(rows, len(batch.ranges), 0)

    def close(self) -> None:
        return None

    def _call(self, frame: DataFrame, written: SparkBatch) -> None:
        if not self._takes_batch:
            require_written(self._function(frame, written.number))
            return
        batch = FunctionBatch(
            [function_range(part, self._scope) for part in written.ranges if part.records],
            is_replay=self._steps.batch.is_replay,
            done=self._steps.batch.steps,
            before_step=self._lease.require,
            record=self._recorded,
        )
        try:
            require_written(self._function(frame, written.number, batch))
        finally:
            batch.close()

    def _recorded(self, step: str) -> None:
        """With what was read by then: a replay that finds other records would do the steps that are left with them."""
        self._lease.report_read()
        self._steps.record(step)
