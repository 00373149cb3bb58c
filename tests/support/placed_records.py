"""Records of ranges as a frame, in place of what Spark's tasks would fetch."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from kzconsumer.model import OffsetRange
from kzconsumer.sinks.interface import RangeData
from kzconsumer_files.parquet import record_table
from kzconsumer_spark.ranges.batch import SCHEMA
from kzconsumer_spark.worker_protocol.messages import BatchRange


class Permitted:
    """The `Permission` of a lease that never ends; nobody keeps account of what was read."""

    def require(self) -> None: ...

    def require_now(self) -> None: ...

    def require_whole(self) -> None: ...

    def report_read(self) -> None: ...


PERMITTED = Permitted()


def placed_frame(
    session: SparkSession, directory: Path, *ranges: RangeData
) -> tuple[DataFrame, tuple[BatchRange, ...]]:
    """The records of the ranges, each range in a task of its own, as destinations get them."""
    parts = placed(directory, *ranges)
    return records_of(session, directory, parts), parts


def placed(directory: Path, *ranges: RangeData) -> tuple[BatchRange, ...]:
    """Writes the records of the ranges into the directory, for `records_of`."""
    directory.mkdir(parents=True, exist_ok=True)
    for part in ranges:
        if part.records:
            pq.write_table(record_table(part), directory / _name(part.range), store_schema=False)
    return tuple(map(BatchRange.of, ranges))


def records_of(session: SparkSession, directory: Path, ranges: Sequence[BatchRange]) -> DataFrame:
    files = [f"file://{directory / _name(part.range)}" for part in ranges if part.records]
    for name in ("maxPartitionBytes", "openCostInBytes"):  # a task for each file
        session.conf.set(f"spark.sql.files.{name}", 1 << 40)
    return session.read.schema(SCHEMA).parquet(*files) if files else session.createDataFrame([], SCHEMA)


def _name(part: OffsetRange) -> str:
    """Short, and none that Spark ignores, whatever the topic's is."""
    return f"range-{zlib.crc32(str(part).encode()):08x}.parquet"
