"""What foreachBatch does with a batch, and the destination that hands it to the user's function.

Owns no state. The worker makes one `Destination` (files and tables have files of their own) and calls `write` from
foreachBatch; what it raises fails the batch. None of them will call anything with zero rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession

from kzconsumer_spark.messages import SpooledRange
from kzconsumer_spark.range_tags import Shaping
from kzconsumer_spark.spool_reader import read_spool


class Written(NamedTuple):
    """Rows written now; ranges that this write published, and ranges that were there already."""

    rows: int
    published: int
    present: int


class Destination(Protocol):
    def write(self, number: int, ranges: Sequence[SpooledRange]) -> Written: ...

    def close(self) -> None: ...


class FunctionDestination:
    """Calls the user's `function(df, batch_id)`. Durable is what it says is durable by returning."""

    def __init__(self, session: SparkSession, function: Callable[[DataFrame, int], Any], shaping: Shaping) -> None:
        self._session = session
        self._function = function
        self._shaping = shaping

    def __repr__(self) -> str:
        return f"FunctionDestination({getattr(self._function, '__qualname__', self._function)})"

    def write(self, number: int, ranges: Sequence[SpooledRange]) -> Written:
        rows = sum(part.records for part in ranges)
        if rows:
            frame = self._shaping.shape(read_spool(self._session, ranges), ranges).frame
            if not self._shaping.leaves_out_rows or not frame.isEmpty():
                _require_done(self._function(frame, number))
        return Written(rows, len(ranges), 0)

    def close(self) -> None:
        return None


def _require_done(returned: object) -> None:
    """Refuse what would still have to be run: a plain function may return the coroutine of an async one, say."""
    if inspect.iscoroutine(returned):
        returned.close()  # and no warning that nobody awaited it
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise TypeError(f"the function returned a {type(returned).__name__}: it must do its work before it returns")
