"""A streaming query whose batch waits for the leader of a partition, in a Spark: Spark can stop it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.spark.spark.test_group_source import AT_ONCE, rows, send
from tests.support.extent import only_nightly
from tests.support.processes import wait_until
from tests.support.servers import Servers
from tests.support.source_query import LIMIT, Written, reader_processes, run_to_the_end, source, start

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


@only_nightly
async def test_a_query_that_waits_for_a_leader_can_be_stopped(
    spark: SparkSession, servers: Servers, unique: str, tmp_path: Path
) -> None:
    """Its batch is in the checkpoint; started again with the leader back, it delivers the batch as it was."""
    cluster = servers.cluster(unique, brokers=2)
    await create_topic(cluster.connect, unique, 2)  # each broker leads a partition
    await send(cluster, unique, 0, 500)

    def fail(number: int) -> None:
        raise RuntimeError("the sink fails")

    def run_until_it_fails() -> None:
        query = start(source(spark, cluster.connect, unique, **AT_ONCE), tmp_path, Written(tmp_path, fail))
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(LIMIT)

    await asyncio.to_thread(run_until_it_fails)
    written = Written(tmp_path)
    before = written.ranges(0)
    cluster.brokers[2].kill()
    query = await asyncio.to_thread(start, source(spark, cluster.connect, unique), tmp_path, written)
    await asyncio.to_thread(wait_until, lambda: bool(reader_processes(spark)), LIMIT)
    await asyncio.sleep(5)
    assert query.isActive, query.exception()
    with anyio.fail_after(30):
        await asyncio.to_thread(query.stop)
        while reader_processes(spark):
            await anyio.sleep(0.1)
    cluster.brokers[2].wait_startable()
    cluster.brokers[2].start()
    cluster.brokers[2].wait_ready()
    await asyncio.to_thread(run_to_the_end, source(spark, cluster.connect, unique), tmp_path, written)
    assert written.ranges(0) == before
    assert written.all == rows(unique, 500)
    cluster.kill()
