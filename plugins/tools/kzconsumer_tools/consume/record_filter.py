"""Which records are shown: regular expressions that key, value and headers have to match.

Pure. Read once by `cli/consume`, applied to Arrow columns by `printing`. The expressions are RE2's, which need time
linear in what they read; they match anywhere, in text: bytes that are no UTF-8 are matched by no `.`.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class HeaderMatch(msgspec.Struct, frozen=True):
    """A header of that name, whose value matches; None: whatever its value is, also none."""

    name: str
    value: str | None


class RecordFilter(msgspec.Struct, frozen=True):
    """All that is given has to match; a key or value that is null matches nothing."""

    key: str | None = None
    value: str | None = None
    headers: tuple[HeaderMatch, ...] = ()

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the batch (`records.columns.SCHEMA`) that match."""
        found: pa.Array[Any] | None = None
        for column, expression in (("key", self.key), ("value", self.value)):
            if expression is not None:
                found = _both(found, _matches(batch.column(column), expression))
        for header in self.headers:
            found = _both(found, _has(cast("pa.ListArray[Any]", batch.column("headers")), header))
        return batch if found is None else batch.filter(found)


def check_expression(expression: str) -> str:
    """Raises ValueError for what RE2 does not read."""
    try:
        pc.match_substring_regex(pa.array([""]), expression)
    except pa.ArrowInvalid as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    return expression


def read_header(text: str) -> HeaderMatch:
    """`NAME`, or `NAME=EXPRESSION`. Raises ValueError."""
    name, equals, expression = text.partition("=")
    if not name:
        raise ValueError("there is no name of a header")
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
    rows = np.zeros(len(column), bool)
    rows[pc.list_parent_indices(column).to_numpy()[hits.to_numpy(zero_copy_only=False)]] = True
    return pa.array(rows)


def _both(one: pa.Array[Any] | None, other: pa.Array[Any]) -> pa.Array[Any]:
    return other if one is None else pc.and_(one, other)
