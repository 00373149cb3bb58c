"""kill -9 of members between the plan of a range and its commit: the next member writes exactly that range."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import anyio
import pyarrow.dataset as ds
import pytest

from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import Plan, decode_claim_record
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.chaos import PASSWORD, PostgresTable, spark_sink
from tests.support.contract_functions import stored
from tests.support.extent import NIGHTLY, only_nightly
from tests.support.killed_daemon import POINT, Point
from tests.support.members import Daemon, committed, daemon
from tests.support.postgres import Postgres
from tests.support.processes import session_of, wait_gone
from tests.support.producing import Sent, produce
from tests.support.spark_fixtures import INTERPRETED
from tests.support.spark_functions import FUNCTION_DIRECTORY
from tests.support.zookeeper_sessions import session, until

pytestmark = pytest.mark.timeout(900)
LIMIT = 120.0


def sink(path: Path) -> str:
    conf = "".join(f'"{key}" = "{value}"\n' for key, value in INTERPRETED.items())
    options = f'destination = "parquet"\npath = "{path}"\n[sink.options.conf]\n{conf}'
    return f'[sink]\nplugin = "spark"\n[sink.options]\n{options}'


async def send(cluster: Cluster, topic: str, first: int, until: int) -> None:
    records = [Sent(0, None, b"%d" % n) for n in range(first, until)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def planned(cluster: Cluster, topic: str) -> Plan:
    """The first plan that is found in ZooKeeper."""
    path = GroupPaths(topic).claim_record(TopicPartition(topic, 0))
    async with session(cluster.connect) as zookeeper:
        with anyio.fail_after(LIMIT):
            while True:
                node = await zookeeper.find(path)
                if node is not None and (plan := decode_claim_record(node.data).plan) is not None:
                    return plan
                await anyio.sleep(0.005)


def ranges(path: Path) -> list[tuple[int, int]]:
    """The ranges that the ledger lists as published."""
    names = [file.stem.split("+") for file in (path / "_kzconsumer").glob("*+*.json")]
    return sorted((int(first), int(last)) for *_, first, last in names)


async def test_the_next_member_writes_the_planned_range(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """No process of a killed member's Spark remains. `make nightly` kills the next member, too, with the range
    published; in make test the contract of the target has that (tests/files/plain/test_parquet_sink.py).
    """
    await create_topic(cluster.connect, unique, 1)
    out = tmp_path / "out"
    with daemon(tmp_path / "first", cluster.connect, unique, {unique: 1}, sink(out)) as first:
        spark = await spark_of(first)
        await send(cluster, unique, 0, 100)
        plan = await planned(cluster, unique)
        first.signal(signal.SIGKILL)
        await first.ended()
        wait_gone(spark, 20)
    await send(cluster, unique, 100, 300)  # a different cut would include these
    if NIGHTLY is not None:
        with daemon(tmp_path / "second", cluster.connect, unique, {unique: 1}, sink(out)) as second:
            spark = await spark_of(second)
            await until(lambda: ranges(out), LIMIT)
            second.signal(signal.SIGKILL)
            await second.ended()
            wait_gone(spark, 20)
    with daemon(tmp_path / "last", cluster.connect, unique, {unique: 1}, sink(out)) as last:
        await committed(cluster.connect, unique, unique, [300], LIMIT)
        last.signal(signal.SIGTERM)
        assert await last.ended() == 0
    found = ranges(out)
    assert found[0] == (plan.first, plan.until)
    assert [first for first, _ in found] == [0, *(last for _, last in found[:-1])]
    table = ds.dataset(out, format="parquet").to_table().sort_by("offset")
    assert table.column("offset").to_pylist() == list(range(300))


async def killed(folder: Path, cluster: Cluster, topic: str, tables: str, point: Point, first: int) -> None:
    """One member after the other: each finds what the one before has left, and gets further, or is killed before."""
    member = Daemon(folder / point.replace(" ", "-"), cluster.connect, topic, {topic: 1}, tables, "smallest")
    member.module, member.environment = "tests.support.killed_daemon", {POINT: point}
    member.start()
    try:
        spark = await spark_of(member)
        await send(cluster, topic, first, first + 100)
        assert await member.ended(LIMIT) == -signal.SIGKILL
        wait_gone(spark, 20)
    finally:
        member.kill()


@only_nightly  # by day: the contract of sinks, and tests/spark/servers/test_jdbc_publication.py
async def test_postgresql_has_each_record_once(
    cluster: Cluster, unique: str, tmp_path: Path, database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, database.password)
    table = PostgresTable(database, unique)
    await create_topic(cluster.connect, unique, 1)
    points: tuple[Point, ...] = ("planned", "read", "written")
    for number, point in enumerate(points):
        await killed(tmp_path, cluster, unique, table.tables, point, 100 * number)
        assert len(table.rows()) == (100 if point == "written" else 0), "the first range at most"
    with daemon(tmp_path / "last", cluster.connect, unique, {unique: 1}, table.tables):
        await committed(cluster.connect, unique, unique, [300], LIMIT)
    assert table.rows() == dict.fromkeys([(0, offset) for offset in range(300)], 1)


@only_nightly  # by day: the contract of sinks
async def test_a_function_is_called_with_the_same_range_again(
    cluster: Cluster, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FUNCTION_DIRECTORY, str(tmp_path))
    tables = spark_sink('destination = "function"\nfunction = "tests.support.contract_functions:store"')
    await create_topic(cluster.connect, unique, 1)
    points: tuple[Point, ...] = ("planned", "read", "step done", "written")
    for number, point in enumerate(points):
        await killed(tmp_path, cluster, unique, tables, point, 100 * number)
    assert len(list(stored(tmp_path, "notes"))) == 1, "a step that is recorded is not done again"
    with daemon(tmp_path / "last", cluster.connect, unique, {unique: 1}, tables):
        await committed(cluster.connect, unique, unique, [400], LIMIT)
    assert sorted(map(int, stored(tmp_path, "records"))) == list(range(400))


async def spark_of(member: Daemon) -> list[int]:
    """Every process of its Spark, once it is running."""
    await until(lambda: member.events("spark ready"), LIMIT)
    found = session_of(member.events("spark ready")[0]["pid"])
    assert len(found) >= 2
    return found
