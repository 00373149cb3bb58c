"""Renders Arrow columns as text, without an object per record; the heavy part releases the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kzconsumer.records.decode import kernels_for
from kzconsumer.records.kernel_set import KernelSet
from kzconsumer_tools.consume.format_string import Format

_NOTHING = pa.scalar(b"", pa.binary())


def render(
    batch: pa.RecordBatch,
    form: Format,
    null: bytes = b"",
    kernels: Callable[[int], KernelSet] = kernels_for,
) -> pa.Buffer:
    """The rows of one partition's batch (`records.columns.SCHEMA`) formatted by `form`; `null` replaces null values."""
    rows = batch.num_rows
    parts = [_cells(batch, part, null) if isinstance(part, str) else part for part in form]
    if rows == 0 or not parts:
        return pa.py_buffer(b"")
    kept: list[pa.Buffer] = []  # keeps the addresses valid
    table = np.zeros((len(parts), 3), np.int64)
    size = 0
    for at, part in enumerate(parts):
        if isinstance(part, bytes):
            literal = pa.py_buffer(part)
            kept.append(literal)
            table[at] = 0, literal.address, len(part)
            size += rows * len(part)
        else:
            _, ends, data = part.buffers()
            assert ends is not None
            kept += [ends, *([data] if data is not None else [])]
            offsets = np.frombuffer(memoryview(ends), np.int32)[part.offset : part.offset + rows + 1]
            table[at] = ends.address + 4 * part.offset, data.address if data is not None else 0, 0
            size += int(offsets[-1]) - int(offsets[0])
    out = pa.allocate_buffer(size)
    written = kernels(size).join_cells(table, rows, out.address)
    assert written == size
    return out


def _cells(batch: pa.RecordBatch, field: str, null: bytes) -> pa.Array[Any] | bytes:
    """A binary column without nulls, or the bytes that all rows have in common."""
    match field:
        case "s" | "k":
            column = batch.column("value" if field == "s" else "key")
            return null if column.null_count == len(column) else column.fill_null(null)
        case "S" | "K":
            return _text(_sizes(batch.column("value" if field == "S" else "key")))
        case "R":
            sizes = _sizes(batch.column("value")).to_numpy(zero_copy_only=False).astype(">i4")
            ends = np.arange(0, 4 * len(sizes) + 1, 4, dtype=np.int32)
            return pa.Array.from_buffers(
                pa.binary(), len(sizes), [None, pa.py_buffer(ends.data), pa.py_buffer(sizes.tobytes())]
            )
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
    ends = column.offsets.to_numpy()
    lists = pa.ListArray.from_arrays(pa.array(ends - ends[0], pa.int32()), pairs)
    return cast("pa.Array[Any]", pc.binary_join(lists, pa.scalar(b",", pa.binary())))
