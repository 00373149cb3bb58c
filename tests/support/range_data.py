"""Ranges with columns of decoded records, made for tests of sinks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kzconsumer.records.columns import SCHEMA
from kzconsumer.records.forms import ColumnRecords
from kzconsumer.sinks.interface import RangeData

TIME = 1_700_000_000_000


def record(offset: int, **fields: Any) -> dict[str, Any]:
    """One record of a partition; missing fields are those of an ordinary one."""
    ordinary = {"key": b"k%d" % offset, "value": b"v%d" % offset, "timestamp": TIME + offset, "timestamp_type": 0}
    return {"offset": offset, "headers": []} | ordinary | fields


def range_data(
    topic: str, partition: int, first: int, until: int, records: list[dict[str, Any]] | None = None, batches: int = 2
) -> RangeData:
    """A range of these records (ordinary ones at every offset if not given) in at most `batches` record batches."""
    rows = [record(offset) for offset in range(first, until)] if records is None else records
    size = max(1, -(-len(rows) // batches))
    return RangeData(
        topic=topic,
        partition=partition,
        first=first,
        until=until,
        pieces=tuple(_piece(topic, partition, rows[n : n + size]) for n in range(0, len(rows), size)),
        incarnation=0x2A,
        epoch=0,
    )


def _piece(topic: str, partition: int, rows: list[dict[str, Any]]) -> ColumnRecords:
    full = [{"topic": topic, "partition": partition} | row for row in rows]
    return ColumnRecords(pa.RecordBatch.from_pylist(full, schema=SCHEMA))
