"""A batch as destinations get it: the frame that foreachBatch received, and the ranges that it holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final, NamedTuple, Protocol

import msgspec
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from kzconsumer import clock
from kzconsumer.file_names import MOST_BYTES, named_after
from kzconsumer.model import OffsetRange, RangeIdentity, TopicPartition
from kzconsumer.records.checksums import Contents
from kzconsumer_spark.worker_protocol.messages import BatchRange


class PartsRead(NamedTuple):
    """What tasks have read of a partition, and how many of these records they did not deliver, as they are rejected.

    These may be fewer than were rejected: the log may have been compacted since.
    """

    contents: Contents = Contents()
    rejected: int = 0


class SparkBatch(NamedTuple):
    """`frame` has the records of `ranges`, in no order across ranges. `follows`, `is_trial`: see `RunBatch`.

    If executors fetch, `read` gives what they have read so far. It raises NotWholeError until that is everything.
    Evaluate it once: Spark counts what its tasks read as rows of the query, each time.
    """

    number: int
    frame: DataFrame
    ranges: Sequence[BatchRange]
    follows: Sequence[RangeIdentity] = ()
    is_trial: bool = False
    read: Callable[[], Mapping[TopicPartition, PartsRead]] | None = None

    def rows(self, wanted: Sequence[BatchRange]) -> DataFrame:
        """The records of those ranges of the batch."""
        others = {part.range for part in self.ranges if part.records} - {part.range for part in wanted}
        return self.frame.where(reduce(or_, map(_of, wanted))) if others else self.frame


def _of(part: BatchRange) -> Column:
    partition = (sql.col("topic") == part.topic) & (sql.col("partition") == part.partition)
    return partition & (sql.col("offset") >= part.first) & (sql.col("offset") < part.until)


# Which range a row belongs to, whatever the user's SQL makes of the records.
#
# Each record is tagged with topic and partition (a batch never has two ranges of one partition), in columns that are
# kept through `select` and never written.


class Shaped(NamedTuple):
    """The frame to write, and for each range how many of its records are in quarantine instead."""

    frame: DataFrame
    quarantined: Mapping[OffsetRange, int]


class RowShaping(Protocol):
    """The frame of the records into the frame to write.

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

    def shape(self, frame: DataFrame, ranges: Sequence[BatchRange]) -> Shaped: ...

    def has_rows(self, shaped: DataFrame) -> bool:
        """False if no row is left; always True if none can be left out. The batch is read once, by this or by what
        follows."""
        ...


class RowsLost(Exception):
    """What Spark wrote of a range is not every record of it, though nothing was to be left out."""


class AsTheyCame:
    """Nothing is changed."""

    leaves_out_rows = False
    columns = None

    def shape(self, frame: DataFrame, ranges: Sequence[BatchRange]) -> Shaped:
        return Shaped(frame, {})

    def has_rows(self, shaped: DataFrame) -> bool:
        return True


def tagged(frame: DataFrame, ranges: Sequence[BatchRange], shaping: RowShaping) -> Shaped:
    """The rows to write of `frame`, the records of `ranges`, each with the columns `TAGS`."""
    topic = sql.col("topic")
    for name in {part.topic for part in ranges if tag_of(part.topic) != part.topic}:
        topic = sql.when(sql.col("topic") == name, sql.lit(tag_of(name))).otherwise(topic)
    tags = {RANGE_TOPIC: topic, RANGE_PARTITION: sql.col("partition"), RANGE_OFFSET: sql.col("offset")}
    return shaping.shape(frame.withColumns(tags), ranges)


def tag_of(topic: str) -> str:
    """What `RANGE_TOPIC` has: Spark makes directories `_kz_topic=<tag>`."""
    return named_after(topic, lambda name: name, MOST_BYTES - len(f"{RANGE_TOPIC}="))


def count_rows(frame: DataFrame, ranges: Sequence[BatchRange]) -> tuple[DataFrame, Callable[[], list[int]]]:
    """The frame, and the row counts of its ranges, known once it has been written."""
    observation = Observation()
    here = [
        (sql.col(RANGE_TOPIC) == tag_of(part.topic)) & (sql.col(RANGE_PARTITION) == part.partition) for part in ranges
    ]
    counts = [sql.count_if(condition).alias(str(number)) for number, condition in enumerate(here)]
    return frame.observe(observation, *counts), lambda: [observation.get[str(n)] for n in range(len(ranges))]


def require_all(batch: SparkBatch, rows: Mapping[TopicPartition, int], shaping: RowShaping) -> None:
    """Raises RowsLost if the rows of a range are not as many as the records that tasks have delivered, and none was to
    be left out."""
    if shaping.leaves_out_rows or batch.read is None:
        return
    read = batch.read()
    for part in batch.ranges:
        partition = part.range.topic_partition
        if partition in rows and part.records:
            delivered = read[partition].contents.records - read[partition].rejected
            if rows[partition] != delivered:
                raise RowsLost(f"Spark wrote {rows[partition]} rows of {part.range}, and its tasks read {delivered}")


def counted(part: BatchRange, rows: int, shaping: RowShaping) -> BatchRange:
    """With the number of its records; where rows are left out, that of offsets stays."""
    return part if shaping.leaves_out_rows else msgspec.structs.replace(part, records=rows)


RANGE_TOPIC: Final = "_kz_topic"
RANGE_PARTITION: Final = "_kz_partition"
#: By these columns a staged row is known to be of a range: a batch has never two ranges of one partition.
RANGE_COLUMNS: Final = (RANGE_TOPIC, RANGE_PARTITION)
#: The offset of a row's record. It is not written.
RANGE_OFFSET: Final = "_kz_offset"
TAGS: Final = (*RANGE_COLUMNS, RANGE_OFFSET)
#: Of a row staged in a database: Spark's `monotonically_increasing_id`, the task's partition above and the row below.
STAGED_ROW: Final = "_kz_row"


# The columns of Spark's own Kafka source.

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,"
    " headers array<struct<key: string, value: binary>>"
)
ACCOUNT: Final = "_kz_account"
"""One more column, of what a task on another machine reports of the range that it has read (`executors.fetching`)."""


# The worker's copy of the daemon's lease: until when it may write and publish.
#
# It makes writes by a member that has lost its partitions rare. Correctness does not depend on it: of several writers
# of a range the first wins.


class Permission(Protocol):
    def require(self) -> None:
        """Return when ranges may be written. Raises if they may not, which fails the batch."""
        ...

    def require_now(self) -> None:
        """Raises unless ranges may be written at this moment: waits for nothing, and asks nobody."""
        ...

    def require_whole(self) -> None:
        """Return when what was read may be published, before which it is called. Raises as `require`, and if executors
        have not read all, or not what was planned."""
        ...

    def report_read(self) -> None:
        """If executors have read all by now, have it recorded before this returns. Raises if it cannot be."""
        ...


class LeaseLost(Exception):
    """The lease ran out and was not renewed in time."""


class WorkerLease:
    """`safe_until` is in seconds of `kzconsumer.clock`, the same clock on both sides of the pipe."""

    def __init__(self, safe_until: float, patience: float = 30.0) -> None:
        self._safe_until = safe_until
        self._patience = patience
        self._changed = threading.Condition()

    def renew(self, safe_until: float) -> None:
        with self._changed:
            self._safe_until = safe_until
            self._changed.notify_all()

    def require(self) -> None:
        """Return when the lease holds, waiting up to `patience` seconds for its renewal. Raises LeaseLost."""
        self._require(self._patience)

    def require_now(self) -> None:
        """Raises LeaseLost unless the lease holds."""
        self._require(0)

    def _require(self, patience: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: clock.now() < self._safe_until, patience):
                raise LeaseLost(f"the lease ran out and was not renewed within {patience:.0f} s")
