"""The Arrow columns of decoded records, made of the decoder's memory without a copy."""

from __future__ import annotations

from typing import Any

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


NO_ROWS = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)
