"""Exactly once from a Spark cluster into an object store, whose tasks put the files, under kills.

A standalone cluster with two workers and an executor on each; no directory is shared, but for this machine being one.
Each fault comes when a task has put a file that is not published yet: between write and publish. `make nightly` plays
each fault with files, and two with each kind of table; `KZCONSUMER_CHAOS=8` plays eight. `make test` has the same
without Spark (tests/spark/servers/test_tasks_put_files.py), and what tasks write (test_tasks_write.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import anyio
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.chaos import LIMIT, Row, SparkGroup, kill_daemon, kill_java, spark_sink
from tests.support.extent import NIGHTLY, extent
from tests.support.flow import flow
from tests.support.object_store import ObjectStore
from tests.support.spark_cluster import SparkCluster, spark_cluster

ROUNDS = int(os.environ.get("KZCONSUMER_CHAOS", extent("0", "4")))
SEED = int(os.environ.get("KZCONSUMER_CHAOS_SEED", NIGHTLY or 0))
PARTITIONS = 4
GIVEN_UP = 15.0
CONF = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.network.timeout": f"{GIVEN_UP:.0f}s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "3s",
}

pytestmark = [
    pytest.mark.timeout(500 + 200 * ROUNDS),
    pytest.mark.skipif(not ROUNDS, reason="KZCONSUMER_CHAOS=4; another test proves the same without Spark"),
]


class InStore:
    """`rows` are those that a reader of the destination finds; `put`: all files that are there."""

    def __init__(self, store: ObjectStore, options: str, cluster: SparkCluster) -> None:
        self._store = store
        self._read: dict[str, list[Row]] = {}
        self.tables = spark_sink(f'master = "{cluster.master}"\n{options}', **CONF)

    def rows(self) -> Counter[Row]:
        return self.rows_in(self.published())

    @abstractmethod
    def published(self) -> list[str]:
        """The objects that readers read."""

    def put(self) -> set[str]:
        return {each for each in self._store.objects() if each.endswith(".parquet")}

    def unpublished(self) -> set[str]:
        """Listed before those that are published are known."""
        put = self.put()
        return put - {*self.published()}

    def rows_in(self, names: list[str]) -> Counter[Row]:
        for name in names:
            if name not in self._read:
                table = pq.read_table(
                    name, columns=["partition", "offset"], partitioning=None, filesystem=self._store.filesystem
                )
                self._read[name] = [(row["partition"], row["offset"]) for row in table.to_pylist()]
        return Counter(row for name in names for row in self._read[name])


def given(options: dict[str, str]) -> str:
    return ", ".join(f'"{name}" = "{value}"' for name, value in options.items())


class StoredFiles(InStore):
    def __init__(self, store: ObjectStore, cluster: SparkCluster) -> None:
        options = f'path = "{store.uri("out")}"\nstore_options = {{ {given(store.options)} }}'
        super().__init__(store, f'destination = "parquet"\n{options}', cluster)

    def published(self) -> list[str]:
        return [each for each in self._store.objects() if Path(each).match("out/*.parquet")]


class StoredDelta(InStore):
    def __init__(self, store: ObjectStore, cluster: SparkCluster) -> None:
        options = f'path = "{store.uri("out")}"\nstore_options = {{ {given(store.options)} }}'
        super().__init__(store, f'destination = "delta"\n{options}', cluster)

    def published(self) -> list[str]:
        options = {**self._store.options, "allow_http": "true"}
        if not DeltaTable.is_deltatable(self._store.uri("out"), storage_options=options):
            return []  # the first batch creates it
        table = DeltaTable(self._store.uri("out"), storage_options=options)
        return [f"out/{each}" for each in table.get_add_actions().column("path").to_pylist()]


class StoredIceberg(InStore):
    def __init__(self, store: ObjectStore, cluster: SparkCluster, folder: Path) -> None:
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": store.uri("warehouse")}
        self._catalog = catalog | store.properties
        options = f"catalog_options = {{ {given(self._catalog)} }}"
        super().__init__(store, f'destination = "iceberg"\ntable = "lake.rows"\n{options}', cluster)

    def published(self) -> list[str]:
        catalog = load_catalog("default", **self._catalog)
        if not catalog.table_exists("lake.rows"):
            return []
        files = (each.file.file_path for each in catalog.load_table("lake.rows").scan().plan_files())
        return [each.removeprefix(f"{self._store.uri()}/") for each in files]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Before the cluster: members, and executors by their workers, have its credentials in their environment."""
    with ObjectStore.running(tmp_path / "store") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def spark_servers(store: ObjectStore, tmp_path: Path) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path / "cluster", workers=2) as running:
        yield running


async def kill_executor(group: SparkGroup, servers: SparkCluster, chance: Random) -> None:
    os.kill(chance.choice(servers.executors), signal.SIGKILL)


async def freeze_executor(group: SparkGroup, servers: SparkCluster, chance: Random) -> None:
    """Until it is given up, and its tasks have been run again; then it goes on. Its Python puts what it has."""
    frozen = chance.choice(servers.executors)
    os.kill(frozen, signal.SIGSTOP)
    try:
        await group.past([at + 1 for at in await group.committed()])
    finally:
        os.kill(frozen, signal.SIGCONT)


async def kill_member(group: SparkGroup, servers: SparkCluster, chance: Random) -> None:
    await kill_daemon(group, "a", chance)


async def kill_driver(group: SparkGroup, servers: SparkCluster, chance: Random) -> None:
    await kill_java(group, "a", chance)


FAULTS = (kill_executor, kill_member, freeze_executor, kill_driver)


async def until_put(target: InStore) -> None:
    """Until a task has put a file that is not published."""
    before = await asyncio.to_thread(target.put)
    with anyio.fail_after(LIMIT):
        while not await asyncio.to_thread(lambda: target.unpublished() - before):
            await anyio.sleep(0.01)


@pytest.mark.parametrize("kind", ["files", "delta", "iceberg"])
async def test_every_record_is_in_the_store_once(
    store: ObjectStore, spark_servers: SparkCluster, cluster: Cluster, unique: str, tmp_path: Path, kind: str
) -> None:
    target: InStore
    if kind == "iceberg":
        target = StoredIceberg(store, spark_servers, tmp_path)
    else:
        target = (StoredFiles if kind == "files" else StoredDelta)(store, spark_servers)
    await create_topic(cluster.connect, unique, PARTITIONS)
    with (
        SparkGroup(None, cluster, unique, PARTITIONS, tmp_path, target) as group,
        flow(cluster, unique, PARTITIONS) as sent,
    ):
        group.start("a")
        rounds = ROUNDS if kind == "files" else -(-ROUNDS // 2)
        for number in range(rounds):
            began, seed = time.monotonic(), SEED + number
            fault = FAULTS[seed % len(FAULTS)]
            await group.past([at + 1 for at in await group.committed()])
            await until_put(target)
            await fault(group, spark_servers, Random(seed))
            await group.past([at + 1 for at in await group.committed()])
            missing, twice = await group.verdict()
            print(
                f"{kind}, round {number + 1} of {rounds}, seed {seed}: {fault.__name__},"
                f" {time.monotonic() - began:.0f} s; {len(missing)} missing, {len(twice)} twice,"
                f" {len(target.unpublished())} files of nobody",
                flush=True,
            )
            assert (missing, twice) == ([], [])
        await asyncio.to_thread(sent.end)
        ends = [sent.sent[partition] for partition in range(PARTITIONS)]
        await group.past(ends)
        await group.stop("a")
        assert await group.verdict() == ([], [])
        assert sum(target.rows().values()) == sum(ends)
    # The control: a driver that publishes the files that it finds, not those that its tasks report, has rows twice.
    found = target.rows_in(sorted(target.put()))
    twice_there = sum(times > 1 for times in found.values())
    assert twice_there, "no fault hit a file that was put, and not published"
    print(
        f"{kind}: in the end {sum(ends)} records, each of them once; of all files that are there, {twice_there} twice"
    )
