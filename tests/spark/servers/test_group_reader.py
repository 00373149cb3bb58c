"""`GroupStreamReader` on real servers, called as Spark calls it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from kzconsumer.errors import ConfigError
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.sessions import short_session
from kzconsumer.settings.sections import ZooKeeperSettings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.cluster import Cluster
from kzconsumer_sandbox.servers.topics import create_topic
from kzconsumer_spark import GroupSource
from kzconsumer_spark.source.group_source import GroupStreamReader
from tests.support.members import stored_offsets
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session

LIMIT = 60.0
COLUMNS = StructType([StructField(name, BinaryType()) for name in ("offset", "value")])
ROWS = ReadMaxRows(100)


def reader_of(connect: str, group: str, topic: str) -> GroupStreamReader:
    options = {"zookeeper.connect": connect, "group.id": group, "topics": topic, "minRecordsPerBatch": "10"}
    reader = GroupSource(CaseInsensitiveDict(options)).streamReader(COLUMNS)  # type: ignore[arg-type]
    assert isinstance(reader, GroupStreamReader)
    return reader


async def test_offsets_are_committed_when_spark_asks_for_the_next_batch_and_not_before(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks of a batch are made with one session."""
    sessions: list[ZooKeeperSettings] = []

    def counted(zookeeper: ZooKeeperSettings) -> AbstractAsyncContextManager[ZooKeeperSession]:
        sessions.append(zookeeper)
        return short_session(zookeeper)

    monkeypatch.setattr("kzconsumer_spark.worker.kafka_registry.short_session", counted)
    await create_topic(cluster.connect, unique, 1)
    sent = [Sent(0, None, b"%d" % n) for n in range(10)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
    reader = reader_of(cluster.connect, unique, unique)
    start = reader.initialOffset()

    async def following(start: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(reader.latestOffset, start, ROWS)

    try:
        with anyio.fail_after(LIMIT):
            while (end := await following(start)) == start:
                pass
        parts = await asyncio.to_thread(reader.partitions, start, end)
        (part,) = parts
        assert len(sessions) == 1
        (rows,) = await asyncio.to_thread(list, reader.read(part))
        assert rows.to_pylist() == [{"offset": n, "value": b"%d" % n} for n in range(10)]
        assert await following(start) == end  # asked again
        assert await stored_offsets(cluster.connect, unique, unique, 1) == [0]
        assert await following(end) == end
        assert await stored_offsets(cluster.connect, unique, unique, 1) == [10]
        assert not await asyncio.to_thread(reader.partitions, end, end)
    finally:
        await asyncio.to_thread(reader.stop)
    async with session(cluster.connect) as zookeeper:
        assert not await zookeeper.children(GroupPaths(unique).ids)


def test_what_a_query_cannot_be_continued_with() -> None:
    reader = reader_of("127.0.0.1:1", "g", "t")
    with pytest.raises(ConfigError, match=r"trigger\(once=True\) is not supported"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    other = reader_of("127.0.0.1:1", "other", "t").initialOffset()
    with pytest.raises(ValueError, match="the checkpoint is of group other, not of g"):
        reader.latestOffset(other, ROWS)
    with pytest.raises(ValueError, match="the checkpoint is of group other, not of g"):
        reader.partitions(reader.initialOffset(), other)
