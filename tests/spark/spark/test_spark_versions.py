"""From old brokers into Parquet through a real daemon and a real Spark, every record compared with what was produced.

A daemon and its Spark take half a minute: only `make test-spark-versions` and `make nightly` run it. In make test
test_executors_fetch.py has a Spark read from the oldest broker, core/servers/test_consume.py compares every record of
old brokers, and test_spark_sink.py writes records as they send them, without timestamps and headers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import NIGHTLY
from tests.support.members import daemon, stored_offsets
from tests.support.version_records import EACH, PARTITIONS, Row, expected, produce_all

ASKED = "KZCONSUMER_SPARK_VERSIONS" in os.environ or NIGHTLY is not None
VERSIONS = ("0.8.2.2", "0.10.2.2", "1.1.1", "3.9.1")

pytestmark = [pytest.mark.timeout(400), pytest.mark.skipif(not ASKED, reason="make test-spark-versions")]


def written(out: Path) -> list[Row]:
    rows: list[Row] = []
    for file in out.glob("*.parquet"):
        for row in pq.read_table(file, partitioning=None).to_pylist():
            headers = row["headers"] and [(each["key"], each["value"]) for each in row["headers"]]
            time = row["timestamp"] and round(row["timestamp"].timestamp() * 1000)
            rows.append((row["partition"], row["offset"], row["key"], row["value"], time, headers))
    return sorted(rows, key=lambda row: row[:2])


@pytest.mark.parametrize("version", VERSIONS)
async def test_parquet_holds_what_was_produced(
    cluster_of: Callable[[str], Cluster], unique: str, tmp_path: Path, version: str
) -> None:
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, PARTITIONS)
    await asyncio.to_thread(produce_all, cluster, unique)
    out = tmp_path / "out"
    sink = (
        f'[sink]\nplugin = "spark"\n[sink.options]\ndestination = "parquet"\npath = "{out}"\nstart_timeout = "300s"\n'
        'conf = { "spark.driver.memory" = "512m" }\n'
    )
    with daemon(tmp_path / "member", cluster.connect, unique, {unique: 1}, sink) as member:
        while (await stored_offsets(cluster.connect, unique, unique, PARTITIONS)) != [EACH] * PARTITIONS:
            assert member.process is not None
            assert member.process.poll() is None, member.err.read_text()[-3000:]
            await asyncio.sleep(0.2)
    assert written(out) == expected(version)
