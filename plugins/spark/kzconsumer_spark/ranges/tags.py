"""Which range a row belongs to, whatever the user's SQL makes of the records.

Each record is tagged with topic and partition (a batch never has two ranges of one partition), in columns that are kept
through `select` and never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from kzconsumer.file_names import MOST_BYTES, named_after
from kzconsumer.model import OffsetRange
from kzconsumer_spark.pipe.messages import SpooledRange


class Shaped(NamedTuple):
    """The frame to write, and for each range how many of its records are in quarantine instead."""

    frame: DataFrame
    quarantined: Mapping[OffsetRange, int]


class Shaping(Protocol):
    """The frame of the spool into the frame to write.

    Any columns, and with them `TAGS` as they came; rows may be left out or changed, none moves to
    another range.
    """

    @property
    def leaves_out_rows(self) -> bool:
        """False where the frame is written as it comes."""
        ...

    @property
    def columns(self) -> StructType | None:
        """Those of the frame to write, if they are known without a record."""
        ...

    def shape(self, frame: DataFrame, ranges: Sequence[SpooledRange]) -> Shaped: ...

    def has_rows(self, shaped: DataFrame) -> bool:
        """Whether any record is left. The records of the batch are read once, by this or by what follows."""
        ...


class RowsLost(Exception):
    """What Spark wrote of a range is not every record of it, though nothing was to be left out."""


class AsTheyCame:
    """Nothing is changed."""

    leaves_out_rows = False
    columns = None

    def shape(self, frame: DataFrame, ranges: Sequence[SpooledRange]) -> Shaped:
        return Shaped(frame, {})

    def has_rows(self, shaped: DataFrame) -> bool:
        return True


def tagged(frame: DataFrame, ranges: Sequence[SpooledRange], shaping: Shaping) -> Shaped:
    """The rows to write of `frame`, the records of `ranges`, each with the columns `TAGS`."""
    topic = sql.col("topic")
    for name in {part.topic for part in ranges if tag_of(part.topic) != part.topic}:
        topic = sql.when(sql.col("topic") == name, sql.lit(tag_of(name))).otherwise(topic)
    tags = {RANGE_TOPIC: topic, RANGE_PARTITION: sql.col("partition"), RANGE_OFFSET: sql.col("offset")}
    return shaping.shape(frame.withColumns(tags), ranges)


def tag_of(topic: str) -> str:
    """What `RANGE_TOPIC` has: Spark makes directories `_kz_topic=<tag>`."""
    return named_after(topic, lambda name: name, MOST_BYTES - len(f"{RANGE_TOPIC}="))


def count_rows(frame: DataFrame, ranges: Sequence[SpooledRange]) -> tuple[DataFrame, Callable[[], list[int]]]:
    """The frame, and the row counts of its ranges, known once it has been written."""
    observation = Observation()
    here = [
        (sql.col(RANGE_TOPIC) == tag_of(part.topic)) & (sql.col(RANGE_PARTITION) == part.partition) for part in ranges
    ]
    counts = [sql.count_if(condition).alias(str(number)) for number, condition in enumerate(here)]
    return frame.observe(observation, *counts), lambda: [observation.get[str(n)] for n in range(len(ranges))]


def require_all(rows: Mapping[SpooledRange, int], shaping: Shaping) -> None:
    """Raises RowsLost where a range has not the rows that it had in the spool, and none was to be left out."""
    for part, count in rows.items():
        if part.counted and not shaping.leaves_out_rows and count != part.records:
            raise RowsLost(f"Spark wrote {count} rows of {part.range}, which has {part.records}")


RANGE_TOPIC: Final = "_kz_topic"
RANGE_PARTITION: Final = "_kz_partition"
#: By these columns a staged row is known to be of a range: a batch has never two ranges of one partition.
RANGE_COLUMNS: Final = (RANGE_TOPIC, RANGE_PARTITION)
#: The offset of a row's record. It is not written.
RANGE_OFFSET: Final = "_kz_offset"
TAGS: Final = (*RANGE_COLUMNS, RANGE_OFFSET)
#: Of a row staged in a database: Spark's `monotonically_increasing_id`, the task's partition above and the row below.
STAGED_ROW: Final = "_kz_row"
