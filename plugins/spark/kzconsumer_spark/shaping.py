"""Which range a row belongs to, through whatever makes the rows to write of the records that came.

Owns no state. Destinations whose frame may have any columns and fewer rows tag each record with its range's partition
(a batch has never two ranges of one), in columns that a `Shape` carries through and that are never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql

from kzconsumer_spark.identity import RANGE_PARTITION, RANGE_TOPIC
from kzconsumer_spark.messages import SpooledRange
from kzconsumer_spark.spool_reader import read_spool

#: The frame of the spool into the frame to write: any columns, and with them `identity.RANGE_COLUMNS` as they came.
#: Rows may be left out or changed; none moves to another range.
Shape: TypeAlias = Callable[[DataFrame], DataFrame]


class RowsLost(Exception):
    """What Spark wrote of a range is not every record of it, though nothing was to be left out."""


def tagged(session: SparkSession, ranges: Sequence[SpooledRange], shape: Shape | None) -> DataFrame:
    """The rows to write of `ranges`, each with the `RANGE_COLUMNS`."""
    frame = read_spool(session, ranges).withColumns(
        {RANGE_TOPIC: sql.col("topic"), RANGE_PARTITION: sql.col("partition")}
    )
    return frame if shape is None else shape(frame)


def count_rows(frame: DataFrame, ranges: Sequence[SpooledRange]) -> tuple[DataFrame, Callable[[], list[int]]]:
    """The frame, and what tells, once it has been written, how many rows of each range it had."""
    observation = Observation()
    here = [(sql.col(RANGE_TOPIC) == part.topic) & (sql.col(RANGE_PARTITION) == part.partition) for part in ranges]
    counts = [sql.count_if(condition).alias(str(number)) for number, condition in enumerate(here)]
    return frame.observe(observation, *counts), lambda: [observation.get[str(n)] for n in range(len(ranges))]


def require_all(rows: Mapping[SpooledRange, int], shape: Shape | None) -> None:
    """Raises RowsLost where a range has not the rows that it had in the spool, and nothing has shaped them."""
    for part, count in rows.items():
        if shape is None and count != part.records:
            raise RowsLost(f"Spark wrote {count} rows of {part.range}, which has {part.records}")
