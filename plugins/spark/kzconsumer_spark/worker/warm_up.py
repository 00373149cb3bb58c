"""The first batch of a session: the first use of everything takes Spark seconds, later ones milliseconds."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from kzconsumer.errors import ConfigError
from kzconsumer.model import OffsetRange
from kzconsumer_files.writer import Written
from kzconsumer_spark.pipe.cluster import is_cluster
from kzconsumer_spark.pipe.locations import location
from kzconsumer_spark.pipe.messages import Failed, RunBatch, SpooledRange, Start
from kzconsumer_spark.ranges.batch import SparkBatch
from kzconsumer_spark.ranges.spool_reader import SCHEMA
from kzconsumer_spark.worker.query import RangeQuery, Write


def warm_up(start: Start, session: SparkSession, query: RangeQuery) -> None:
    """Run a batch of one row; if executors fetch, one without rows, which shows whether they can import what they need.

    Raises ConfigError, RuntimeError.
    """
    if start.kafka is not None:
        _run(query, _nowhere(0, None), _write_nothing)
        return
    place = f"{start.spool}/{Path(start.scratch).name}" if is_cluster(start.master) else start.scratch
    first, second = (f"{place}/{name}" for name in ("warm-1", "warm-2"))
    if is_cluster(start.master):
        session.range(0, 1, numPartitions=1).selectExpr("id as offset").write.parquet(location(first))
        first = unquote(*session.read.schema(SCHEMA).parquet(location(first)).inputFiles())
    else:  # a job less: a third of the warm-up
        pq.write_table(pa.table({"offset": [0]}), first)

    def write(batch: SparkBatch) -> Written:
        batch.frame.write.parquet(location(second))
        return Written(1, 1, 0)

    _run(query, _nowhere(1, first), write)
    if is_cluster(start.master) and session.read.schema(SCHEMA).parquet(location(second)).count() != 1:
        raise ConfigError([f"[sink.options] spool: what executors of {start.master} write to {place} is not there"])


def _run(query: RangeQuery, part: SpooledRange, write: Write) -> None:
    outcome = query.run(RunBatch(number=query.next_batch, ranges=(part,)), write)
    if isinstance(outcome, Failed):
        raise RuntimeError(outcome.error)


def _nowhere(until: int, file: str | None) -> SpooledRange:
    """A range of no topic."""
    spans = (OffsetRange("", 0, 0, until),)
    return SpooledRange(
        topic="", partition=0, first=0, until=until, incarnation=0, epoch=0, records=1, file=file, spans=spans
    )


def _write_nothing(batch: SparkBatch) -> Written:
    batch.frame.write.format("noop").mode("append").save()
    return Written(0, 1, 0)
