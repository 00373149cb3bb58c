"""A table as the worker's destination: ranges as Parquet files that Spark writes, committed to the table at once."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from kzconsumer.model import RangeIdentity
from kzconsumer_files.private_directory import PrivateDirectory, sweep
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.writer import Written
from kzconsumer_spark.pipe.messages import SpooledRange
from kzconsumer_spark.ranges.batch import SparkBatch
from kzconsumer_spark.ranges.files import RangeFiles
from kzconsumer_spark.ranges.lease import Permission

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

    def missing(self, table: _Table, ranges: Sequence[SpooledRange]) -> list[SpooledRange]:
        """The ranges that the table does not have; the others are durable. Raises KeptAside, Overtaken."""
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
        disk, possibly from another writer. Raises KeptAside once it has all others; Misfit, Overtaken, OSError, after
        which the commit may or may not have been made; `missing` then shows which. Raises DestinationWentBackError, and
        commits nothing, if the table does not reach the end of one of `follows`.
        """
        ...


class TableDestination(Generic[_Table]):
    def __init__(self, files: RangeFiles, target: TableTarget[_Table], lease: Permission) -> None:
        self._files = files
        self._target = target
        self._lease = lease
        attempts = target.attempts
        sweep(attempts)
        self._staging = PrivateDirectory(attempts)

    def write(self, batch: SparkBatch) -> Written:
        for failed in self._staging.entries():
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
        published = self._target.publish(table, staged, attempt, columns, self._lease.require_whole, batch.follows)
        shutil.rmtree(output, ignore_errors=True)
        return Written(sum(each.rows for each in staged), published, len(batch.ranges) - published)

    def trial(self, batch: SparkBatch) -> None:
        for failed in self._staging.entries():
            shutil.rmtree(failed)
        output = self._staging.path / uuid.uuid4().hex
        self._files.stage(batch.frame, batch.ranges, output)
        shutil.rmtree(output, ignore_errors=True)

    def close(self) -> None:
        self._staging.remove()
