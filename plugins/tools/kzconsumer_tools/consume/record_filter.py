"""Filtering records by regular expressions for key, value and headers, on Arrow columns.

The expressions are RE2's, which run in linear time; they match anywhere, and `.` matches UTF-8 text only.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc


class HeaderMatch(msgspec.Struct, frozen=True):
    """A header of that name with a matching value; None: any value, even null."""

    name: str
    value: str | None


class RecordFilter(msgspec.Struct, frozen=True):
    """All given expressions have to match; a null key or value matches none."""

    key: str | None = None
    value: str | None = None
    headers: tuple[HeaderMatch, ...] = ()

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The matching rows of the batch (`records.columns.SCHEMA`)."""
        found: pa.Array[Any] | None = None
        for column, expression in (("key", self.key), ("value", self.value)):
            if expression is not None:
                found = _both(found, _matches(batch.column(column), expression))
        for header in self.headers:
            found = _both(found, _has(cast("pa.ListArray[Any]", batch.column("headers")), header))
        return batch if found is None else batch.filter(found)


def check_expression(expression: str) -> str:
    """Raises ValueError for an expression that RE2 does not accept."""
    try:
        pc.match_substring_regex(pa.array([""]), expression)
    except pa.ArrowInvalid as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    return expression


def read_header(text: str) -> HeaderMatch:
    """`NAME`, or `NAME=EXPRESSION`. Raises ValueError."""
    name, equals, expression = text.partition("=")
    if not name:
        raise ValueError("the name of the header is missing")
    return HeaderMatch(name, check_expression(expression) if equals else None)


def _matches(column: pa.Array[Any], expression: str) -> pa.Array[Any]:
    text = pa.Array.from_buffers(pa.string(), len(column), column.buffers(), column.null_count, column.offset)
    return pc.match_substring_regex(text, expression).fill_null(False)


def _has(column: pa.ListArray[Any], header: HeaderMatch) -> pa.Array[Any]:
    flat = cast("pa.StructArray", column.flatten())
    names, values = flat.flatten()
    hits = pc.equal(names, pa.scalar(header.name))
    if header.value is not None:
        hits = pc.and_(hits, _matches(values, header.value))
    rows = pc.list_parent_indices(column).filter(hits)
    return pc.is_in(pa.array(range(len(column)), rows.type), value_set=rows)


def _both(one: pa.Array[Any] | None, other: pa.Array[Any]) -> pa.Array[Any]:
    return other if one is None else pc.and_(one, other)
