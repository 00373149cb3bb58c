"""Renders Arrow columns as text, and filters them, without an object per record."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kzconsumer.errors import NotDoneError
from kzconsumer.model import TopicPartition
from kzconsumer_tools.consume.format_and_places import Format

_NOTHING = pa.scalar(b"", pa.binary())


def render(batch: pa.RecordBatch, form: Format, null: bytes = b"") -> memoryview:
    """The rows of one partition's batch (`records.columns.SCHEMA`) formatted by `form`; `null` replaces null values."""
    parts = [_cells(batch, part, null) if isinstance(part, str) else part for part in form]
    if batch.num_rows == 0 or not parts:
        return memoryview(b"")
    if all(isinstance(part, bytes) for part in parts):
        return memoryview(b"".join(cast("list[bytes]", parts)) * batch.num_rows)
    cells: list[Any] = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
    # One row after the other: the bytes of the joined column are the text.
    joined: Any = pc.binary_join_element_wise(*cells, _NOTHING)
    _, ends, data = joined.buffers()
    first, until = (memoryview(ends).cast("B").cast("i")[row] for row in (joined.offset, joined.offset + len(joined)))
    return memoryview(data)[first:until]


def pieces(batch: pa.RecordBatch, form: Format, null: bytes = b"") -> Iterator[tuple[pa.RecordBatch, memoryview]]:
    """The rows and their text: fewer at a time where that of all is more than Arrow or the memory can hold.

    Raises NotDoneError for a record whose text alone is.
    """
    try:
        text = render(batch, form, null)
    except (MemoryError, pa.ArrowCapacityError) as error:
        if batch.num_rows == 1:
            topic, number, offset = (batch.column(name)[0].as_py() for name in ("topic", "partition", "offset"))
            raise NotDoneError(
                f"{TopicPartition(topic, number)}, offset {offset}: its text is too large ({error}): name fewer fields "
                "in -f, or --from the next offset"
            ) from None
        half = batch.num_rows // 2
        yield from pieces(batch.slice(0, half), form, null)
        yield from pieces(batch.slice(half), form, null)
    else:
        yield batch, text


def _cells(batch: pa.RecordBatch, field: str, null: bytes) -> pa.Array[Any] | bytes:
    """A binary column without nulls, or the bytes that all rows have in common."""
    match field:
        case "s" | "k":
            column = batch.column("value" if field == "s" else "key")
            return null if column.null_count == len(column) else column.fill_null(null)
        case "S" | "K":
            return _text(_sizes(batch.column("value" if field == "S" else "key")))
        case "R":
            sizes = _sizes(batch.column("value")).to_pylist()
            ends = array("i", range(0, 4 * len(sizes) + 1, 4))
            data = struct.pack(f">{len(sizes)}i", *sizes)
            return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(ends), pa.py_buffer(data)])
        case "T":
            return _text(batch.column("timestamp").cast(pa.int64()).fill_null(-1))
        case "h":
            return _headers(cast("pa.ListArray[Any]", batch.column("headers")))
        case "t":
            return bytes(batch.column("topic")[0].as_py(), "utf-8") if batch.num_rows else b""
        case "p":
            return b"%d" % batch.column("partition")[0].as_py() if batch.num_rows else b""
        case "o":
            return _text(batch.column("offset"))
    raise AssertionError(field)


def _sizes(column: pa.Array[Any]) -> pa.Array[Any]:
    return pc.binary_length(cast("pa.BinaryArray", column)).fill_null(-1)


def _text(numbers: pa.Array[Any]) -> pa.Array[Any]:
    return numbers.cast(pa.string()).cast(pa.binary())


def _headers(column: pa.ListArray[Any]) -> pa.Array[Any] | bytes:
    """`name=value` separated by commas, as in kcat; NULL for a null value."""
    flat = cast("pa.StructArray", column.flatten())
    if not len(flat):
        return b""
    names, values = flat.flatten()
    pairs: Any = pc.binary_join_element_wise(  # type: ignore[call-overload]  # its stubs know no scalars beside arrays
        names.cast(pa.binary()), pa.scalar(b"=", pa.binary()), values.fill_null(b"NULL"), _NOTHING
    )
    ends = pc.subtract(column.offsets, column.offsets[0])
    lists = pa.ListArray.from_arrays(ends, pairs)
    return cast("pa.Array[Any]", pc.binary_join(lists, pa.scalar(b",", pa.binary())))


# Filters are regular expressions for key, value and headers. They are RE2's, which run in linear time; they match
# anywhere, and `.` matches UTF-8 text only.


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
