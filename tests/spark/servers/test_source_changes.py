"""What changes while a streaming query reads: topics, partitions, logs, and whether ZooKeeper answers.

`GroupStreamReader` on real servers, called as Spark calls it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.datasource import InputPartition
from structlog.testing import capture_logs

from kzconsumer.errors import OffsetLostError
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import add_partitions, create_topic, create_topic_in_kraft
from kzconsumer_spark.executors.fetching import BrokersOutageError
from kzconsumer_spark.executors.task_parts import RangeParts
from kzconsumer_spark.source.group_source import GroupStreamReader
from tests.core.servers.test_replay import retained_from
from tests.spark.servers.test_group_reader import ROWS, made
from tests.support.command_line import CommandLine
from tests.support.extent import only_nightly
from tests.support.members import stored_offsets
from tests.support.plans import planned
from tests.support.producing import Sent, produce
from tests.support.recreation import recreate_topic
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session

LIMIT = 60.0
TIMEOUT = 4.0
"""Of the session, in seconds."""
OLD, NEW = [b"old%d" % n for n in range(10)], [b"new%d" % n for n in range(20)]

pytestmark = pytest.mark.timeout(180)


class Query:
    """A query's calls of the source; the checkpoint is the caller's."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        folder: Path,
        reset: str = "smallest",
        records: int = 10,
        topics: str | None = None,
    ) -> None:
        """`topics`: a line of the file, else the one topic `name`; with `records` a batch is due."""
        file = folder / "group.toml"
        file.write_text(
            f'zookeeper.connect = "{cluster.connect}"\ngroup.id = "{name}"\n'
            f"{topics or f'subscription.topics.{name} = 1'}\n"
            f'zookeeper.session_timeout = "{TIMEOUT}s"\noffsets.reset = "{reset}"\nfetch.request_timeout = "2s"\n'
        )
        self.reader: GroupStreamReader = made({"config": str(file), "minRecordsPerBatch": str(records)})

    async def after(self, start: dict[str, Any]) -> dict[str, Any]:
        """The end of the next batch."""
        with anyio.fail_after(LIMIT):
            while (end := await self.asked(start)) == start:
                pass
        return end

    async def asked(self, start: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(self.reader.latestOffset, start, ROWS)

    async def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return await asyncio.to_thread(self.reader.partitions, start, end)

    async def first_batch(self) -> tuple[dict[str, Any], dict[str, Any], Sequence[InputPartition]]:
        """Its start, its end, and its tasks."""
        start = self.reader.initialOffset()
        end = await self.after(start)
        return start, end, await self.tasks(start, end)

    async def values(self, tasks: Sequence[InputPartition]) -> list[bytes]:
        def read() -> list[bytes]:
            return [row["value"] for task in tasks for rows in self.reader.read(task) for row in rows.to_pylist()]

        return await asyncio.to_thread(read)


@asynccontextmanager
async def query(*arguments: Any) -> AsyncIterator[Query]:
    """`Query`, which stops at the end."""
    running = Query(*arguments)
    try:
        yield running
    finally:
        await asyncio.to_thread(running.reader.stop)


async def send(cluster: Cluster, topic: str, values: list[bytes], partition: int = 0) -> None:
    sent = [Sent(partition, None, value) for value in values]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, sent)


@pytest.mark.parametrize("pattern", [False, True], ids=["partitions", "topics"])
async def test_what_is_added_while_a_query_runs_is_read_from_its_beginning(
    cluster: Cluster, unique: str, tmp_path: Path, pattern: bool
) -> None:
    """Partitions of a topic, and topics that a pattern selects."""
    await create_topic(cluster.connect, unique, 1)
    topics = f'subscription.include = "{unique}.*"' if pattern else None
    added = (f"{unique}-b", 0) if pattern else (unique, 1)
    async with query(cluster, unique, tmp_path, "smallest", 5, topics) as running:
        await send(cluster, unique, OLD[:5])
        start = running.reader.initialOffset()
        first = await running.after(start)
        assert await running.values(await running.tasks(start, first)) == OLD[:5]
        if pattern:
            await create_topic(cluster.connect, added[0], 1)
        else:
            await add_partitions(cluster.connect, unique, 2)
        await send(cluster, added[0], NEW[:5], added[1])
        second = await running.after(first)
        tasks = await running.tasks(first, second)
        (task,) = tasks
        assert isinstance(task, RangeParts)
        assert [each.topic_partition for each in task.parts] == [added]
        assert await running.values(tasks) == NEW[:5]
        assert await running.asked(second) == second
        assert await stored_offsets(cluster.connect, unique, added[0], added[1] + 1) == [5] * (added[1] + 1)


async def registration(cluster: Cluster, group: str) -> int:
    """The transaction in which the only member has joined."""
    async with session(cluster.connect) as zookeeper:
        (member,) = await zookeeper.children(GroupPaths(group).ids)
        return (await zookeeper.get(f"{GroupPaths(group).ids}/{member}")).stat.czxid


async def test_a_topic_that_is_created_again_while_tasks_read(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """No record of the new topic is taken for one of the old; the query goes on with the new one when it is started
    again. The control: a task that does not know the topic's id reads the new topic.
    """
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, OLD)
    async with query(cluster, unique, tmp_path) as first:
        start, end, tasks = await first.first_batch()
        assert await first.values(tasks) == OLD
        await recreate_topic(cluster, unique, 1)
        await send(cluster, unique, NEW)
        with pytest.raises(
            OffsetLostError, match=r"^topic .* was deleted and created again.*; start the query again: "
        ):
            await first.values(tasks)
        for task in tasks:
            assert isinstance(task, RangeParts)
            task.access.ids.clear()
        assert await first.values(tasks) == NEW[:10]

    async with query(cluster, unique, tmp_path, "fail") as strict:
        lost = r"\[0\.\.10\) is planned and not committed, and topic .* created again .* reset = \"smallest\" to go on"
        with pytest.raises(OffsetLostError, match=lost):
            await strict.tasks(start, end)
    async with query(cluster, unique, tmp_path) as again:
        with capture_logs() as logs:
            assert await again.tasks(start, end) == []
        assert [(each["event"], each["first"], each["until"]) for each in logs if each["log_level"] == "error"] == [
            ("records of a planned range are lost", 0, 10)
        ]
        following = await again.after(end)
        assert await again.values(await again.tasks(end, following)) == NEW
        await again.asked(following)
        assert await stored_offsets(cluster.connect, unique, unique, 1) == [20]


async def test_a_topic_that_is_deleted_while_tasks_read(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, OLD)
    async with query(cluster, unique, tmp_path) as first:
        _, _, tasks = await first.first_batch()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        (deleted,) = admin.delete_topics([unique]).values()
        await asyncio.to_thread(deleted.result, LIMIT)
        with pytest.raises(BrokersOutageError, match="-0 has no leader: "):
            await first.values(tasks)


async def test_a_query_goes_on_without_a_topic_that_is_deleted_from_a_cluster_without_zookeeper(
    kraft: Cluster, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch of the checkpoint has what is left; a query whose only topic is gone waits."""
    monkeypatch.setattr("kzconsumer.registry.broker_topics.CERTAIN", 0.2)
    names = left, gone = f"{unique}-a", f"{unique}-b"

    def topics(*names: str) -> str:
        wanted = ", ".join(f'"{name}" = 1' for name in names)
        return f'subscription.topics = {{ {wanted} }}\nbrokers.bootstrap = ["{kraft.bootstrap}"]'

    for name in names:
        await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, name, 1)
        await send(kraft, name, OLD)
    async with query(kraft, unique, tmp_path, "smallest", 20, topics(*names)) as first:
        start, end, tasks = await first.first_batch()
        assert sorted(await first.values(tasks)) == sorted(OLD * 2)
    async with query(kraft, gone, tmp_path, "smallest", 10, topics(gone)) as alone:
        _, end_alone, _ = await alone.first_batch()
    admin = AdminClient({"bootstrap.servers": kraft.bootstrap})
    await asyncio.to_thread(admin.delete_topics([gone])[gone].result, LIMIT)

    async with query(kraft, unique, tmp_path, "fail", 20, topics(*names)) as strict:
        lost = f"^{gone}-0.* planned and not committed, and topic {gone} was deleted"
        with pytest.raises(OffsetLostError, match=lost):
            await strict.tasks(start, end)
    async with query(kraft, unique, tmp_path, "smallest", 20, topics(*names)) as again:
        with capture_logs() as logs:
            assert await again.values(await again.tasks(start, end)) == OLD
        assert [(each["event"], each["topic"]) for each in logs] == [("records of a planned range are lost", gone)]
        await send(kraft, left, NEW)
        following = await again.after(end)
        assert await again.values(await again.tasks(end, following)) == NEW
    async with query(kraft, gone, tmp_path, "smallest", 10, topics(gone)) as alone:
        with capture_logs() as logs, anyio.fail_after(LIMIT):
            waiting = asyncio.create_task(alone.tasks(start, end_alone))
            while not logs:
                await anyio.sleep(0.1)
            assert "use another checkpoint" in logs[0]["reason"]
            await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, gone, 1)
            assert await waiting == []


async def test_retention_removes_records_before_tasks_read_them(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """The batch fails, and has the rest when the query is started again; the group then commits the whole range."""
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, OLD)
    async with query(cluster, unique, tmp_path) as first:
        start, end, tasks = await first.first_batch()
        await retained_from(cluster, unique, 4)
        with pytest.raises(OffsetLostError, match=r"says that offset 0 is not in its log .*; start the query again: "):
            await first.values(tasks)
    async with query(cluster, unique, tmp_path, "fail") as strict:
        lost = r"-0\[0\.\.4\) is planned and not committed, and retention has .* reset = \"smallest\" to go on without"
        with pytest.raises(OffsetLostError, match=lost):
            await strict.tasks(start, end)
    async with query(cluster, unique, tmp_path) as again:
        assert await again.values(await again.tasks(start, end)) == OLD[4:]
        assert await stored_offsets(cluster.connect, unique, unique, 1) == [0]
        with anyio.fail_after(LIMIT):
            while await stored_offsets(cluster.connect, unique, unique, 1) != [10]:
                assert await again.asked(end) == end
        assert not await planned(cluster, unique, 1)


@only_nightly  # test_hand_over.py shows the same with a lease in hand
async def test_zookeeper_is_away_during_a_batch(servers: Servers, unique: str, tmp_path: Path) -> None:
    """For less than the session's timeout, and for so long that the session is over: tasks go on, nothing is committed
    that Spark has not committed, and what it has committed meanwhile is not delivered again.
    """
    zookeeper = servers.own_zookeeper(unique)
    cluster = servers.cluster(unique, zookeeper=zookeeper)
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, NEW)
    async with query(cluster, unique, tmp_path, "smallest", 20) as running:
        start, end, tasks = await running.first_batch()
        zookeeper.send_signal(signal.SIGSTOP)
        assert await running.values(tasks) == NEW
        zookeeper.send_signal(signal.SIGCONT)
        assert await running.asked(start) == end
        assert await stored_offsets(cluster.connect, unique, unique, 1) == [0]

        registered = await registration(cluster, unique)
        zookeeper.send_signal(signal.SIGSTOP)
        with anyio.fail_after(LIMIT):
            while await running.asked(start) == end:  # until the lease has run out
                await anyio.sleep(0.1)
        assert await running.asked(end) == end, "Spark commits the batch"
        await anyio.sleep(TIMEOUT)
        zookeeper.send_signal(signal.SIGCONT)
        with anyio.fail_after(LIMIT):
            while await stored_offsets(cluster.connect, unique, unique, 1) != [20]:
                assert await running.asked(end) == end
        assert not await planned(cluster, unique, 1)
        assert await registration(cluster, unique) > registered, "the session was over"
    cluster.kill()
    zookeeper.kill()


async def test_a_checkpoint_that_was_restored_with_its_output(
    cluster: Cluster, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records that the group committed after the backup are delivered again only if its offsets are reset."""
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, OLD)
    async with query(cluster, unique, tmp_path) as running:
        backup = await running.after(running.reader.initialOffset())
        await send(cluster, unique, NEW[:10])
        last = await running.after(backup)
        assert await running.asked(last) == last
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [20]
    async with query(cluster, unique, tmp_path) as restored:
        assert await restored.asked(backup) == backup
        assert await restored.asked(backup) == backup
    await send(cluster, unique, NEW[10:])
    async with query(cluster, unique, tmp_path) as restored:
        following = await restored.after(backup)
        assert await restored.values(await restored.tasks(backup, following)) == NEW[10:], "ten are missing"
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    to = ("--topic", unique, "--to-offset", "10", "--republish", "--execute", "--undo", str(tmp_path / "undo"))
    assert (await kzconsumer("offsets", "reset", unique, *to)).status == 0
    async with query(cluster, unique, tmp_path, "smallest", 20) as restored:
        following = await restored.after(backup)
        assert await restored.values(await restored.tasks(backup, following)) == NEW
