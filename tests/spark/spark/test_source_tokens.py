"""The functions of docs/spark-source.md that take each record once, over a batch that is repeated."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import only_nightly
from tests.support.members import stored_offsets
from tests.support.producing import Sent, produce
from tests.support.source_query import LIMIT, run_to_the_end, source, start
from tests.support.token_tables import function, make_table

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


def kill_executors(mark: Path, rows: Iterator[Any]) -> None:
    """Once: all of Spark's Python processes that run tasks, this one among them."""
    if next(rows, None) is not None and not mark.exists():
        mark.touch()
        os.killpg(0, signal.SIGKILL)


@only_nightly
async def test_kill_of_executors_in_a_batch_that_is_written_in_part(
    spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """The batch is repeated. Without tokens its records are there twice, which is the negative control."""
    await create_topic(cluster.connect, unique, 2)
    records = [Sent(n % 2, None, b"%d" % n) for n in range(500)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    tables = {into: tmp_path / into for into in ("into_delta", "appended")}
    for into, path in tables.items():
        make_table(into, path)
    stores = [function(into, str(path)) for into, path in tables.items()]
    batches: list[int] = []

    def write(frame: DataFrame, number: int) -> None:
        batches.append(number)
        rows = frame.select("topic", "partition", "offset", sql.col("value").cast("string"))
        for store in stores:
            store(rows, number)
        rows.foreachPartition(partial(kill_executors, tmp_path / "killed"))

    def run() -> None:
        frame = source(spark, cluster.connect, unique, minRecordsPerBatch="500", maxTriggerDelay="10m")
        with pytest.raises(StreamingQueryException, match="Python worker exited unexpectedly"):
            start(frame, tmp_path, write).awaitTermination(LIMIT)
        run_to_the_end(frame, tmp_path, write)

    await asyncio.to_thread(run)
    assert len(batches) > len(set(batches))
    found = {into: DeltaTable(path).to_pyarrow_table().to_pylist() for into, path in tables.items()}
    delivered = {into: sorted((row["partition"], row["offset"], row["value"]) for row in found[into]) for into in found}
    once = sorted((n % 2, n // 2, str(n)) for n in range(500))
    assert delivered["into_delta"] == once
    assert delivered["appended"] == sorted(once * 2)
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [250, 250]
