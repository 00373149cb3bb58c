"""State that Spark keeps of the source's records over a restart, and two sources of different groups in one query."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.spark.spark.test_group_source import send
from tests.support.extent import only_nightly
from tests.support.members import stored_offsets
from tests.support.source_query import LIMIT, run_to_the_end, source, start

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("default"), only_nightly]


class Rows:
    """By batch: a batch that is repeated counts once, as in a sink that knows its number."""

    def __init__(self) -> None:
        self.by_batch: dict[int, list[tuple[object, ...]]] = {}
        self.fail_at: int | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = [tuple(row) for row in frame.collect()]
        if number == self.fail_at:
            raise RuntimeError("planned to fail")
        self.by_batch[number] = rows

    @property
    def all(self) -> list[tuple[object, ...]]:
        return [row for rows in self.by_batch.values() for row in rows]


def run_into_a_failure(frame: DataFrame, folder: Path, rows: Rows, number: int) -> None:
    rows.fail_at = number
    with pytest.raises(StreamingQueryException, match="planned to fail"):
        start(frame, folder, rows, availableNow=True).awaitTermination(LIMIT)
    rows.fail_at = None


async def test_windows_and_their_watermark_over_a_failure_and_restarts(
    spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """Ten seconds of events each, of which a record's value is the time. A window is given once, when it is over."""

    def counts() -> DataFrame:
        read = source(spark, cluster.connect, unique, maxRecordsPerBatch="200")
        events = read.selectExpr("timestamp_seconds(CAST(CAST(value AS STRING) AS BIGINT)) AS at")
        windows = events.withWatermark("at", "500 seconds").groupBy(sql.window("at", "10 seconds"))
        return windows.count().selectExpr("unix_seconds(window.start)", "count")

    rows = Rows()
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 0, 600)
    await asyncio.to_thread(run_into_a_failure, counts(), tmp_path, rows, 1)
    await asyncio.to_thread(run_to_the_end, counts(), tmp_path, rows)
    await send(cluster, unique, 600, 1000)
    await send(cluster, unique, 10_000, 10_002)
    await asyncio.to_thread(run_to_the_end, counts(), tmp_path, rows)
    assert sorted(rows.all) == [(start, 10) for start in range(0, 1000, 10)]
    await send(cluster, unique, 5, 6)  # too late
    await asyncio.to_thread(run_to_the_end, counts(), tmp_path, rows)
    assert sorted(rows.all) == [(start, 10) for start in range(0, 1000, 10)]
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [501, 502]


async def test_two_sources_of_different_groups_joined_over_a_failure_and_a_restart(
    spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """A record meets one that came before the restart."""
    other = f"{unique}-other"

    def pairs() -> DataFrame:
        left, right = (source(spark, cluster.connect, name, maxRecordsPerBatch="150") for name in (unique, other))
        texts = left.selectExpr("CAST(value AS STRING) AS text"), right.selectExpr("CAST(value AS STRING) AS text")
        return texts[0].join(texts[1], "text")

    rows = Rows()
    for name in (unique, other):
        await create_topic(cluster.connect, name, 2)
    await send(cluster, unique, 0, 400)
    await send(cluster, other, 200, 500)
    await asyncio.to_thread(run_into_a_failure, pairs(), tmp_path, rows, 1)
    await asyncio.to_thread(run_to_the_end, pairs(), tmp_path, rows)
    assert Counter(rows.all) == Counter((str(n),) for n in range(200, 400))
    await send(cluster, unique, 400, 600)
    await send(cluster, other, 100, 200)
    await asyncio.to_thread(run_to_the_end, pairs(), tmp_path, rows)
    assert Counter(rows.all) == Counter((str(n),) for n in range(100, 500))
    for name, until in ((unique, 300), (other, 200)):
        assert await stored_offsets(cluster.connect, name, name, 2) == [until, until]
