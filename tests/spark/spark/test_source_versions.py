"""From every broker version through `GroupSource`, streamed and read as a batch, every record compared.

`make nightly` runs it; test_group_source.py and test_batch_source.py read from the newest and the oldest broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from kzconsumer_sandbox.servers.jars import VERSIONS
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import only_nightly
from tests.support.members import stored_offsets
from tests.support.source_query import run_to_the_end, source
from tests.support.version_records import EACH, PARTITIONS, Row, expected, produce_all

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default"), only_nightly]

TESTED = [number for number, version in VERSIONS.items() if version.zookeeper]


def rows(frame: DataFrame) -> list[Row]:
    found = frame.selectExpr("partition", "offset", "key", "value", "unix_millis(timestamp)", "headers").collect()
    return [
        (partition, offset, key, value, time, headers and [(each["key"], each["value"]) for each in headers])
        for partition, offset, key, value, time, headers in found
    ]


@pytest.mark.parametrize("version", TESTED)
async def test_every_record_of_a_version(
    spark: SparkSession, cluster_of: Callable[[str], Cluster], unique: str, tmp_path: Path, version: str
) -> None:
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, PARTITIONS)
    await asyncio.to_thread(produce_all, cluster, unique)
    streamed: list[Row] = []

    def run() -> list[Row]:
        frame = source(spark, cluster.connect, unique, includeHeaders="true", maxRecordsPerBatch="2000")
        run_to_the_end(frame, tmp_path, lambda frame, _: streamed.extend(rows(frame)))
        options = {"zookeeper.connect": cluster.connect, "topics": unique, "includeHeaders": "true"}
        return rows(spark.read.format("kzconsumer").options(**options, startingOffsets="earliest").load())

    batch = await asyncio.to_thread(run)
    assert sorted(streamed, key=lambda row: row[:2]) == expected(version)
    assert sorted(batch, key=lambda row: row[:2]) == expected(version)
    assert await stored_offsets(cluster.connect, unique, unique, PARTITIONS) == [EACH] * PARTITIONS
