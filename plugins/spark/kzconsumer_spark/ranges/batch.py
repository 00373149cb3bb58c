"""A batch as destinations get it: the frame that foreachBatch received, and the ranges that it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.records.contents import Contents
from kzconsumer_spark.pipe.messages import SpooledRange


class SparkBatch(NamedTuple):
    """`frame` has the records of `ranges`, in no order across ranges. `follows`, `is_trial`: see `RunBatch`.

    If executors fetch, `contents` gives what they have read so far. It raises NotWholeError until that is everything.
    Evaluate it once: Spark counts what its tasks read as rows of the query, each time.
    """

    number: int
    frame: DataFrame
    ranges: Sequence[SpooledRange]
    follows: Sequence[RangeIdentity] = ()
    is_trial: bool = False
    contents: Callable[[], Mapping[TopicPartition, Contents]] | None = None

    def rows(self, wanted: Sequence[SpooledRange]) -> DataFrame:
        """The records of those ranges of the batch."""
        others = {part.range for part in self.ranges if part.records} - {part.range for part in wanted}
        return self.frame.where(reduce(or_, map(_of, wanted))) if others else self.frame


def _of(part: SpooledRange) -> Column:
    partition = (sql.col("topic") == part.topic) & (sql.col("partition") == part.partition)
    return partition & (sql.col("offset") >= part.first) & (sql.col("offset") < part.until)
