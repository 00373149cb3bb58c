"""Decodes a column of bytes in Spark's Python workers, value by value: for Avro and protobuf.

A value that cannot be decoded becomes null with a reason, which contains nothing of the value; other values are not
affected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

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
    return pa.array(rows, type_).cast(for_spark(type_))


def _reason(error: Exception) -> str:
    if isinstance(error, BadValue):
        return str(error)
    if isinstance(error, EOFError):
        return "ends too early for its schema"
    if isinstance(error, UnicodeDecodeError):
        return "has text that is not UTF-8"
    return f"is not of its schema ({type(error).__name__})"
