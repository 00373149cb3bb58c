"""Spark's tasks read ranges in slow tiered storage whole: of a batch read, of the source, and of a sink."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kzconsumer_files.target_writer import WriteResult as Counted
from kzconsumer_spark.executors.planned_topics import KafkaRegistry
from kzconsumer_spark.ranges.batch import SparkBatch
from kzconsumer_spark.worker.query import RangeQuery
from kzconsumer_spark.worker.spark_errors import Tracebacks
from kzconsumer_spark.worker_protocol.messages import Done, RunBatch
from tests.spark.spark.test_batch_source import batch, expected, offsets
from tests.spark.spark.test_executors_fetch import kafka
from tests.support.batch_ranges import batch_range
from tests.support.extent import only_nightly
from tests.support.servers import Servers
from tests.support.source_query import Written, run_to_the_end, source
from tests.support.tiered import RECORDS, Tiered

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default"), only_nightly]


async def test_tasks_read_slow_tiered_storage_whole(
    spark: SparkSession, servers: Servers, unique: str, tmp_path: Path
) -> None:
    """In make test test_tiered_storage.py reads it by the same reader."""
    tiered = Tiered(servers)
    try:
        await tiered.topic(unique)
        frame = batch(spark, tiered.cluster, unique, startingOffsets="earliest")
        assert await asyncio.to_thread(offsets, frame) == expected((0, 0, RECORDS))

        tiered.forget()
        written = Written(tmp_path)
        frame = source(spark, tiered.cluster.connect, unique)
        await asyncio.to_thread(run_to_the_end, frame, tmp_path, written)
        assert [row[2] for row in sorted(written.all)] == list(range(RECORDS))

        tiered.forget()
        counts: list[int] = []

        def write(found: SparkBatch) -> Counted:
            counts.append(found.frame.count())
            return Counted(counts[-1], 1, 0)

        def run() -> Done:
            query = RangeQuery(spark, tmp_path / "query", 1, Tracebacks(), kafka=KafkaRegistry(kafka(tiered.cluster)))
            outcome = query.run(RunBatch(number=1, ranges=(batch_range(unique, 0, 0, RECORDS),)), write)
            query.stop()
            assert isinstance(outcome, Done), outcome
            return outcome

        await asyncio.to_thread(run)
        assert counts == [RECORDS]
    finally:
        tiered.cluster.kill()
