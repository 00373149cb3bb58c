"""A group of daemons with a Spark sink, faults of its members at seeded moments, and the verdict.

`DaemonGroup` owns the daemon processes, which are killed when the block ends; `SparkGroup` adds the verdict. What
differs between destinations is one object: `Destination`.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Protocol, Self

import anyio
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from structlog.testing import capture_logs

from kzconsumer.errors import KzConsumerError
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.ensemble import Ensemble
from tests.support.members import Daemon, owners, stored_offsets
from tests.support.object_store import ObjectStore
from tests.support.postgres import Postgres, driver_jar
from tests.support.processes import exists, session_of
from tests.support.zookeeper_sessions import session

SESSION = 6.0
LIMIT = 400.0
"""Seconds for each condition: on a busy machine a JVM may take minutes to start."""

PASSWORD = "KZCONSUMER_TEST_PASSWORD"

Row = tuple[int, int]
"""Partition, offset."""


class Destination(Protocol):
    """The sink's table in the settings, and the records that are there."""

    tables: str

    def rows(self) -> Counter[Row]:
        """How often each record is there, as a reader of the destination finds it."""
        ...


def spark_sink(options: str, **conf: str) -> str:
    """The sink's tables: the common part, and `options`."""
    settings = "".join(f'"{key}" = "{value}"\n' for key, value in {"spark.driver.memory": "512m", **conf}.items())
    common = f'start_timeout = "{LIMIT:.0f}s"\n{options}\n[sink.options.conf]\n{settings}'
    return f'[sink]\nplugin = "spark"\n[sink.options]\n{common}'


class ParquetFiles:
    """Files that never change once they have their final name, so that each is read once."""

    def __init__(self, path: Path, options: str) -> None:
        self._path = path
        self._read: dict[str, list[Row]] = {}
        self.tables = spark_sink(options)

    def rows(self) -> Counter[Row]:
        filesystem, names = self._files()
        for name in names:
            if name not in self._read:
                table = pq.read_table(name, columns=["partition", "offset"], partitioning=None, filesystem=filesystem)
                self._read[name] = [(row["partition"], row["offset"]) for row in table.to_pylist()]
        return Counter(row for rows in self._read.values() for row in rows)

    def _files(self) -> tuple[Any, list[str]]:
        return None, [str(each) for each in self._path.glob("*.parquet")]


class StoredFiles(ParquetFiles):
    """The same in an object store, which daemons reach with the credentials in their environment."""

    def __init__(self, store: ObjectStore) -> None:
        given = ", ".join(f'{name} = "{value}"' for name, value in store.options.items())
        path = f'path = "s3://{store.bucket}/out"\nstore_options = {{ {given} }}'
        super().__init__(Path("out"), f'destination = "parquet"\n{path}')
        self._store = store

    def _files(self) -> tuple[Any, list[str]]:
        objects = map(Path, self._store.objects())
        return self._store.filesystem, [str(each) for each in objects if each.match("out/*.parquet")]


class PostgresTable:
    """A table of the database, which daemons reach with the password in their environment's `PASSWORD`."""

    def __init__(self, database: Postgres, name: str) -> None:
        self._database = database
        self._name = f'public."{name}"'
        options = f'destination = "jdbc"\nurl = "{database.url}"\ntable = "public.{name}"\nuser = "{database.user}"'
        self.tables = spark_sink(f'{options}\npassword_env = "{PASSWORD}"', **{"spark.jars": str(driver_jar())})

    def rows(self) -> Counter[Row]:
        if self._database.query("SELECT to_regclass(%s)", [self._name]) == [(None,)]:
            return Counter()  # the first batch creates it
        query = f'SELECT "partition", "offset", count(*) FROM {self._name} GROUP BY 1, 2'
        return Counter({(partition, offset): times for partition, offset, times in self._database.query(query)})


class DeltaFiles:
    """A table whose files never change once they are in its log, so that each is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[str, list[Row]] = {}
        self.tables = spark_sink(f'destination = "delta"\npath = "{path}"')

    def rows(self) -> Counter[Row]:
        if not DeltaTable.is_deltatable(str(self._path)):
            return Counter()  # the first batch creates it
        for name in DeltaTable(self._path).get_add_actions().column("path").to_pylist():
            if name not in self._read:
                table = pq.read_table(self._path / name, columns=["partition", "offset"], partitioning=None)
                self._read[name] = [(row["partition"], row["offset"]) for row in table.to_pylist()]
        return Counter(row for rows in self._read.values() for row in rows)


class IcebergFiles:
    """The table `lake.rows` of a catalog: the given one, or one in a file."""

    def __init__(self, directory: Path, catalog: Mapping[str, str] | None = None) -> None:
        directory.mkdir()
        in_file = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": directory.as_uri()}
        self._catalog = catalog or in_file
        given = "\n".join(f'"{name}" = "{value}"' for name, value in self._catalog.items())
        options = f'destination = "iceberg"\ntable = "lake.rows"\n[sink.options.catalog_options]\n{given}'
        self.tables = spark_sink(options)

    def rows(self) -> Counter[Row]:
        catalog = load_catalog("default", **self._catalog)
        if not catalog.table_exists("lake.rows") or not catalog.load_table("lake.rows").schema().fields:
            return Counter()  # the first member makes it, the first batch gives it columns
        found = catalog.load_table("lake.rows").scan(selected_fields=("partition", "offset")).to_arrow()
        return Counter((row["partition"], row["offset"]) for row in found.to_pylist())


def published(path: Path) -> Destination:
    """The files of the Spark sink's own destination."""
    return ParquetFiles(path, f'destination = "parquet"\npath = "{path}"\n')


def appended(path: Path) -> Destination:
    """The negative control: a function that appends, and lingers before it returns; `path` is in the environment."""
    return ParquetFiles(
        path / "appended", 'destination = "function"\nfunction = "tests.support.spark_functions:append"'
    )


class DaemonGroup:
    """Members named by letters, all with the sink of `tables`. The group is named like its topic."""

    def __init__(
        self, three: Ensemble | None, cluster: Cluster, topic: str, partitions: int, folder: Path, tables: str
    ) -> None:
        self.three = three
        self.cluster = cluster
        self.topic = topic
        self.topics = [topic]
        self.partitions = partitions
        """Of each topic."""
        self._tables = tables
        self._folder = folder
        self._members: dict[str, Daemon] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_all()

    def start(self, name: str) -> None:
        if name not in self._members:
            self._members[name] = self.made(self._folder / name)
        self._members[name].start()

    def made(self, folder: Path) -> Daemon:
        """Its batches are as large as what has come in: on a busy machine, small ones would fall behind the flow."""
        topics = dict.fromkeys(self.topics, 1)
        member = Daemon(folder, self.cluster.connect, self.topic, topics, self._tables, "smallest")
        text = member.config.read_text()
        member.config.write_text(text.replace("max_records = 500", "max_records = 50000"))
        return member

    def process(self, name: str) -> int:
        process = self._members[name].process
        assert process is not None
        return process.pid

    def worker(self, name: str) -> int:
        """The worker process that it started last."""
        return int(self._members[name].events("spark ready")[-1]["pid"])

    def workers_of(self, name: str) -> list[int]:
        """All of the last worker's session: its Python driver first, the JVM, Spark's Python processes; or no Spark."""
        if not self._members[name].events("spark ready"):
            return []
        worker = self.worker(name)
        return sorted(session_of(worker), key=lambda pid: pid != worker)

    def java(self, name: str) -> int:
        (java,) = (pid for pid in self.workers_of(name) if Path(f"/proc/{pid}/comm").read_text().strip() == "java")
        return java

    async def kill(self, name: str) -> None:
        os.kill(self.process(name), signal.SIGKILL)
        await self._members[name].ended()

    async def stop(self, name: str) -> None:
        self._members[name].signal(signal.SIGTERM)
        assert await self._members[name].ended(60.0) == 0, self._members[name].err.read_text()[-3000:]

    async def whole(self, members: int) -> None:
        """Until so many of them own partitions, all partitions are owned, and each member's Spark is running."""

        async def is_whole() -> bool:
            async with session(self.cluster.connect) as zookeeper:
                owned = [await owners(zookeeper, self.topic, topic, self.partitions) for topic in self.topics]
            threads = {thread for each in owned for thread in each.values()}
            return all(len(each) == self.partitions for each in owned) and len(threads) == members

        await self.until(is_whole)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        with anyio.fail_after(LIMIT), capture_logs():  # it opens a session for each look
            while True:
                self._all_run()
                try:
                    if await condition():
                        return
                except (KzConsumerError, TimeoutError):
                    pass  # its server was killed, too
                await anyio.sleep(0.25)

    async def committed(self) -> list[int]:
        """Of all partitions, those of one topic after those of another."""
        found: list[int | None] = []
        for topic in self.topics:
            found += await stored_offsets(self.cluster.connect, self.topic, topic, self.partitions)
        return [offset or 0 for offset in found]

    async def past(self, offsets: list[int]) -> None:
        """Until every partition is committed up to that offset."""

        async def is_past() -> bool:
            return all(at >= offset for at, offset in zip(await self.committed(), offsets, strict=True))

        await self.until(is_past)

    def _all_run(self) -> None:
        for name, member in self._members.items():
            if member.process is not None and member.process.poll() not in (None, 0, -signal.SIGKILL):
                raise AssertionError(f"member {name} ended:\n{member.err.read_text()[-3000:]}")

    def kill_all(self) -> None:
        for name, member in self._members.items():
            if member.process is not None and member.process.poll() is None:
                for pid in [member.process.pid, *self.workers_of(name)]:
                    if exists(pid):
                        os.kill(pid, signal.SIGKILL)
                member.process.wait()


class SparkGroup(DaemonGroup):
    """Each member has a Spark. All that runs is killed when the block ends."""

    def __init__(
        self,
        three: Ensemble | None,
        cluster: Cluster,
        topic: str,
        partitions: int,
        folder: Path,
        destination: Destination,
    ) -> None:
        super().__init__(three, cluster, topic, partitions, folder, destination.tables)
        self.destination = destination

    async def verdict(self) -> tuple[list[Row], list[Row]]:
        """The committed records that are missing in the destination, and the duplicates."""
        committed: list[int] = []

        async def known() -> bool:
            committed[:] = await self.committed()
            return True

        await self.until(known)
        rows = await anyio.to_thread.run_sync(self.destination.rows)
        missing = [(p, offset) for p, until in enumerate(committed) for offset in range(until) if not rows[p, offset]]
        return missing, [row for row, times in rows.items() if times > 1]


# -- faults. Each leaves members a and b running, or about to run.


async def kill_daemon(group: DaemonGroup, name: str, chance: Random) -> None:
    await group.kill(name)
    group.start(name)


async def killed(find: Callable[[], int]) -> None:
    """The process of a Spark; if it has just ended because its batch was abandoned, that of the next one."""
    with anyio.fail_after(LIMIT):
        while True:
            try:
                os.kill(find(), signal.SIGKILL)
                return
            except (ProcessLookupError, FileNotFoundError, ValueError):
                await anyio.sleep(0.1)


async def kill_worker(group: DaemonGroup, name: str, chance: Random) -> None:
    await killed(lambda: group.worker(name))


async def kill_java(group: DaemonGroup, name: str, chance: Random) -> None:
    await killed(lambda: group.java(name))


async def freeze(group: DaemonGroup, name: str, chance: Random) -> None:
    """Longer than its session; meanwhile its Spark may work as a zombie, or resume with it."""
    frozen = [group.process(name), *(group.workers_of(name) if chance.random() < 0.5 else [])]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        await anyio.sleep(chance.uniform(1.3, 2.0) * SESSION)
    finally:
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)


async def kill_leader(group: DaemonGroup, name: str, chance: Random) -> None:
    assert group.three is not None
    leader = group.three.leader
    leader.kill()
    await anyio.sleep(chance.uniform(0.0, 3.0))
    leader.start()
    await anyio.to_thread.run_sync(group.three.wait_ready)


async def terminate(group: DaemonGroup, name: str, chance: Random) -> None:
    await group.stop(name)
    group.start(name)


async def a_third(group: DaemonGroup, name: str, chance: Random) -> None:
    """It joins, takes its share, and leaves."""
    group.start("c")
    await group.whole(3)
    await group.past([at + 1 for at in await group.committed()])
    await group.stop("c")


FAULTS = (kill_daemon, kill_java, freeze, kill_worker, kill_leader, terminate, a_third)
