"""`GroupStreamReader` on real servers, called as Spark calls it."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from kzconsumer.errors import BrokersUnreachableError, ConfigError, ZooKeeperUnreachableError
from kzconsumer.model import TopicPartition
from kzconsumer.registry.cluster import short_session
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.sections import ZooKeeperSettings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark import GroupSource
from kzconsumer_spark.executors.task_parts import RangeParts
from kzconsumer_spark.source import query_member
from kzconsumer_spark.source.group_source import GroupStreamReader
from kzconsumer_spark.source.query_member import HandOver
from kzconsumer_spark.source.stream_offset import StreamOffset
from tests.support.members import stored_offsets
from tests.support.plans import planned
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session

LIMIT = 60.0
COLUMNS = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
ROWS = ReadMaxRows(100)


def reader_of(connect: str, group: str, topic: str, **options: str) -> GroupStreamReader:
    base = {"zookeeper.connect": connect, "group.id": group, "topics": topic, "minRecordsPerBatch": "10"}
    return made(base | options)


def made(options: dict[str, str]) -> GroupStreamReader:
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

    monkeypatch.setattr("kzconsumer_spark.executors.planned_topics.short_session", counted)
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
        sessions.clear()
        (task,) = await asyncio.to_thread(reader.partitions, start, end)
        assert len(sessions) == 1
        assert end["epochs"] == {f"{unique}-0": 0}
        assert isinstance(task, RangeParts)
        assert task.epochs == {TopicPartition(unique, 0): 0}
        (rows,) = await asyncio.to_thread(list, reader.read(task))
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


async def test_a_planned_range_that_moved_before_spark_asked_is_delivered_by_its_next_owner_alone(
    cluster: Cluster, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may have stopped waiting for a batch while it was being planned: as if that were always so."""

    async def at_once(_: HandOver) -> None:
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(HandOver, "asked", at_once)
    monkeypatch.setattr(query_member, "FIRST_BATCH_SECONDS", 0.0)
    await create_topic(cluster.connect, unique, 2)
    sent = [Sent(n % 2, None, b"%d" % n) for n in range(20)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
    file = tmp_path / "group.toml"
    file.write_text(
        f'zookeeper.connect = "{cluster.connect}"\ngroup = {{ id = "{unique}", revoke_deadline = "100ms" }}\n'
        f"subscription.topics.{unique} = 1\n"
    )
    first, second = (made({"config": str(file), "maxTriggerDelay": "1s"}) for _ in "ab")
    start = first.initialOffset()

    async def batch_after(reader: GroupStreamReader, start: dict[str, Any]) -> list[tuple[int, int, int]]:
        """The ranges; Spark commits them."""
        with anyio.fail_after(LIMIT):
            while (end := await asyncio.to_thread(reader.latestOffset, start, ROWS)) == start:
                pass
        await asyncio.to_thread(reader.latestOffset, end, ROWS)
        return [(part.partition, part.first, part.until) for part in StreamOffset.of_json(end, unique).ranges]

    try:
        assert await asyncio.to_thread(first.latestOffset, start, ReadMaxRows(1)) == start, "it has joined"
        with anyio.fail_after(LIMIT):
            while len(await planned(cluster, unique)) < 2:
                await anyio.sleep(0.05)
        (moved,) = await batch_after(second, start)
        (left,) = await batch_after(first, start)
        assert sorted([moved, left]) == [(0, 0, 10), (1, 0, 10)]
        assert await stored_offsets(cluster.connect, unique, unique, 2) == [10, 10]
    finally:
        for reader in (first, second):
            await asyncio.to_thread(reader.stop)


async def test_the_first_call_waits_for_its_batch(
    cluster: Cluster, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next trigger may come an interval later. With a temporary directory too long for a socket, as YARN has it."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"v")])
    reader = reader_of(cluster.connect, unique, unique, maxTriggerDelay="1s")
    start = reader.initialOffset()
    try:
        with anyio.fail_after(LIMIT):
            end = await asyncio.to_thread(reader.latestOffset, start, ROWS)
        assert end != start
        assert Path(end["socket"]).is_socket()
    finally:
        await asyncio.to_thread(reader.stop)


async def test_two_sources_of_one_query_in_a_run_of_their_group(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks one after the other: the run is not over for the first until the second knows of a commit."""
    monkeypatch.setattr("kzconsumer_spark.source.query_member.EMPTY_BATCH_SECONDS", 1.0)
    topics = [f"{unique}-a", f"{unique}-b"]
    for topic in topics:
        await create_topic(cluster.connect, topic, 1)
        sent = [Sent(0, None, b"%d" % n) for n in range(10)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, sent)
    readers = [reader_of(cluster.connect, unique, topic) for topic in topics]
    delivered: list[tuple[str, int, int]] = []
    try:
        for reader in readers:
            reader.prepareForTriggerAvailableNow()
        starts, over = [reader.initialOffset() for reader in readers], False
        with anyio.fail_after(LIMIT):
            while not over:
                ends = [
                    await asyncio.to_thread(reader.latestOffset, start, ROWS)
                    for reader, start in zip(readers, starts, strict=True)
                ]
                for reader, start, end in zip(readers, starts, ends, strict=True):
                    for task in await asyncio.to_thread(reader.partitions, start, end):
                        assert isinstance(task, RangeParts)
                        delivered += [(each.topic, each.first, each.until) for each in task.parts]
                starts, over = ends, ends == starts
    finally:
        for reader in readers:
            await asyncio.to_thread(reader.stop)
    assert sorted(delivered) == [(topic, 0, 10) for topic in topics]
    assert [await stored_offsets(cluster.connect, unique, topic, 1) for topic in topics] == [[10], [10]]


def test_a_wrong_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kzconsumer.registry.cluster.LIMIT", 0.5)
    reader = reader_of("127.0.0.1:1", "g", "t")
    with pytest.raises(ZooKeeperUnreachableError, match=r"127\.0\.0\.1:1"):
        reader.latestOffset(reader.initialOffset(), ROWS)


def test_brokers_that_do_not_answer_are_an_error_where_topics_come_from_brokers(
    zookeeper: ZooKeeperServer, unique: str
) -> None:
    """A member would wait for them."""
    reader = reader_of(zookeeper.connect, unique, unique, **{"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(BrokersUnreachableError, match=r"127\.0\.0\.1:1"):
        reader.latestOffset(reader.initialOffset(), ROWS)


def test_what_a_query_cannot_be_continued_with() -> None:
    reader = reader_of("127.0.0.1:1", "g", "t")
    with pytest.raises(ConfigError, match=r"trigger\(once=True\) is not supported") as raised:
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert len(raised.traceback) == 2, "this call, and the one that Spark shows"
    batch = reader_of("127.0.0.1:1", "g", "t", startingOffsets="earliest")
    with pytest.raises(ConfigError, match=r"startingOffsets: is for spark\.read"):
        batch.latestOffset(batch.initialOffset(), ROWS)
    other = reader_of("127.0.0.1:1", "other", "t").initialOffset()
    with pytest.raises(ValueError, match="the checkpoint is of group other, not of g"):
        reader.latestOffset(other, ROWS)
    with pytest.raises(ValueError, match="the checkpoint is of group other, not of g"):
        reader.partitions(reader.initialOffset(), other)
