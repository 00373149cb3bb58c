"""The files destination in the worker: ranges written into a directory of its own, the target publishes them.

Owns this worker's staging directory inside the target.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kzconsumer.errors import ConfigError
from kzconsumer_files.layout import Misfit
from kzconsumer_files.names import NotOurs
from kzconsumer_files.private_directory import PrivateDirectory
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.target import Target
from kzconsumer_spark.pipe.messages import SpooledRange, ToFiles
from kzconsumer_spark.ranges.destination import Written
from kzconsumer_spark.ranges.files import RangeFiles
from kzconsumer_spark.ranges.lease import Lease
from kzconsumer_spark.ranges.plain_parquet import Codec
from kzconsumer_spark.ranges.tags import Shaping

_FOLD_EVERY: Final = 64  # ranges published by this worker
_FOLDING_SECONDS: Final = 2.0  # how long it is waited for at the end; what it leaves undone, others do
_log = structlog.get_logger(__name__)


def _fold(target: Target) -> None:
    try:
        target.fold()
    except (OSError, NotOurs) as error:  # it costs time and inodes, no more
        _log.warning("ledger not folded", error=str(error))


class FilesDestination:
    """Each range as files named after it under the target, first writer wins, ledger entry last."""

    def __init__(
        self,
        session: SparkSession,
        to: ToFiles,
        lease: Lease,
        shaping: Shaping | None = None,
        codec: Codec | None = None,
    ) -> None:
        """`shaping`, `codec`: see `RangeFiles`. Raises ConfigError for columns that earlier rows do not fit."""
        self._files = RangeFiles(session, to, shaping, codec)
        self._to = to
        self._lease = lease
        self._target = Target(Path(to.path))
        self._columns: StructType | None = None
        if shaping is not None and shaping.columns is not None:
            try:
                self._take(shaping.columns, whole=True)
            except Misfit as misfit:
                raise ConfigError([f"[sink.options]: {misfit}"]) from misfit
        self._target.sweep()
        self._begin_folding()
        self._staging = PrivateDirectory(self._target.attempts)
        self._attempts = 0

    def __repr__(self) -> str:
        return f"FilesDestination({self._to.format} in {self._target.path})"

    def write(self, number: int, ranges: Sequence[SpooledRange]) -> Written:
        for failed in sorted(self._staging.path.iterdir()):
            self._target.discard(failed)
        missing = self._target.missing(ranges)
        for part in set(ranges).difference(missing):
            self._target.require_published(part)
        if not missing:
            return Written(0, 0, len(ranges))
        self._attempts += 1
        attempt = self._staging.path / str(self._attempts)
        attempt.mkdir()
        staged = [StagedRange(part, 0, 0, ()) for part in missing if not part.records]
        if with_rows := [part for part in missing if part.records]:
            files, columns = self._files.stage(with_rows, attempt / "staged")
            self._take(columns, whole=False)
            staged += files
        published = self._target.publish(staged, attempt, self._lease.require)
        self._target.discard(attempt)
        self._unfolded += published
        if self._unfolded >= _FOLD_EVERY and not self._folding.is_alive():
            self._begin_folding()
        return Written(sum(each.rows for each in staged), published, len(ranges) - published)

    def _begin_folding(self) -> None:
        self._unfolded = 0
        self._folding = threading.Thread(target=_fold, args=(self._target,), daemon=True)
        self._folding.start()

    def _take(self, columns: StructType, *, whole: bool) -> None:
        if columns != self._columns:
            self._target.take_columns(columns.json(), whole=whole)
            self._columns = columns

    def close(self) -> None:
        self._folding.join(_FOLDING_SECONDS)
        if self._target.discard(self._staging.path):  # else the next worker's sweep tries again
            self._staging.remove()
