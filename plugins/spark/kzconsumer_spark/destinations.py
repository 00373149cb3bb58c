"""What foreachBatch does with a batch: publish it as Parquet by range, or hand it to the user's function.

`ParquetDestination` owns this worker's staging directory inside the target. The worker calls `write` from foreachBatch;
what it raises fails the batch. Neither will call anything with zero rows.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession

from kzconsumer_spark.lease import Lease
from kzconsumer_spark.messages import SpooledRange
from kzconsumer_spark.part_files import match_parts, read_part
from kzconsumer_spark.private_directory import PrivateDirectory, sweep
from kzconsumer_spark.spool_reader import read_spool
from kzconsumer_spark.target import Target


class Written(NamedTuple):
    """Rows written now; ranges that this write published, and ranges that were there already."""

    rows: int
    published: int
    present: int


class Destination(Protocol):
    def write(self, number: int, ranges: Sequence[SpooledRange]) -> Written: ...

    def close(self) -> None: ...


class ParquetDestination:
    """One Parquet file for each range under `target`, first writer wins, ledger entry last."""

    def __init__(self, session: SparkSession, target: Target, lease: Lease) -> None:
        self._session = session
        self._target = target
        self._lease = lease
        sweep(target.attempts)
        self._staging = PrivateDirectory(target.attempts)

    def __repr__(self) -> str:
        return f"ParquetDestination({self._target.path})"

    def write(self, number: int, ranges: Sequence[SpooledRange]) -> Written:
        missing = [part for part in ranges if not self._target.has(part)]
        if not missing:
            return Written(0, 0, len(ranges))
        attempt = self._staging.path / "attempt"
        shutil.rmtree(attempt, ignore_errors=True)
        attempt.mkdir()
        files: dict[SpooledRange, Path] = {}
        with_rows = [part for part in missing if part.records]
        if with_rows:
            output = attempt / "spark"
            # The session's settings make every spool file a task of its own, so this is one file for each range.
            read_spool(self._session, with_rows).write.parquet(str(output))
            files = dict(match_parts(map(read_part, sorted(output.glob("*.parquet"))), with_rows))
        published = self._target.publish([(part, files.get(part)) for part in missing], attempt, self._lease.require)
        shutil.rmtree(attempt, ignore_errors=True)
        return Written(sum(part.records for part in with_rows), published, len(ranges) - published)

    def close(self) -> None:
        self._staging.remove()


class FunctionDestination:
    """Calls the user's `function(df, batch_id)`. Durable is what it says is durable by returning."""

    def __init__(self, session: SparkSession, function: Callable[[DataFrame, int], Any]) -> None:
        self._session = session
        self._function = function

    def __repr__(self) -> str:
        return f"FunctionDestination({getattr(self._function, '__qualname__', self._function)})"

    def write(self, number: int, ranges: Sequence[SpooledRange]) -> Written:
        rows = sum(part.records for part in ranges)
        if rows:
            _require_done(self._function(read_spool(self._session, ranges), number))
        return Written(rows, len(ranges), 0)

    def close(self) -> None:
        return None


def _require_done(returned: object) -> None:
    """Refuse what would still have to be run: a plain function may return the coroutine of an async one, say."""
    if inspect.iscoroutine(returned):
        returned.close()  # and no warning that nobody awaited it
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise TypeError(f"the function returned a {type(returned).__name__}: it must do its work before it returns")
