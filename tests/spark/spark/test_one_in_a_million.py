"""One poisoned record among many, in each sink and in the source, with each policy and a kill -9 in the middle.

`KZCONSUMER_POISONED=1000000` has a million records, and each policy in each sink. A night has 100,000, and one policy
in each sink, by its seed. The kill comes right after the record was settled: batches before its own are written,
and nothing of that one. `make test` has few records (test_poisoned_records.py, and that of the sink `parquet`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark import GroupSource
from tests.files.servers.test_poisoned_records import NANOSECONDS, letters
from tests.spark.spark.test_replay_after_kill import spark_of
from tests.support.chaos import PASSWORD, DeltaFiles, IcebergFiles, ParquetFiles, PostgresTable, Row
from tests.support.extent import NIGHTLY, only_nightly
from tests.support.members import committed, daemon, stored_offsets
from tests.support.poison_functions import DIRECTORY, stored_by_call
from tests.support.postgres import Postgres
from tests.support.processes import kill_session, wait_gone, wait_until
from tests.support.producing import Sent, produce
from tests.support.source_query import LIMIT, Written, run_to_the_end, source

pytestmark = [only_nightly, pytest.mark.timeout(3600), pytest.mark.filterwarnings("default")]
GIVEN = os.environ.get("KZCONSUMER_POISONED")
RECORDS = int(GIVEN or 100_000)
BATCH = max(RECORDS // 10, 100)
BAD = RECORDS // 2 + BATCH // 3
SECONDS = 1200.0
YEAR_10000 = 253_402_300_800_000_000
OUTSIDE = "is outside of the years 1 to 9999"
COLUMNS = """
value = { format = "json", schema = "n BIGINT, us BIGINT" }
select = "value.n, timestamp_micros(value.us) AS at, partition, offset"
"""


class Sink(NamedTuple):
    """`tables` of the settings, `rows` by how often each is there; what is poison to it, and what is said of it."""

    tables: str
    rows: Callable[[], Counter[Row]]
    poison: Sent
    reason: str
    repeats: bool = False
    """Whether records after the last commit may be there twice: the function has no ledger."""


IN_NANOSECONDS = Sent(0, None, b'{"n":0,"us":0}', timestamp=NANOSECONDS)
TOO_LATE = Sent(0, None, json.dumps({"n": 0, "us": YEAR_10000}).encode())


def sink_of(kind: str, path: Path, database: Postgres | None, name: str) -> Sink:
    match kind:
        case "parquet":
            tables = f'[sink]\nplugin = "parquet"\n[sink.options]\npath = "{path}/out"\n'
            files = ParquetFiles(path / "out", "")
            return Sink(tables, files.rows, IN_NANOSECONDS, f"timestamp {OUTSIDE}")
        case "callable":
            tables = '[sink]\nplugin = "callable"\n'
            tables += '[sink.options]\nfunction = "tests.support.poison_functions:store"\n'
            return Sink(tables, lambda: stored_by_call(path), Sent(0, None, b"poison"), "it is poison", repeats=True)
        case "raw":
            files = ParquetFiles(path / "out", f'destination = "parquet"\npath = "{path}/out"')
            return Sink(files.tables, files.rows, IN_NANOSECONDS, f"timestamp {OUTSIDE}")
        case "function":
            options = 'destination = "function"\nfunction = "tests.support.poison_functions:overwrite"'
            files = ParquetFiles(path / "out", options + '\nvalue = { format = "json", schema = "n BIGINT" }')
            return Sink(files.tables, files.rows, Sent(0, None, b"{"), "value is not one JSON object alone")
        case "spark":
            found: ParquetFiles | DeltaFiles | IcebergFiles | PostgresTable = ParquetFiles(
                path / "out", f'destination = "parquet"\npath = "{path}/out"'
            )
        case "delta":
            found = DeltaFiles(path / "out")
        case "iceberg":
            found = IcebergFiles(path / "out")
        case _:
            assert database is not None
            found = PostgresTable(database, name)
    tables = found.tables.replace("[sink.options]\n", f"[sink.options]\n{COLUMNS}", 1)
    return Sink(tables, found.rows, TOO_LATE, f"column at: {OUTSIDE}")


async def send(cluster: Cluster, topic: str, poison: Sent) -> None:
    await create_topic(cluster.connect, topic, 1)
    sent = (poison if n == BAD else Sent(0, None, b'{"n":%d,"us":0}' % n) for n in range(RECORDS))
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, sent)


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"  {what}: {time.monotonic() - began:.1f} s")


def rejected(tmp_path: Path, policy: str) -> str:
    directory = f'directory = "{tmp_path}/letters"\n' if policy == "dead-letter" else ""
    return f'[rejected]\npolicy = "{policy}"\n{directory}'


def cases(*kinds: str) -> list[tuple[str, str]]:
    """Each with both policies, or with one."""
    policies = ("dead-letter", "skip")
    if GIVEN:
        return list(product(kinds, policies))
    return [(kind, policies[((NIGHTLY or 0) + number) % 2]) for number, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("kind", "policy"),
    cases("parquet", "callable", "spark", "raw", "delta", "iceberg", "jdbc", "function"),
)
async def test_all_but_one_are_in_the_destination(
    cluster: Cluster,
    unique: str,
    tmp_path: Path,
    kind: str,
    policy: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `dead-letter`, a member whose policy is `fail` was there before: it names the record and ends."""
    database = request.getfixturevalue("database") if kind == "jdbc" else None
    if database is not None:
        monkeypatch.setenv(PASSWORD, database.password)
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    monkeypatch.setenv("KZCONSUMER__BATCH__MAX_RECORDS", str(BATCH))
    sink = sink_of(kind, tmp_path, database, unique)
    await send(cluster, unique, sink.poison)
    print(f"\n{kind}, {policy}: {RECORDS:,} records in batches of {BATCH:,}, poison at {BAD:,}")

    if policy == "dead-letter":
        with (
            timed("fail"),
            daemon(tmp_path / "a", cluster.connect, unique, {unique: 1}, rejected(tmp_path, "fail") + sink.tables) as a,
        ):
            assert await a.ended(SECONDS) == 1
            assert [line for line in a.err.read_text().splitlines() if f"{unique}-0 at offset {BAD} was rej" in line]
        assert (0, BAD) not in sink.rows()
        assert max(sink.rows()) < (0, BAD) or sink.repeats
    tables = rejected(tmp_path, policy) + sink.tables
    said = {"skip": "rejected record skipped", "dead-letter": "rejected record written as dead letter"}[policy]
    with timed("killed"), daemon(tmp_path / "b", cluster.connect, unique, {unique: 1}, tables) as b:
        processes = await spark_of(b) if "spark" in sink.tables else set()
        with anyio.fail_after(SECONDS):
            while not b.events(said):
                await anyio.sleep(0.01)
        b.signal(signal.SIGKILL)
        await b.ended()
        wait_gone(processes, 20)
    before = sink.rows()
    assert 0 < len(before) < RECORDS - 1, "in the middle"
    with timed("to the end"), daemon(tmp_path / "c", cluster.connect, unique, {unique: 1}, tables) as c:
        await committed(cluster.connect, unique, unique, [RECORDS], SECONDS)
        c.signal(signal.SIGTERM)
        assert await c.ended(60) == 0
    rows = sink.rows()
    assert rows.keys() == {(0, n) for n in range(RECORDS) if n != BAD}
    twice = [row for row, times in rows.items() if times > 1]
    assert not twice or sink.repeats
    assert letters(tmp_path).keys() == ({BAD} if policy == "dead-letter" else set())
    named = [each for member in (b, c) for each in member.events(said)]
    assert {(each["offset"], sink.reason in each["reason"]) for each in named} == {(BAD, True)}
    assert len(named) <= 2, "once more for the range that was in hand"
    print(f"  {len(rows):,} rows, {len(twice):,} twice; {len(before):,} when it was killed")


def configured(tmp_path: Path, cluster: Cluster, topic: str, policy: str) -> str:
    config = tmp_path / f"{policy}.toml"
    config.write_text(
        f'zookeeper.connect = "{cluster.connect}"\ngroup.id = "{topic}"\nsubscription.topics.{topic} = 1\n'
        f"{rejected(tmp_path, policy)}"
    )
    return str(config)


@pytest.mark.parametrize(("kind", "policy"), cases("source"))
async def test_all_but_one_come_from_the_source(
    spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path, kind: str, policy: str
) -> None:
    """A query that fails, then one with the policy that is killed with the batch of the record written, then the rest;
    and a batch read of all."""
    await send(cluster, unique, IN_NANOSECONDS)
    print(f"\n{kind}, {policy}: {RECORDS:,} records in batches of {BATCH:,}, poison at {BAD:,}")
    reason = f"{unique}-0 at offset {BAD} was rejected as unstorable: timestamp {OUTSIDE}"
    written, held = Written(tmp_path), BAD // BATCH
    options = {"config": configured(tmp_path, cluster, unique, policy), "maxRecordsPerBatch": str(BATCH)}
    if policy == "dead-letter":
        failing = options | {"config": configured(tmp_path, cluster, unique, "fail")}
        with timed("fail"), pytest.raises(StreamingQueryException, match=reason):
            await asyncio.to_thread(
                run_to_the_end, source(spark, cluster.connect, unique, **failing), tmp_path, written
            )
        assert written.batches == held
    command = [sys.executable, "-m", "tests.support.source_query", str(tmp_path), cluster.connect, unique, str(held)]
    command += [f"{name}={value}" for name, value in options.items()]
    driver = await asyncio.to_thread(subprocess.Popen, command, start_new_session=True)
    began = tmp_path / "out" / f"{held}.json"
    try:
        with timed("killed"):
            assert await asyncio.to_thread(wait_until, began.exists, int(SECONDS))
    finally:
        processes = kill_session(driver.pid)
        driver.wait()
        await asyncio.to_thread(wait_gone, processes, LIMIT)
    before = written.rows(held)
    began.unlink()  # what the sink had not finished
    with timed("to the end"):
        await asyncio.to_thread(run_to_the_end, source(spark, cluster.connect, unique, **options), tmp_path, written)
    assert written.rows(held) == before, "the same rows again"
    assert [offset for _, _, offset, _ in written.all] == [n for n in range(RECORDS) if n != BAD]
    assert letters(tmp_path).keys() == ({BAD} if policy == "dead-letter" else set())
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [RECORDS]
    with timed("batch read"):
        spark.dataSource.register(GroupSource)
        reading = spark.read.format("kzconsumer").options(config=options["config"], startingOffsets="earliest")
        found = reading.option("minPartitions", "4").load().agg(sql.count("offset"), sql.sum("offset")).collect()
    assert tuple(found[0]) == (RECORDS - 1, RECORDS * (RECORDS - 1) // 2 - BAD)
