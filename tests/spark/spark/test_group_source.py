"""A streaming query of a Spark of the user's own as a member of a group, on real servers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent

from kzconsumer.offsets.progress import Message
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark import PromptCommits
from tests.support.extent import extent, only_nightly
from tests.support.members import committed, owners, reader, settings, stored_offsets
from tests.support.plans import planned
from tests.support.processes import kill_session, wait_until
from tests.support.producing import Sent, produce
from tests.support.source_query import LIMIT, Written, reader_processes, run_to_the_end, source, start, starved
from tests.support.zookeeper_sessions import session

ROOT = Path(__file__).parents[3]

AT_ONCE = {"minRecordsPerBatch": "500", "maxTriggerDelay": "10m"}
"""Options with which 500 records are one batch."""

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


async def send(cluster: Cluster, topic: str, first: int, until: int, partitions: int = 2) -> None:
    records = [Sent(n % partitions, None, b"%d" % n) for n in range(first, until)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


def rows(topic: str, until: int, partitions: int = 2) -> list[tuple[str, int, int, str]]:
    """What `send` has sent, as a query has it."""
    return sorted((topic, n % partitions, n // partitions, str(n)) for n in range(until))


def config_of(cluster: Cluster, name: str, folder: Path, more: str) -> str:
    """The path of a group's file."""
    file = folder / "group.toml"
    base = f'zookeeper.connect = "{cluster.connect}"\ngroup.id = "{name}"\nsubscription.topics.{name} = 1\n'
    file.write_text(base + more)
    return str(file)


@only_nightly  # the notebook, which reads and writes alike: test_notebook.py
async def test_the_program_of_the_page(spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """When it has ended, everything is written and committed."""
    await create_topic(cluster.connect, unique, 3)
    await send(cluster, unique, 0, 500)
    text = (ROOT / "docs" / "spark-source.md").read_text().partition("```python\n")[2].partition("```")[0]
    replaced = {
        "zk1:2181/kafka": cluster.connect,
        '"lake/': f'"{tmp_path}/',
        '"lake"': f'"{unique}"',
        '"orders"': f'"{unique}"',
    }
    for before, after in replaced.items():
        assert before in text
        text = text.replace(before, after)
    while True:
        try:
            await asyncio.to_thread(exec, text, {})
            break
        except StreamingQueryException as error:
            if not starved(error):
                raise
            await asyncio.to_thread(wait_until, lambda: not reader_processes(spark), LIMIT)
    found = await asyncio.to_thread(lambda: spark.read.parquet(str(tmp_path / "orders")).collect())
    assert sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in found) == rows(unique, 500)
    assert await stored_offsets(cluster.connect, unique, unique, 3) == [250, 250, 0]
    assert not await planned(cluster, unique, 3)


async def test_every_column_and_batches_of_a_limited_size(
    spark: SparkSession, cluster_of: Callable[[str], Cluster], unique: str, tmp_path: Path
) -> None:
    """From the oldest broker; and the member leaves the group when its query has ended."""
    cluster = cluster_of("0.8.2.2")
    await create_topic(cluster.connect, unique, 2)
    sent = [Sent(n % 2, b"k%d" % n if n % 3 else None, b"%d" % n if n % 5 else None) for n in range(1000)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
    batches: list[list[tuple[object, ...]]] = []
    config = config_of(cluster, unique, tmp_path, 'zookeeper.session_timeout = "30s"')

    def run() -> None:
        frame = source(spark, cluster.connect, unique, config=config, maxRecordsPerBatch="500", includeHeaders="true")
        run_to_the_end(frame, tmp_path, lambda frame, _: batches.append([tuple(row) for row in frame.collect()]))

    await asyncio.to_thread(run)
    assert sorted((row for batch in batches for row in batch), key=lambda row: row[3:5]) == [
        (each.key, each.value, unique, number, offset, None, -1, None)
        for number in (0, 1)
        for offset, each in enumerate(each for each in sent if each.partition == number)
    ]
    assert [len(batch) for batch in batches] == [500, 500]
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [500, 500]
    async with session(cluster.connect) as zookeeper:
        with anyio.fail_after(20):  # shorter than the session
            while await zookeeper.children(GroupPaths(unique).ids):
                await anyio.sleep(0.05)


async def test_a_batch_that_spark_has_committed_and_zookeeper_not(
    spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """kill -9 of the process with the member: its plan is committed, and not delivered again."""
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 0, 500)

    def kill_the_member(number: int) -> None:
        if written.rows(number):
            (member,) = reader_processes(spark)
            os.kill(member, signal.SIGKILL)

    written = Written(tmp_path, kill_the_member)

    def run() -> None:
        query = start(source(spark, cluster.connect, unique, **AT_ONCE), tmp_path, written)
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(LIMIT)

    await asyncio.to_thread(run)
    assert written.all == rows(unique, 500)
    last = max(int(file.stem) for file in (tmp_path / "out").glob("*.json"))
    assert (tmp_path / "checkpoint" / "commits" / str(last)).exists()
    assert await planned(cluster, unique) == written.ranges(last)
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [0, 0]

    await send(cluster, unique, 500, 600)
    frame = source(spark, cluster.connect, unique)
    await asyncio.to_thread(run_to_the_end, frame, tmp_path, Written(tmp_path))
    assert written.all == rows(unique, 600)
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [300, 300]


# The next owner of a planned range, without a Spark: tests/spark/servers/test_group_reader.py.
@only_nightly
async def test_a_lost_checkpoint(spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """The planned ranges come first, and exactly these."""
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 0, 500)

    def fail(number: int) -> None:
        if written.rows(number):
            raise ValueError("no")

    written = Written(tmp_path / "first", fail)

    def run() -> None:
        query = start(source(spark, cluster.connect, unique, **AT_ONCE), tmp_path / "first", written)
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(LIMIT)

    await asyncio.to_thread(run)
    plans = await planned(cluster, unique)
    assert len(plans) == 2
    await send(cluster, unique, 500, 600)
    frame = source(spark, cluster.connect, unique)
    again = Written(tmp_path / "second")
    await asyncio.to_thread(run_to_the_end, frame, tmp_path / "second", again)
    assert again.all == rows(unique, 600)
    assert again.ranges(0) | again.ranges(1) == plans


# A range that moves to another member: tests/spark/servers/test_group_reader.py.
@only_nightly
async def test_beside_another_member(spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """One that iterates messages joins and leaves: each record is delivered once, by one of the two."""
    await create_topic(cluster.connect, unique, 4)
    await send(cluster, unique, 0, 1000, 4)
    config = config_of(cluster, unique, tmp_path, 'group.revoke_deadline = "60s"')
    written = Written(tmp_path)
    frame = source(spark, cluster.connect, unique, config=config, maxTriggerDelay="100ms")
    query = await asyncio.to_thread(start, frame, tmp_path, written)

    async def delivered(number: int) -> None:
        with anyio.fail_after(LIMIT):
            while len(written.all) + len(messages) < number:
                assert query.isActive, query.exception()
                await anyio.sleep(0.1)

    messages: list[Message] = []
    try:
        await delivered(1000)
        async with reader(settings(cluster.connect, unique), {unique: 1}) as other:
            messages = other.messages
            async with session(cluster.connect) as zookeeper:
                with anyio.fail_after(LIMIT):
                    while len(set((await owners(zookeeper, unique, unique, 4)).values())) < 2:
                        await anyio.sleep(0.1)
            await send(cluster, unique, 1000, 2000, 4)
            await delivered(2000)
            assert len(messages) >= 400
        await send(cluster, unique, 2000, 2400, 4)
        await delivered(2400)
    finally:
        await asyncio.to_thread(query.stop)
    theirs = [(at.topic, at.partition, at.offset, bytes(at.value or b"").decode()) for at in messages]
    assert sorted([*written.all, *theirs]) == rows(unique, 2400, 4)


@only_nightly
async def test_a_partition_that_moves_in_a_batch(
    spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """A query of another driver gets the planned range of it, exactly, and what follows; nothing is missing."""
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 0, 500)
    config = config_of(cluster, unique, tmp_path, 'group.revoke_deadline = "100ms"')
    begun, over = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if first.rows(number):
            begun.set()
            assert over.wait(2 * LIMIT)

    first, second = Written(tmp_path / "first", hold), Written(tmp_path / "second")
    frame = source(spark, cluster.connect, unique, config=config)
    query = await asyncio.to_thread(start, frame, tmp_path / "first", first)
    command = [
        sys.executable,
        "-m",
        "tests.support.source_query",
        str(tmp_path / "second"),
        cluster.connect,
        unique,
        "-1",
    ]
    driver: subprocess.Popen[bytes] | None = None
    try:
        assert await asyncio.to_thread(begun.wait, LIMIT)
        plans = await planned(cluster, unique)
        driver = await asyncio.to_thread(subprocess.Popen, command, start_new_session=True)
        assert await asyncio.to_thread(wait_until, lambda: len(second.all) >= 250, 2 * LIMIT)
        moved = {part for part in plans if second.all[0][1] == part.partition}
        assert {part for number in range(second.batches) for part in second.ranges(number)} == moved
        over.set()
        await send(cluster, unique, 500, 700)
        await committed(cluster.connect, unique, unique, [350, 350], LIMIT)
    finally:
        over.set()
        await asyncio.to_thread(query.stop)
        if driver is not None:
            kill_session(driver.pid)
            driver.wait()
    assert sorted({*first.all, *second.all}) == rows(unique, 700)
    assert len(first.all) + len(second.all) == 700 + 250  # what moved in the batch


async def test_a_second_query_of_a_frame_is_refused(
    spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """It would share the records of the first, which gets all of them."""
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 0, 500)
    frame = source(spark, "", "", config=config_of(cluster, unique, tmp_path, 'stop.deadline = "1s"'))
    first, second = Written(tmp_path / "first"), Written(tmp_path / "second")
    queries = [await asyncio.to_thread(start, frame, tmp_path / "first", first)]
    try:
        assert await asyncio.to_thread(wait_until, lambda: len(first.all) == 500, LIMIT)
        queries.append(await asyncio.to_thread(start, frame, tmp_path / "second", second))
        with pytest.raises(
            StreamingQueryException, match=r"give each query, and each load\(\) .* a group.id of its own"
        ):
            await asyncio.to_thread(queries[1].awaitTermination, LIMIT)
        await send(cluster, unique, 500, 600)
        assert await asyncio.to_thread(wait_until, lambda: len(first.all) == 600, LIMIT)
    finally:
        for query in queries:
            await asyncio.to_thread(query.stop)
    assert first.all == rows(unique, 600)
    assert not second.all


class Seen(PromptCommits):
    """Keeps whether each batch that is reported was in the commit log of the checkpoint."""

    def __init__(self, commits: Path) -> None:
        self._commits = commits
        self.found: list[bool] = []

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.found.append((self._commits / str(event.progress.batchId)).exists())
        super().onQueryProgress(event)


@pytest.mark.parametrize("prompt", extent([True], [True, False]))
async def test_offsets_between_two_triggers(
    spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path, prompt: bool
) -> None:
    """The first trigger waits until the group is joined. With the listener its batch is committed at once, and a query
    that is stopped then leaves nothing planned.
    """
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 0, 500)
    commits = tmp_path / "checkpoint" / "commits"
    listener, written = Seen(commits), Written(tmp_path)

    async def state() -> tuple[list[int | None], int]:
        return await stored_offsets(cluster.connect, unique, unique, 2), len(await planned(cluster, unique))

    expected = ([250, 250], 0) if prompt else ([0, 0], 2)
    if prompt:
        spark.streams.addListener(listener)
    try:
        frame = source(spark, cluster.connect, unique, **AT_ONCE)
        query = await asyncio.to_thread(start, frame, tmp_path, written, processingTime="1 hour")
        try:
            assert await asyncio.to_thread(wait_until, (commits / "0").exists, LIMIT)
            assert written.all == rows(unique, 500)
            if prompt:
                with anyio.fail_after(LIMIT):
                    while await state() != expected:
                        await anyio.sleep(0.1)
                assert all(listener.found)
                assert listener.found
            else:
                await anyio.sleep(2)
            assert await state() == expected
        finally:
            await asyncio.to_thread(query.stop)
        await asyncio.to_thread(wait_until, lambda: not reader_processes(spark), LIMIT)
        assert await state() == expected
    finally:
        spark.streams.removeListener(listener)
