"""The Spark sink and the source for a Spark of one's own on a cluster without ZooKeeper, every record compared.

`make nightly` runs the sink. In make test its parts are proven alone: the fetch of a task in test_kafka_registry.py,
the member in core/servers/test_kraft.py, the sink with other clusters.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pyarrow.dataset as ds
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from kzconsumer.registry.paths import GroupPaths
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic_in_kraft
from tests.spark.spark.test_group_source import AT_ONCE, rows, send
from tests.support.extent import only_nightly
from tests.support.members import committed, daemon, stored_offsets
from tests.support.plans import planned
from tests.support.source_query import LIMIT, Written, reader_processes, run_to_the_end, source, start
from tests.support.zookeeper_sessions import session, until

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


@only_nightly
async def test_a_query_and_batch_reads(spark: SparkSession, kraft: Cluster, unique: str, tmp_path: Path) -> None:
    """kill -9 of the query's member in a batch. Its successor uses the addresses that a member has kept."""
    await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, unique, 2)
    await send(kraft, unique, 0, 500)
    brokers = {"bootstrap.servers": kraft.bootstrap}

    def kill_the_member(number: int) -> None:
        if written.rows(number):
            (member,) = reader_processes(spark)
            os.kill(member, signal.SIGKILL)

    written = Written(tmp_path, kill_the_member)

    def run_until_killed() -> None:
        query = start(source(spark, kraft.connect, unique, **brokers, **AT_ONCE), tmp_path, written)
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(LIMIT)

    await asyncio.to_thread(run_until_killed)
    assert len(await planned(kraft, unique)) == 2

    def left(**options: str) -> list[tuple[object, ...]]:
        """What a batch read finds."""
        base = {"zookeeper.connect": kraft.connect, "topics": unique}
        found: DataFrame = spark.read.format("kzconsumer").options(**base, **options).load()
        return sorted(tuple(row) for row in found.selectExpr("topic", "partition", "offset", "string(value)").collect())

    assert await asyncio.to_thread(lambda: left(**brokers, **{"group.id": unique})) == rows(unique, 500)
    await send(kraft, unique, 500, 600)
    async with session(kraft.connect) as zookeeper:
        await zookeeper.create(GroupPaths(unique).brokers, msgspec.json.encode([kraft.bootstrap]))
    frame = source(spark, kraft.connect, unique)
    await asyncio.to_thread(run_to_the_end, frame, tmp_path, Written(tmp_path))
    assert written.all == rows(unique, 600)
    assert await stored_offsets(kraft.connect, unique, unique, 2) == [300, 300]
    assert not await planned(kraft, unique)
    assert await asyncio.to_thread(lambda: left(startingOffsets="earliest")) == rows(unique, 600)
    assert await asyncio.to_thread(lambda: left(**{"group.id": unique})) == []

    # The offsets of a deleted topic do not count for a new one of its name.
    admin = AdminClient({"bootstrap.servers": kraft.bootstrap})
    await asyncio.to_thread(admin.delete_topics([unique])[unique].result, 30)
    await until(lambda: unique not in admin.list_topics(timeout=10).topics)
    await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, unique, 2)
    await send(kraft, unique, 0, 700)
    assert await asyncio.to_thread(lambda: left(**{"group.id": unique})) == rows(unique, 700)


@only_nightly
async def test_the_sink(kraft: Cluster, unique: str, tmp_path: Path) -> None:
    """The successor of a member that was killed (kill -9) writes what is planned; each record is there once."""
    await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, unique, 2)
    await send(kraft, unique, 0, 1600)
    options = {"destination": "parquet", "path": str(tmp_path / "out")}
    extra = f'[brokers]\nbootstrap = ["{kraft.bootstrap}"]\n[sink]\nplugin = "spark"\n[sink.options]\n'
    extra += "".join(f'{name} = "{value}"\n' for name, value in options.items())
    with daemon(tmp_path / "first", kraft.connect, unique, {unique: 1}, extra) as first:
        await until(lambda: first.events("batch written"), LIMIT)
        first.signal(signal.SIGKILL)
        await first.ended()
    await send(kraft, unique, 1600, 1700)
    with daemon(tmp_path / "member", kraft.connect, unique, {unique: 1}, extra) as member:
        await committed(kraft.connect, unique, unique, [850, 850], LIMIT)
        member.signal(signal.SIGTERM)
        assert await member.ended() == 0
    table = ds.dataset(tmp_path / "out", format="parquet", partitioning=None).to_table()
    found = [(row["topic"], row["partition"], row["offset"], row["value"].decode()) for row in table.to_pylist()]
    assert sorted(found) == rows(unique, 1700)
