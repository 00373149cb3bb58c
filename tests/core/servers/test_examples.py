"""The programs in docs/examples, run as they are; `ELSEWHERE` names the tests of those that need more than the core."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb
import pytest

from kzconsumer.registry.group_records import GroupRun, TopicEnds, encode_group_run
from kzconsumer_sandbox.servers.configuration import HOST, free_port
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.documented import EACH, PARTITIONS, documented
from tests.support.extent import extent
from tests.support.installed_plugins import install
from tests.support.members import stored_offsets
from tests.support.postgres import Postgres
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
ALL, CENTS = PARTITIONS * EACH, PARTITIONS * sum(range(EACH))
_AGAIN: tuple[str, ...] = ("--set", "group.id=example-exactly-once-again")
ELSEWHERE = {
    "migrate_group.sh": "tests/tools/servers/test_migrate_group.py",
    "streaming_merge.py": "tests/spark/spark/test_streaming_merge.py",
}


@pytest.fixture
def cluster(servers: Servers) -> Cluster:
    return documented(servers)


class Examples:
    """Runs programs in a folder of their own, as a user who has copied the examples there."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "KZCONSUMER__ZOOKEEPER__CONNECT": cluster.connect}
        for each in (*EXAMPLES.glob("*.*"), *EXAMPLES.glob("plugins/*.py")):
            (folder / each.name).write_bytes(each.read_bytes())

    @property
    def out(self) -> list[str]:
        return (self.folder / "out").read_text().splitlines()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    @contextmanager
    def started(self, *words: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """Python with these arguments; killed at the end of the block."""
        command = [sys.executable, "-u", *words]
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            environment = self.environment | variables
            process = subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=err, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    async def run(self, *words: str, **variables: str) -> list[str]:
        """The lines that it has printed; it must end with status 0."""
        with self.started(*words, **variables) as process:
            await until(lambda: process.poll() is not None, 60)
            assert process.returncode == 0, self.err
        return self.out


@pytest.fixture
def examples(cluster: Cluster, tmp_path: Path) -> Examples:
    return Examples(cluster, tmp_path)


async def everything_is_committed(cluster: Cluster, group: str) -> bool:
    return await stored_offsets(cluster.connect, group, "orders", PARTITIONS) == [EACH] * PARTITIONS


async def test_service(cluster: Cluster, examples: Examples) -> None:
    with examples.started("service.py") as process:
        await until(lambda: len(examples.out) == ALL, 60)
        process.send_signal(signal.SIGTERM)
        await until(lambda: process.poll() is not None, 60)
    assert process.returncode == 0, examples.err
    assert sorted(int(line.split()[0]) for line in examples.out) == list(range(ALL))
    assert await everything_is_committed(cluster, "example-service")
    assert not list(examples.folder.glob("dead-letters/*"))


async def test_duckdb_batches(cluster: Cluster, examples: Examples) -> None:
    """At night it starts again, and finds nothing new."""
    first = await examples.run("duckdb_batches.py")
    assert [line.split()[:2] for line in first] == [
        ["partition", "orders"],
        *([str(n), str(EACH)] for n in range(PARTITIONS)),
    ]
    for _ in range(extent(0, 1)):
        assert await examples.run("duckdb_batches.py") == first
    with duckdb.connect(str(examples.folder / "orders.duckdb")) as database:
        assert database.execute("select count(*), sum(cents) from orders").fetchall() == [(ALL, CENTS)]
    assert await everything_is_committed(cluster, "example-duckdb")


async def test_web_api(cluster: Cluster, examples: Examples) -> None:
    port = free_port()

    def get(path: str) -> object:
        with urllib.request.urlopen(f"http://{HOST}:{port}/{path}", timeout=10) as answer:
            return json.load(answer)

    def counted() -> bool:
        try:
            totals = get("totals")
        except OSError:
            return False
        assert isinstance(totals, Mapping)
        return sum(totals.values()) == CENTS

    with examples.started("web_api.py", PORT=str(port)) as process:
        await until(counted, 60)
        partitions = get("partitions")
        assert isinstance(partitions, list)
        assert {(each["partition"], each["end"]) for each in partitions} == {(n, EACH) for n in range(PARTITIONS)}
        assert get("health") == {"consuming": True}
        process.send_signal(signal.SIGTERM)
        await until(lambda: process.poll() is not None, 60)
    assert process.returncode in (0, -signal.SIGTERM), examples.err
    assert await everything_is_committed(cluster, "example-web")


async def test_pool(cluster: Cluster, examples: Examples) -> None:
    done = await examples.run("pool.py")
    assert sorted(line.split()[:2] for line in done) == sorted(
        [str(partition), str(offset)] for partition in range(PARTITIONS) for offset in range(EACH)
    )
    assert await everything_is_committed(cluster, "example-pool")
    for _ in range(extent(0, 1)):
        assert await examples.run("pool.py") == []


async def test_exactly_once(cluster: Cluster, examples: Examples, database: Postgres) -> None:
    """Also if the group begins again: another group takes the place of one whose offsets were not committed."""
    variables = {
        "PGHOST": HOST,
        "PGPORT": str(database.port),
        "PGUSER": database.user,
        "PGPASSWORD": database.password,
        "PGDATABASE": "postgres",
        "PGOPTIONS": "-c search_path=example",
    }
    database.query("create schema example")
    await examples.run("exactly_once.py", **variables)
    run = ("-m", "kzconsumer", "run", "exactly_once.toml")
    for more in extent([_AGAIN], [(), _AGAIN]):
        await examples.run(*run, *more, **variables)
        rows = database.query("select count(*), count(distinct id), sum(cents) from example.orders")
        assert rows == [(ALL, ALL, CENTS)]
    assert await everything_is_committed(cluster, "example-exactly-once-again")
    for restored, error in (("until = -1", "rows up to -1"), ("epoch = 1", "rows of epoch 1, this is 0")):
        database.query(f"update example.progress set {restored}")  # as if from a copy: first the table, then ZooKeeper
        with examples.started(*run, "--set", "group.id=example-exactly-once-last", **variables) as process:
            await until(lambda: process.poll() is not None, 60)
        assert process.returncode == 1
        assert error in examples.err
        assert "went back?" in examples.err
        assert database.query("select count(*) from example.orders") == [(ALL,)]


async def test_scheduled_job(cluster: Cluster, examples: Examples) -> None:
    """The process of an earlier run has ended before it was finished."""
    async with session(cluster.connect) as operator:
        incarnation = f"{(await operator.get('/brokers/topics/orders')).stat.czxid:#x}"
        ends = TopicEnds(incarnation, dict.fromkeys(range(PARTITIONS), 1))
        run = GroupRun(
            id="sunday", stop_at=-1, began=1, subscriptions=('["static","orders"]',), topics={"orders": ends}
        )
        await operator.ensure("/consumers/example-job")
        await operator.create("/consumers/example-job/run", encode_group_run(run))
    assert await examples.run("scheduled_job.py", "monday") == [
        f"run sunday: {PARTITIONS} orders, 0 cents",
        f"run monday: {ALL - PARTITIONS} orders, {CENTS} cents",
    ]
    assert await examples.run("scheduled_job.py", "monday") == ["run monday: 0 orders, 0 cents"]
    assert await everything_is_committed(cluster, "example-job")


async def test_plugins(cluster: Cluster, examples: Examples) -> None:
    """The second group finds every range in the file."""
    project = tomllib.loads((EXAMPLES / "plugins" / "pyproject.toml").read_text())["project"]
    entry_points = project["entry-points"]
    for group, named in entry_points.items():
        (line,) = (f"{name} = {place}" for name, place in named.items())
        install(examples.folder, f"{project['name']}-{group.rpartition('.')[2]}", group, line)
    (assignor,), (sink,) = entry_points["kzconsumer.assignors"], entry_points["kzconsumer.sinks"]
    (examples.folder / "group.toml").write_text(
        'group = { id = "example-plugins" }\nsubscription = { topics = { orders = 2 }, stop_at = "end" }\n'
    )
    words = ["-m", "kzconsumer", "run", "group.toml", "--set", f"group.assignor={assignor}"]
    words += ["--set", f"sink.plugin={sink}", "--set", "sink.options.path=orders.sqlite"]
    await examples.run(*words, PYTHONPATH=str(examples.folder))
    with closing(sqlite3.connect(examples.folder / "orders.sqlite")) as database:
        rows = database.execute('select "partition", "offset" from records order by 1, 2').fetchall()
    assert rows == [(partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)]
    assert await everything_is_committed(cluster, "example-plugins")


def test_every_example_has_a_test() -> None:
    """And says in its first lines what it shows and how it is started."""
    here = Path(__file__).read_text()
    for example in (*EXAMPLES.rglob("*.py"), *EXAMPLES.glob("*.sh")):
        text = example.read_text()
        assert "Shows: " in text, example
        start = example.name if example.parent == EXAMPLES else "pip install ./docs/examples/plugins"
        assert start in text, f"{example}: how is it started?"
        assert 20 <= len(text.splitlines()) <= 90, example
        if example.name in ELSEWHERE:
            assert (EXAMPLES.parents[1] / ELSEWHERE[example.name]).is_file()
        elif example.parent == EXAMPLES:
            assert f'"{example.name}"' in here, example
