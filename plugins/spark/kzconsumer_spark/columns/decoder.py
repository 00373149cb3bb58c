"""Decodes a column of bytes in Spark's Python workers, value by value: for Avro and protobuf.

A value that cannot be decoded becomes null with a reason, which contains nothing of the value; other values are not
affected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from kzconsumer_spark.columns.avro_types import for_spark

Read: TypeAlias = Callable[[bytes], object]
"""Decodes bytes to a value for `pa.array`. Raises BadValue, or an error of a library."""


class BadValue(Exception):
    """Why bytes cannot be decoded; the text contains none of them."""


class Decoder(Protocol):
    """Pickled and sent to executors, where `reader` is called once for each task."""

    @property
    def type(self) -> pa.DataType:
        """The type of the values as read; the column has `for_spark` of it."""

    def reader(self) -> Read: ...


def decode_column(values: pa.Array[Any], read: Read, type_: pa.DataType) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """The values, and for each the reason why it cannot be read, or null. A null is a valid value."""
    rows: list[object] = []
    reasons: list[str | None] = []
    for value in values.to_pylist():
        reason = None
        row = None
        if value is not None:
            try:
                row = read(value)
            except Exception as error:
                reason = _reason(error)
        rows.append(row)
        reasons.append(reason)
    try:
        column = _column(rows, type_)
    except (pa.ArrowException, ArithmeticError, ValueError, TypeError):
        for place, row in enumerate(rows):
            try:
                _column([row], type_)
            except (pa.ArrowException, ArithmeticError, ValueError, TypeError):
                rows[place], reasons[place] = None, "has a value that its column cannot hold"
        column = _column(rows, type_)
    return column, pa.array(reasons, pa.string())


def _column(rows: list[object], type_: pa.DataType) -> pa.Array[Any]:
    column = pa.array(rows, type_).cast(for_spark(type_))
    _require_years(column)
    return column


def _require_years(column: Any) -> None:
    """Raises ValueError for a date or time outside of the years 1 to 9999, which formats and readers do not have."""
    kind = column.type
    if pa.types.is_struct(kind):
        for part in column.flatten():
            _require_years(part)
    elif pa.types.is_list(kind):
        _require_years(column.flatten())
    elif pa.types.is_map(kind):
        _require_years(column.items)
    elif pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        bounds = pc.min_max(column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()))
        lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
        first, last = _DAYS if pa.types.is_date32(kind) else _MICROSECONDS
        if lowest is not None and (lowest < first or highest > last):
            raise ValueError


#: The first and the last of the years 1 to 9999, since 1970.
_DAYS: Final = (-719162, 2932896)
_MICROSECONDS: Final = (-62135596800_000_000, 253402300799_999_999)


def _reason(error: Exception) -> str:
    if isinstance(error, BadValue):
        return str(error)
    if isinstance(error, EOFError):
        return "ends too early for its schema"
    if isinstance(error, UnicodeDecodeError):
        return "has text that is not UTF-8"
    return f"is not of its schema ({type(error).__name__})"
