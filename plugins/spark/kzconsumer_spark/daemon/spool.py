"""Ranges as Parquet files that Spark reads cheaply.

Uncompressed and PLAIN: a spool file is written once and read once, most often on one machine. It is never synced.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow.parquet as pq

from kzconsumer.model import OffsetRange
from kzconsumer.records.forms import Unfetched
from kzconsumer.registry.offset_list import spans_of
from kzconsumer.sinks.interface import RangeData
from kzconsumer_files.parquet.records import record_table
from kzconsumer_spark.daemon.spool_place import SpoolPlace
from kzconsumer_spark.pipe.messages import SpooledRange

# Constant in a file: as one dictionary entry they cost nothing to write or read.
_CONSTANT = ["topic", "partition", "timestampType"]
_ROW_GROUP_BYTES = 64 << 20  # bounds what the JVM holds of one task


def write_spool(place: SpoolPlace, ranges: Sequence[RangeData]) -> tuple[SpooledRange, ...]:
    """One file for each range that has records. Raises OSError."""
    # The name of a topic may begin with _ or a dot: Spark ignores such files.
    return tuple(_write_range(place.below(f"{number}.parquet"), part) for number, part in enumerate(ranges))


def unspooled(part: RangeData) -> SpooledRange:
    """The range without a file, with the spans that executors are to fetch."""
    return SpooledRange(
        topic=part.topic,
        partition=part.partition,
        first=part.first,
        until=part.until,
        incarnation=part.incarnation,
        epoch=part.epoch,
        records=part.records,
        file=None,
        spans=_spans(part),
        leader_epoch=part.leader_epoch,
        left_out=part.left_out,
    )


def _spans(part: RangeData) -> tuple[OffsetRange, ...]:
    """What is not fetched yet. Before and between the pieces are offsets the log has lost, and rejected records."""
    pieces = ((each.first, each.until) for each in part.pieces if isinstance(each, Unfetched))
    spans = spans_of((), (*pieces, *part.left_out))
    return tuple(part.range._replace(first=first, until=until) for first, until in spans)


def _write_range(file: SpoolPlace, part: RangeData) -> SpooledRange:
    spooled = unspooled(part)
    if not spooled.records:
        return spooled
    table = record_table(part)
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
