"""Records as Parquet with the columns and types of Spark's own Kafka source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kzconsumer.sinks.interface import RangeData, Rejected

Codec: TypeAlias = Literal["snappy", "none", "gzip", "zstd"]

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_COLUMNS: Final[Mapping[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}
FIRST_MS: Final = -62_135_596_800_000
"""0001-01-01T00:00:00Z. Before it and after the year 9999 Spark's Python, Delta, Iceberg and pandas have no times."""
LAST_MS: Final = 253_402_300_799_999
UNSTORABLE: Final = "unstorable"
"""The class of errors of records with a value that their destination cannot hold."""
NO_TIME: Final = "timestamp is outside of the years 1 to 9999: it is to be in milliseconds"
_WITH_STATISTICS: Final = ["topic", "partition", "offset", "timestamp", "timestampType"]
_ROW_GROUP_BYTES: Final = 128 << 20  # as Spark's


def unstorable(ranges: Iterable[RangeData]) -> list[Rejected]:
    """The records whose timestamp is no time that readers of files and tables have.

    Brokers store any number of milliseconds, also one of nanoseconds. Arrow computes; a record costs some nanoseconds.
    """
    return [
        Rejected(part.topic, part.partition, offset, NO_TIME, UNSTORABLE)
        for part in ranges
        for batch in part.batches
        for offset in without_time(batch)
    ]


def without_time(records: pa.RecordBatch) -> list[int]:
    """The offsets of records that `unstorable` rejects, of a batch of `kzconsumer.records.columns.SCHEMA`."""
    times = records.column("timestamp").cast(pa.int64())
    bounds = pc.min_max(times)
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    if least is None or (least >= FIRST_MS and greatest <= LAST_MS):
        return []
    outside = pc.or_(pc.less(times, pa.scalar(FIRST_MS)), pc.greater(times, pa.scalar(LAST_MS)))
    places = cast("pa.Array[Any]", pc.indices_nonzero(outside))  # null is none of them
    return cast("list[int]", records.column("offset").take(places).to_pylist())


def record_table(part: RangeData) -> pa.Table:
    """The records of a range; columns that are null throughout are left out.

    As in Spark, a record without headers has null headers, not an empty array.
    """
    return _columns(pa.Table.from_batches(part.batches))


def spark_columns(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records of `kzconsumer.records.columns.SCHEMA` with all columns and the types of Spark."""
    return _whole(_columns(pa.Table.from_batches([records]))).combine_chunks().to_batches()[0]


def row_of_nulls() -> pa.RecordBatch:
    """One row in the columns of `spark_columns`."""
    return pa.record_batch({name: pa.nulls(1, kind) for name, kind in _COLUMNS.items()})


def _columns(table: pa.Table) -> pa.Table:
    columns: dict[str, pa.ChunkedArray[Any]] = {
        "key": table.column("key"),
        "value": table.column("value"),
        "topic": table.column("topic"),
        "partition": table.column("partition"),
        "offset": table.column("offset"),
        "timestamp": table.column("timestamp"),
        "timestampType": table.column("timestamp_type").cast(pa.int32()),
    }
    headers = table.column("headers")
    present = pc.greater(pc.list_value_length(headers), pa.scalar(0, pa.int32()))
    if pc.any(present).as_py():
        columns["headers"] = pc.if_else(present, headers, pa.scalar(None, headers.type)).cast(_HEADERS)
    return pa.table({name: column for name, column in columns.items() if column.null_count < table.num_rows})


def write_records(records: pa.Table, path: Path, codec: Codec) -> None:
    """Write a table of `record_table` with all columns, those that were left out being null. Raises OSError."""
    table = _whole(records)
    pq.write_table(
        table,
        path,
        row_group_size=max(1, table.num_rows * _ROW_GROUP_BYTES // max(table.nbytes, 1)),
        compression=codec,
        write_statistics=_WITH_STATISTICS,
        store_schema=False,
    )


def _whole(records: pa.Table) -> pa.Table:
    """With the columns that were left out, null throughout."""
    return pa.table(
        {
            name: records.column(name).cast(kind) if name in records.column_names else pa.nulls(records.num_rows, kind)
            for name, kind in _COLUMNS.items()
        }
    )
