"""Many queries of `GroupSource`, one after the other, in one Spark session."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from kzconsumer.registry.paths import GroupPaths
from kzconsumer_sandbox.servers.cluster import Cluster
from kzconsumer_sandbox.servers.topics import create_topic
from tests.spark.spark.test_group_source import rows, send
from tests.support.extent import only_nightly
from tests.support.processes import wait_until
from tests.support.source_query import LIMIT, Written, reader_processes, source, start
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


async def test_a_query_that_has_stopped_leaves_nothing_behind(
    spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """No process, no member of the group, nothing in the driver's Python; the next one goes on where it was."""
    await create_topic(cluster.connect, unique, 2)
    written = Written(tmp_path)
    held: list[Held] = []
    for number in range(1, TIMES + 1):
        await send(cluster, unique, (number - 1) * EACH, number * EACH)
        frame = source(spark, cluster.connect, unique, maxTriggerDelay="100ms")
        query = await asyncio.to_thread(start, frame, tmp_path, written)
        try:
            assert await asyncio.to_thread(wait_until, lambda: len(written.all) >= number * EACH, LIMIT)  # noqa: B023
        finally:
            await asyncio.to_thread(query.stop)
        assert query.exception() is None
        assert await asyncio.to_thread(wait_until, lambda: not reader_processes(spark), LIMIT)
        held.append(Held.now())
    assert written.all == rows(unique, TIMES * EACH)
    async with session(cluster.connect) as zookeeper:
        assert not await zookeeper.children(GroupPaths(unique).ids)
    settled, last = held[4], held[-1]
    print(f"after {TIMES} queries: {last}, after five: {settled}")
    assert (last.descriptors, last.threads) == (settled.descriptors, settled.threads)
    assert last.memory < settled.memory + 4 * 1024
