"""The Arrow columns of decoded records, made of the decoder's memory without a copy, and messages made of columns."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
import pyarrow as pa

from kzconsumer.records import _native

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

SCHEMA = pa.schema(
    [
        ("topic", pa.dictionary(pa.int8(), pa.string())),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),  # null where the record has none
        ("headers", pa.list_(_HEADER)),
        ("timestamp_type", pa.int8()),  # 0 create time, 1 log append time, -1 none (magic 0)
    ]
)


class _Exported(msgspec.Struct):
    """Records as Arrow's PyCapsule interface wants them."""

    columns: _native.Columns
    topic: str
    partition: int

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return SCHEMA.__arrow_c_schema__(), self.columns.arrow_array(self.topic, self.partition)


def record_batch(columns: _native.Columns, topic: str, partition: int) -> pa.RecordBatch:
    """The records as a batch with the columns of `SCHEMA`, which keeps their memory."""
    return pa.record_batch(_Exported(columns, topic, partition))


def messages(batch: pa.RecordBatch) -> Iterator[_native.Message]:
    """Each row of a batch with the columns of `SCHEMA` as a message."""
    for topic, partition, offset, key, value, timestamp, headers, timestamp_type in zip(
        *(batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "key", "value")),
        batch.column("timestamp").cast(pa.int64()).to_pylist(),
        *(batch.column(name).to_pylist() for name in ("headers", "timestamp_type")),
        strict=True,
    ):
        pairs = tuple((header["key"], header["value"]) for header in headers or ())
        yield _native.Message(topic, partition, offset, key, value, timestamp, pairs, timestamp_type)


def rows_below(batch: pa.RecordBatch, offset: int) -> int:
    """Number of rows with lower offsets; these are in order."""
    column = cast("pa.Int64Array", batch.column("offset"))
    offsets = memoryview(column.buffers()[1] or b"").cast("B").cast("q")
    return bisect_left(offsets, offset, column.offset, column.offset + len(column)) - column.offset


def one_number(value: int, kind: pa.DataType) -> pa.Scalar[Any]:
    """Of a signed type of 32 or 64 bits.

    The first `pa.scalar` or `pa.array` of a process loads pandas if it is installed: half of the time in which Spark's
    Python processes are ready, of which each start has several.
    """
    data = pa.py_buffer(value.to_bytes(kind.bit_width // 8, sys.byteorder, signed=True))
    return cast("pa.Scalar[Any]", pa.Array.from_buffers(kind, 1, [None, data])[0])


NO_ROWS = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of all rows, a copy."""
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole
