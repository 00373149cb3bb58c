"""Many queries of `GroupSource`, one after the other, in one Spark session."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kzconsumer.registry.paths import GroupPaths
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.spark.spark.test_group_source import send
from tests.support.extent import only_nightly
from tests.support.processes import wait_until
from tests.support.source_query import LIMIT, reader_processes, source
from tests.support.zookeeper_sessions import session

TIMES, EACH = 30, 20

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("default"), only_nightly]


class Held(NamedTuple):
    """By the driver's Python."""

    descriptors: int
    threads: int
    memory: int
    """Resident, in KiB."""

    @classmethod
    def now(cls) -> Held:
        place = Path(f"/proc/{os.getpid()}")
        values = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        return cls(len(os.listdir(place / "fd")), int(values["Threads"]), int(values["VmRSS"].split()[0]))


def has_read(query: StreamingQuery, records: int) -> bool:
    return bool(sum(batch["numInputRows"] for batch in query.recentProgress) >= records)


async def test_a_query_that_has_stopped_leaves_nothing_behind(
    spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """No process, no member of the group, nothing in the driver's Python; the next one goes on where it was.

    Into files: with `foreachBatch` Spark keeps a connection and a thread of each query there.
    """
    await create_topic(cluster.connect, unique, 2)
    held: list[Held] = []
    for number in range(TIMES):
        await send(cluster, unique, number * EACH, (number + 1) * EACH)
        frame = source(spark, cluster.connect, unique, maxTriggerDelay="100ms")
        files = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = await asyncio.to_thread(files.start, str(tmp_path / "out"))
        try:
            assert await asyncio.to_thread(wait_until, partial(has_read, query, EACH), LIMIT), query.exception()
        finally:
            await asyncio.to_thread(query.stop)
        assert query.exception() is None
        assert await asyncio.to_thread(wait_until, lambda: not reader_processes(spark), LIMIT)
        held.append(Held.now())
    found = await asyncio.to_thread(lambda: spark.read.parquet(str(tmp_path / "out")).collect())
    assert sorted(int(row["value"]) for row in found) == list(range(TIMES * EACH))
    async with session(cluster.connect) as zookeeper:
        assert not await zookeeper.children(GroupPaths(unique).ids)
    settled, last = held[4], held[-1]
    print(f"after {TIMES} queries: {last}, after five: {settled}")
    assert (last.descriptors, last.threads) == (settled.descriptors, settled.threads)
    assert last.memory < settled.memory + 4 * 1024
