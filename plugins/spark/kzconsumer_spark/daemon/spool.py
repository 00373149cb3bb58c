"""Ranges as Parquet files that Spark reads cheaply.

Owns no state; the sink calls `write_spool` in a thread (Arrow releases the GIL) and deletes the files. Uncompressed and
PLAIN: a spool file is written once and read once, most often on one machine. The files are scratch and never synced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kzconsumer.sinks.interface import RangeData
from kzconsumer_files.names import data_file
from kzconsumer_spark.daemon.spool_place import SpoolPlace
from kzconsumer_spark.pipe.messages import SpooledRange

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# Constant in a file: as one dictionary entry they cost nothing to write or read.
_CONSTANT = ["topic", "partition", "timestampType"]
_ROW_GROUP_BYTES = 64 << 20  # bounds what the JVM holds of one task


def write_spool(place: SpoolPlace, ranges: Sequence[RangeData]) -> tuple[SpooledRange, ...]:
    """One file for each range that has records. Nobody knows their names before all are whole. Raises OSError."""
    return tuple(_write_range(place, part) for part in ranges)


def _write_range(place: SpoolPlace, part: RangeData) -> SpooledRange:
    spooled = SpooledRange(
        topic=part.topic,
        partition=part.partition,
        first=part.first,
        until=part.until,
        incarnation=part.incarnation,
        epoch=part.epoch,
        records=part.records,
        file=None,
    )
    if not spooled.records:
        return spooled
    file = place.below(data_file(spooled))
    table = spool_table(part)
    pq.write_table(
        table,
        file.path,
        filesystem=file.filesystem,
        row_group_size=max(1, table.num_rows * _ROW_GROUP_BYTES // max(table.nbytes, 1)),
        compression="none",
        use_dictionary=[name for name in _CONSTANT if name in table.column_names],  # type: ignore[arg-type]
        write_statistics=False,
        store_schema=False,
    )
    return msgspec.structs.replace(spooled, file=file.uri)


def spool_table(part: RangeData) -> pa.Table:
    """A range's columns as Spark's Kafka source has them, but for columns that are null throughout: those are left out.

    As there, a record without headers has null headers, not an empty array.
    """
    table = pa.Table.from_batches(part.batches)
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
