"""Each record once in a table with tokens, under random faults of streaming queries that are a group.

A producer never stops; two queries write into a Delta or an Iceberg table, as docs/spark-source.md prints it, each with
a driver of its own and executors of a standalone cluster. `KZCONSUMER_CHAOS=30` (`make chaos-source`) plays so many
rounds into each, from a seed that is printed, or that `KZCONSUMER_CHAOS_SEED` gives. `make nightly` plays two, and the
negative control; `make test` plays none: test_group_source.py kills the driver and the source's process,
test_source_tokens.py the Python processes of executors.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from random import Random

import anyio
import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.chaos import DeltaFiles, IcebergFiles
from tests.support.chaos_rounds import play
from tests.support.extent import NIGHTLY, extent
from tests.support.flow import flow
from tests.support.query_chaos import FAULTS, QueryGroup, move_in_batch
from tests.support.spark_cluster import SparkCluster
from tests.support.token_tables import make_table

ROUNDS = int(os.environ.get("KZCONSUMER_CHAOS", extent("0", "2")))
SEED = int(os.environ.get("KZCONSUMER_CHAOS_SEED", NIGHTLY or time.time_ns() // 1_000_000 % 1_000_000))
PARTITIONS = 4

pytestmark = [
    pytest.mark.timeout(900 + 300 * ROUNDS),
    pytest.mark.skipif(not ROUNDS, reason="make chaos-source"),
]


@pytest.mark.parametrize("into", ["into_delta", "into_iceberg"])
async def test_each_record_is_in_the_table_once(
    cluster: Cluster, standalone: SparkCluster, unique: str, tmp_path: Path, into: str
) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    table = DeltaFiles(tmp_path / "out") if into == "into_delta" else IcebergFiles(tmp_path / "out")
    make_table(into, tmp_path / "out")
    with (
        QueryGroup(cluster, standalone, unique, PARTITIONS, tmp_path, into, table) as group,
        flow(cluster, unique, PARTITIONS) as sent,
    ):
        await play(group, sent, ROUNDS, SEED, FAULTS)
        await asyncio.to_thread(sent.end)
        ends = [sent.sent[partition] for partition in range(PARTITIONS)]
        await group.past(ends)
        assert await group.committed() == ends
        assert await group.verdict() == ([], [])
        assert sum(table.rows().values()) == sum(ends)
        print(f"in the end {sum(ends)} records, each of them once")


async def test_without_tokens_records_are_there_twice(
    cluster: Cluster, standalone: SparkCluster, unique: str, tmp_path: Path
) -> None:
    """The negative control."""
    await create_topic(cluster.connect, unique, PARTITIONS)
    make_table("appended", tmp_path / "out")
    table = DeltaFiles(tmp_path / "out")
    with (
        QueryGroup(cluster, standalone, unique, PARTITIONS, tmp_path, "appended", table) as group,
        flow(cluster, unique, PARTITIONS),
    ):
        group.start("a")
        group.start("b")
        await group.whole(2)
        await move_in_batch(group, "a", Random(SEED))
        with anyio.fail_after(60):
            while not (found := await group.verdict())[1]:
                await anyio.sleep(0.5)
        print(f"\nwithout tokens: {len(found[0])} missing, {len(found[1])} twice")
        assert not found[0]
