"""Spool files as a DataFrame with the columns of Spark's own Kafka source.

The schema is given, not inferred: a spool file leaves out columns that are null throughout, and Spark need not read a
file to learn its schema.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from kzconsumer_spark.pipe.locations import location
from kzconsumer_spark.pipe.messages import SpooledRange

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,"
    " headers array<struct<key: string, value: binary>>"
)


def read_spool(session: SparkSession, ranges: Sequence[SpooledRange]) -> DataFrame:
    """The records of `ranges` (those that have any), in no order across ranges."""
    return session.read.schema(SCHEMA).parquet(*(location(part.file) for part in ranges if part.file is not None))
