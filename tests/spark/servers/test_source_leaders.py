"""A broker is down when a query starts, a task fetches, or records between two bounds are read.

Its partitions have no leader. `GroupStreamReader` on real servers, called as Spark calls it.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import ConnectionLostError
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark.executors.fetching import BrokersOutageError
from kzconsumer_spark.executors.task_parts import RangeParts
from kzconsumer_spark.source.source_options import ranges_between, read_options
from tests.spark.servers.test_executor_errors import access, offsets
from tests.spark.servers.test_source_changes import OLD, query, send
from tests.support.extent import only_nightly
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import until

PARTITIONS = 4
VALUES = sorted(OLD * PARTITIONS)

# By day in memory: a query whose leaders move and go (plain/test_query_machine.py), who is named (core/plain/
# test_planned_ranges.py), what counts as an outage (plain/test_executor_access.py); a real broker of a topic that is
# gone: test_source_changes.py.
pytestmark = [pytest.mark.timeout(180), only_nightly]


@pytest.fixture
async def two(servers: Servers, unique: str) -> Cluster:
    """Two brokers; a topic of which each leads every other partition, and has no replica of the others."""
    cluster = servers.shared("two-brokers", lambda name: servers.cluster(name, brokers=2))
    await start_again(cluster)
    await create_topic(cluster.connect, unique, PARTITIONS)
    for partition in range(PARTITIONS):
        await send(cluster, unique, OLD, partition)
    return cluster


async def start_again(cluster: Cluster) -> None:
    if not cluster.brokers[2].alive:
        await asyncio.to_thread(cluster.brokers[2].wait_startable)
        cluster.brokers[2].start()
        await asyncio.to_thread(cluster.brokers[2].wait_ready)


def group_file(cluster: Cluster, name: str, folder: Path) -> Path:
    file = folder / "batch.toml"
    file.write_text(
        f'zookeeper.connect = "{cluster.connect}"\ngroup.id = "{name}"\nsubscription.topics.{name} = 1\n'
        'fetch.request_timeout = "2s"\n'
    )
    return file


async def test_a_query_that_starts_without_a_broker_reads_the_other_partitions(
    two: Cluster, unique: str, tmp_path: Path
) -> None:
    """And the rest when the broker is back. A batch read names the partitions without leader."""
    two.brokers[2].kill()
    options = read_options({"config": str(group_file(two, unique, tmp_path))})
    pairs = [f"{unique}-{first}, {unique}-{first + 2}" for first in (0, 1)]
    with pytest.raises(ConnectionLostError, match=f"^no leader of ({'|'.join(pairs)}) has answered: "):
        await asyncio.to_thread(ranges_between, options.settings, options.bounds)
    async with query(two, unique, tmp_path) as running:
        start = running.reader.initialOffset()
        read: dict[int, list[bytes]] = {}
        while sum(map(len, read.values())) < len(VALUES):
            start, end = await running.after(start), start
            for task in await running.tasks(end, start):
                assert isinstance(task, RangeParts)
                for each in task.parts:
                    alone = RangeParts([each], task.access, task.epochs, task.policy)
                    read.setdefault(each.partition, []).extend(await running.values([alone]))
            if sum(map(len, read.values())) == len(VALUES) // 2:
                assert len(read) == PARTITIONS // 2
                await start_again(two)
    assert read == dict.fromkeys(range(PARTITIONS), OLD)


async def test_a_batch_of_the_checkpoint_waits_for_the_leaders_of_its_partitions(
    two: Cluster, unique: str, tmp_path: Path
) -> None:
    """It is the same batch then: a sink may have it already."""
    async with query(two, unique, tmp_path, "smallest", len(VALUES)) as first:
        start, end, tasks = await first.first_batch()
        assert sorted(await first.values(tasks)) == VALUES
    two.brokers[2].kill()
    async with query(two, unique, tmp_path) as again:
        with capture_logs() as logs:
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    tasks = await again.tasks(start, end)
                    assert sorted(await again.values(tasks)) == VALUES

                group.start_soon(read)
                await until(lambda: bool(logs))
                await start_again(two)
        assert {each["event"] for each in logs} == {"batch of the checkpoint waits for leaders"}
        assert await again.asked(end) == end


async def test_brokers_that_are_down_or_silent_are_an_outage_and_no_leader_is_one(two: Cluster, unique: str) -> None:
    for partition in (0, 1):
        assert await offsets(unique, partition, access(two, 30)) == [0, 1, 2]

    two.brokers[2].kill()
    found: dict[int, list[object]] = {}
    for partition in (0, 1):
        try:
            found[partition] = await offsets(unique, partition, access(two, 3))
        except BrokersOutageError:
            found[partition] = []
    assert sorted(found.values()) == [[], [0, 1, 2]]

    two.brokers[1].send_signal(signal.SIGSTOP)
    try:
        for partition in (0, 1):
            with pytest.raises(BrokersOutageError):
                await offsets(unique, partition, access(two, 0.5))
    finally:
        two.brokers[1].send_signal(signal.SIGCONT)
    for partition in (0, 1):
        if found[partition]:
            assert await offsets(unique, partition, access(two, 30)) == [0, 1, 2]
