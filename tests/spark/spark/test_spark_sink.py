"""The Spark sink with a real Spark: what it publishes, what it passes to a function, and which processes end together.

Starting Spark takes ten seconds and more, so each test does much with one worker.
"""

from __future__ import annotations

import base64
import json
import math
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from structlog.testing import capture_logs

from kzconsumer import clock
from kzconsumer.errors import ConfigError, SinkError
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import Batch
from kzconsumer_files.directory_target import Target
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.range_names import TargetOwner, data_file
from kzconsumer_sandbox.servers.configuration import HOST
from tests.support.batch_ranges import batch_range
from tests.support.delta import spark_columns
from tests.support.extent import only_nightly
from tests.support.postgres import JDBC_COMMIT, Postgres, driver_jar
from tests.support.processes import session_of, wait_gone
from tests.support.proxy import FaultProxy
from tests.support.range_data import TIME, range_data, record
from tests.support.served_sink import ServedSink
from tests.support.spark_functions import FUNCTION_DIRECTORY

pytestmark = pytest.mark.timeout(300)
LIMIT = 90.0
SECRETS = {"spark.hadoop.fs.s3a.secret.key": "planted", "spark.hadoop.proxy": "http://me:planted@proxy"}


def worker_of(sink: ServedSink) -> int:
    assert sink.workers is not None
    assert sink.workers.worker is not None
    return sink.workers.worker.pid


def java_of(pid: int) -> int:
    (java,) = [each for each in session_of(pid) if Path(f"/proc/{each}/comm").read_text().strip() == "java"]
    return java


def published(path: Path) -> list[dict[str, Any]]:
    table = ds.dataset(path, format="parquet").to_table()
    return table.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]).to_pylist()


async def wait_for(file: Path, lines: int) -> None:
    with anyio.fail_after(LIMIT):
        while not file.exists() or len(file.read_text().splitlines()) < lines:
            await anyio.sleep(0.02)


@asynccontextmanager
async def killed_while_starting(workers: int) -> AsyncIterator[None]:
    """SIGKILL to so many of our next workers, each as soon as it exists, before it can have started Spark."""

    async def kill() -> None:
        killed: set[int] = set()
        while len(killed) < workers:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            for pid in {int(each) for each in children} - killed:
                with suppress(FileNotFoundError):
                    if b"kzconsumer_spark.worker\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)
                        killed.add(pid)
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as group:
        group.start_soon(kill)
        yield
        group.cancel_scope.cancel()


async def test_a_worker_that_dies_at_its_start_is_restarted_as_often_as_a_batch_is_retried(tmp_path: Path) -> None:
    """Not if the settings are at fault: another start would not help."""
    options = {"destination": "parquet", "path": str(tmp_path / "out"), "scratch": str(tmp_path / "scratch")}
    sink = ServedSink({**options, "retry_backoff": "100ms"})
    with capture_logs() as logs:
        async with killed_while_starting(3):
            with pytest.raises(SinkError, match="did not start in 3 attempts: the Spark worker process died"):
                await sink.__aenter__()
    assert [each["attempt"] for each in logs if each["event"] == "spark start failed"] == [1, 2, 3]
    with capture_logs() as logs, pytest.raises(ConfigError) as caught:
        async with ServedSink({**options, "conf": {"spark.driver.memory": "lots"}}):
            pass
    assert caught.value.faults == ("[sink.options] conf: Invalid maximum heap size: -Xmxlots",)
    assert len([each for each in logs if each["event"] == "spark starting"]) == 1


@only_nightly
async def test_parquet_is_published_by_range_and_the_first_writer_wins(tmp_path: Path) -> None:
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    until = math.inf
    options = {
        "destination": "parquet",
        "path": str(out),
        "scratch": str(scratch),
        "attempts": 2,
        "retry_backoff": "100ms",
    }
    rows = [
        record(3, key=None, value=b"\xff\x00", headers=[{"key": "a", "value": b"1"}, {"key": "a", "value": None}]),
        record(5, value=None, timestamp=None, timestamp_type=-1),
        record(9, timestamp_type=1),
    ]
    async with killed_while_starting(1), ServedSink(options, safe_until=lambda: until) as sink:
        # Ranges of very different sizes in one batch, with gaps, without records, with one partition number twice.
        await sink.write(
            Batch(
                (
                    range_data("odd", 0, 3, 12, rows),
                    range_data("big", 0, 0, 20_000),
                    range_data("big", 1, 100, 101),
                    range_data("big", 2, 7, 9, []),
                )
            )
        )
        found = published(out)
        assert [(row["topic"], row["partition"], row["offset"]) for row in found] == [
            *(("big", 0, offset) for offset in range(20_000)),
            ("big", 1, 100),
            *(("odd", 0, offset) for offset in (3, 5, 9)),
        ]
        assert all(row["value"] == b"v%d" % row["offset"] for row in found[:20_001])
        odd = [{name: row[name] for name in ("key", "value", "timestampType", "headers")} for row in found[-3:]]
        assert odd == [
            {"key": None, "value": b"\xff\x00", "timestampType": 0, "headers": rows[0]["headers"]},
            {"key": b"k5", "value": None, "timestampType": -1, "headers": None},
            {"key": b"k9", "value": b"v9", "timestampType": 1, "headers": None},
        ]
        times = [row["timestamp"] for row in found[-3:]]
        assert times[1] is None
        assert [round(times[n].timestamp() * 1000) for n in (0, 2)] == [TIME + 3, TIME + 9]
        assert sorted(file.name for file in out.glob("*.parquet")) == [
            "big+0+2a.0+00000000000000000000+00000000000000020000+1.parquet",  # of the second task
            "big+0+2a.0+00000000000000000000+00000000000000020000.parquet",
            "big+1+2a.0+00000000000000000100+00000000000000000101.parquet",
            "odd+0+2a.0+00000000000000000003+00000000000000000012.parquet",
        ]
        entry = json.loads((out / "_kzconsumer/big+2+2a.0+00000000000000000007+00000000000000000009.json").read_text())
        assert (entry["records_in"], entry["records_out"], entry["files"]) == (0, 0, [])

        # A published range stays as it is, beside one that is new.
        again = range_data("big", 1, 100, 101, [record(100, value=b"other")])
        await sink.write(Batch((again,)))
        await sink.write(Batch((range_data("big", 1, 101, 102),)))
        assert [row["value"] for row in published(out) if row["partition"] == 1] == [b"v100", b"v101"]

        # After the lease nothing is written; with a new one the same batch continues.
        before = published(out)
        until = clock.now() - 1
        assert sink.workers is not None
        assert sink.workers.worker is not None
        await sink.workers.worker.heartbeat(until)
        async with anyio.create_task_group() as group:
            group.start_soon(sink.write, Batch((range_data("big", 3, 0, 5),)))
            await anyio.sleep(1.5)
            assert published(out) == before
            until = math.inf
        assert len(published(out)) == len(before) + 5

        # A batch that cannot be staged is retried, then fails; the next one finds everything in order.
        attempts = out / "_kzconsumer" / "attempts"
        (staging,) = [each for each in attempts.iterdir() if each.is_dir()]
        staging.rename(tmp_path / "aside")
        with pytest.raises(SinkError, match=r"could not write big-4\[0\.\.2\) in 2 attempts: FileNotFoundError: "):
            await sink.write(Batch((range_data("big", 4, 0, 2),)))
        assert not [row for row in published(out) if row["partition"] == 4]
        (tmp_path / "aside").rename(staging)
        await sink.write(Batch((range_data("big", 4, 0, 2),)))
        assert len([row for row in published(out) if row["partition"] == 4]) == 2

        pid = worker_of(sink)
        everything = session_of(pid)
        assert len(everything) >= 2
        os.kill(java_of(pid), signal.SIGKILL)
        with capture_logs() as logs:
            await sink.write(Batch((range_data("big", 5, 0, 2),)))
        (failed,) = [each["error"] for each in logs if each["event"] == "spark batch failed"]
        assert failed.startswith("Java was killed by signal 9")
        assert worker_of(sink) != pid
        wait_gone(everything, 5)
        assert len([row for row in published(out) if row["partition"] == 5]) == 2
        last = session_of(worker_of(sink))
    wait_gone(last, 5)
    assert not list(attempts.iterdir()) or all(not any(each.iterdir()) for each in attempts.iterdir() if each.is_dir())
    assert not [file for file in scratch.rglob("*") if file.is_file()]


@only_nightly  # without Spark: test_spark_errors.py
async def test_a_heap_that_is_too_small_for_a_batch_is_named(tmp_path: Path) -> None:
    """Each attempt has a Java of its own."""
    options = {
        "destination": "parquet",
        "path": str(tmp_path / "out"),
        "select": "repeat(cast(value AS string), 900000000) AS much",
        "attempts": 2,
        "retry_backoff": "100ms",
    }
    too_small = "Java ended: java.lang.OutOfMemoryError: Java heap space: raise "
    with capture_logs() as logs:
        async with ServedSink(options) as sink:
            with pytest.raises(SinkError, match=too_small):
                await sink.write(Batch((range_data("t", 0, 0, 1),)))
    failed = [each["error"] for each in logs if each["event"] == "spark batch failed"]
    assert [each.startswith(too_small) for each in failed] == [True] * 2, failed


@only_nightly
async def test_a_record_goes_into_the_directory_of_its_day_in_utc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the time zone of the member is: TIME is the 14th in UTC, and the 15th in Tokyo.

    And on a machine whose own name has no address: Java looks names up in this file only.
    """
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    options = {
        "destination": "parquet",
        "path": str(tmp_path / "out"),
        "select": "offset, date(timestamp) AS day, hour(timestamp) AS hour",
        "partition_by": ["day"],
        "event_log": str(tmp_path / "made" / "log"),
        "conf": {"spark.driver.extraJavaOptions": f"-Djdk.net.hosts.file={hosts}", "spark.eventLog.compress": "false"},
        "attempts": 1,
    }
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    async with ServedSink(options) as sink:
        await sink.write(Batch((range_data("t", 0, 0, 1),)))
    (file,) = (tmp_path / "out").glob("day=*/*.parquet")
    assert file.parent.name == "day=2023-11-14"
    assert pq.read_table(file, partitioning=None).column("hour").to_pylist() == [22]
    (log,) = (tmp_path / "made" / "log").glob("eventlog_v2_*/events_1_*")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [each["App Name"] for each in events if each["Event"] == "SparkListenerApplicationStart"] == ["g"]
    assert events[-1]["Event"] == "SparkListenerApplicationEnd"


@only_nightly  # without a worker: test_spark_destinations.py, tests/spark/servers/test_jdbc_publication.py
async def test_postgresql_gets_each_range_once_though_the_worker_is_killed(
    tmp_path: Path, database: Postgres, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    database.query(
        f'CREATE TABLE "{unique}" (key bytea, value bytea, topic text, "partition" int, "offset" bigint,'
        ' "timestamp" timestamp without time zone, "timestampType" int, headers jsonb)'
    )
    secret = tmp_path / "password"
    secret.write_text(f"{database.password}\n")
    options = {
        "destination": "jdbc",
        "master": "local[2,4]",
        "where": "offset >= 0",
        "table": unique,
        "user": database.user,
        "password_file": str(secret),
        "conf": {"spark.jars": str(driver_jar()), **SECRETS},
        "attempts": 2,
        "retry_backoff": "100ms",
        "scratch": str(tmp_path / "scratch"),
    }

    def rows() -> list[tuple[Any, ...]]:
        return database.query(f'SELECT "partition", "offset", value FROM "{unique}" ORDER BY 1, 2')

    async with (
        FaultProxy(HOST, database.port) as proxy,
        ServedSink(options | {"url": f"jdbc:postgresql://{proxy.connect}/postgres"}) as sink,
    ):
        await sink.write(Batch((range_data("t", 0, 0, 3000), range_data("t", 1, 4, 5))))
        expected = [*((0, n, b"v%d" % n) for n in range(3000)), (1, 4, b"v4")]
        assert rows() == expected
        ((stored,),) = database.query(f'SELECT "timestamp" FROM "{unique}" WHERE "partition" = 1')
        assert stored.replace(tzinfo=UTC).timestamp() * 1000 == TIME + 4, "a column without time zone has UTC"
        identity = RangeIdentity("t", 0, 0x2A, 0, 0, 3000)
        assert await sink.has([identity, identity._replace(until=2999)]) == [identity]

        # The database commits what a task has staged, but Spark does not get the reply and runs the task again.
        proxy.lose_answer_to = JDBC_COMMIT
        with capture_logs() as logs:
            await sink.write(Batch((range_data("t", 1, 5, 9),)))
        assert proxy.lose_answer_to is None
        (failed,) = [each["error"] for each in logs if each["event"] == "spark batch failed"]
        assert "_each_task_once" in failed
        assert "v5" not in failed
        expected += [(1, n, b"v%d" % n) for n in range(5, 9)]
        assert rows() == expected

        # Blocked by a lock in the middle of its transaction, killed, and retried by another worker.
        pid = worker_of(sink)
        with database.connect() as blocking, blocking.transaction():
            blocking.execute(f'LOCK TABLE "{unique}" IN SHARE MODE')
            async with anyio.create_task_group() as group:
                group.start_soon(sink.write, Batch((range_data("t", 2, 0, 500),)))
                waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT%%'"
                with anyio.fail_after(LIMIT):
                    while not await anyio.to_thread.run_sync(database.query, waiting):
                        await anyio.sleep(0.05)
                for process in session_of(pid):
                    arguments = Path(f"/proc/{process}/cmdline").read_text(errors="replace")
                    assert not [each for each in (database.password, *SECRETS.values()) if each in arguments]
                os.kill(pid, signal.SIGKILL)
                blocking.execute("COMMIT")
        assert worker_of(sink) != pid
        assert rows() == [*expected, *((2, n, b"v%d" % n) for n in range(500))]
        log = "".join(path.read_text() for path in (tmp_path / "scratch").rglob("spark.log"))
        assert database.password not in log
    left = database.query("SELECT tablename FROM pg_tables WHERE tablename LIKE 'kzconsumer_stage%%'")
    assert not left, "the second worker removes the first one's files"


@only_nightly  # without a worker: test_spark_destinations.py, tests/spark/plain/test_delta_target.py
async def test_a_delta_table_gets_each_range_once_and_further_columns(tmp_path: Path) -> None:
    path = tmp_path / "table"
    DeltaTable.create(path, Schema.from_json(spark_columns()))
    options = {
        "destination": "delta",
        "path": str(path),
        "select": "*, partition + 1 AS more",
        "retry_backoff": "100ms",
        "scratch": str(tmp_path / "scratch"),
    }
    first, second = range_data("t", 0, 0, 3000), range_data("t", 0, 3000, 3001)
    async with ServedSink(options) as sink:
        await sink.write(Batch((first,)))
        await sink.write(Batch((first,), is_replay=True))
        assert await sink.set_aside(second.identity, 1)
        with pytest.raises(SinkError, match="was set aside"):
            await sink.write(Batch((second,)))
        assert await sink.has([second.identity, first.identity]) == [first.identity]
        holdings = await sink.holdings(count_rows=True)
        assert [(each.identity, each.rows) for each in holdings.ranges] == [(first.identity, 3000)]
    found = DeltaTable(path).to_pyarrow_table(columns=["offset", "value", "more"]).sort_by("offset").to_pylist()
    assert found == [{"offset": n, "value": b"v%d" % n, "more": 1} for n in range(3000)]


@only_nightly  # in a shared Spark: test_value_matrix.py; a worker that ends with its member: test_replay_after_kill.py
async def test_a_function_is_called_as_by_foreach_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FUNCTION_DIRECTORY, str(tmp_path))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    fail, stall, calls = tmp_path / "fail", tmp_path / "stall", tmp_path / "calls"
    _publish_without_spark(tmp_path / "table", ["a", "b"])
    options = {
        "destination": "function",
        "function": "tests.support.spark_functions:obey",
        "attempts": 2,
        "retry_backoff": "100ms",
    }

    def called() -> list[dict[str, int]]:
        return [json.loads(line) for line in calls.read_text().splitlines()]

    async with ServedSink(options) as sink:
        await sink.write(Batch((range_data("t", 0, 0, 5, []),)))
        assert not calls.exists(), "called with zero rows"

        await sink.write(Batch((range_data("t", 0, 0, 2), range_data("t", 1, 4, 5))))
        (call,) = called()
        seen = json.loads((tmp_path / f"seen-{call['batch_id']}").read_text())
        assert seen["schema"] == (
            "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
            "timestampType:int,headers:array<struct<key:string,value:binary>>>"
        )
        assert [(row["partition"], row["offset"], base64.b64decode(row["value"])) for row in seen["rows"]] == [
            (0, 0, b"v0"),
            (0, 1, b"v1"),
            (1, 4, b"v4"),
        ]
        assert seen["local"] == ["2023-11-14 22:13:20", "2023-11-14 22:13:20.001000", "2023-11-14 22:13:20.004000"]
        assert seen["table"] == ["a", "b"], "Spark must read a target as the published rows and nothing else"
        assert call["pid"] == worker_of(sink)

        # An exception is retried under the same number, then reported in one line.
        fail.touch()
        with pytest.raises(SinkError, match=r"could not write t-0\[2\.\.4\) in 2 attempts: ValueError: told to fail$"):
            await sink.write(Batch((range_data("t", 0, 2, 4),)))
        fail.unlink()
        assert [each["batch_id"] - call["batch_id"] for each in called()] == [0, 1, 1]

        # The worker is killed in the middle of a call: another one makes the same call.
        stall.touch()
        async with anyio.create_task_group() as group:
            group.start_soon(sink.write, Batch((range_data("t", 0, 4, 6),)))
            await wait_for(calls, 4)
            first = session_of(worker_of(sink))
            os.kill(called()[-1]["pid"], signal.SIGKILL)
            stall.unlink()
        wait_gone(first, 5)
        assert [each["batch_id"] - call["batch_id"] for each in called()[3:]] == [2, 2]
        assert (tmp_path / f"seen-{called()[-1]['batch_id']}").exists()

        # A cancelled write leaves no process that could still write.
        stall.touch()
        everything = session_of(worker_of(sink))
        async with anyio.create_task_group() as group:
            group.start_soon(sink.write, Batch((range_data("t", 0, 6, 8),)))
            await wait_for(calls, 6)
            group.cancel_scope.cancel()
        wait_gone(everything, 0)
    captured = capfd.readouterr()
    assert "a function may print" not in captured.out
    assert "a function may print" in captured.err
    output = captured.out + captured.err
    assert output.count("spark starting") == output.count("spark ready") == 2, "one for each worker"
    assert output.count("\nValueError: told to fail") == 1, "one traceback for all attempts"
    assert output.count("spark batch failed") >= 2, "and a line for each"


def _publish_without_spark(path: Path, texts: list[str]) -> None:
    target = Target(path)
    target.mark(TargetOwner(cluster="c", group="g"))
    scratch = target.attempts / "dead" / "1"
    scratch.mkdir(parents=True)
    pq.write_table(pa.table({"text": ["never published"]}), scratch / "left-behind.parquet")
    for partition, text in enumerate(texts):
        staged = target.attempts / f"{partition}.parquet"
        pq.write_table(pa.table({"text": [text]}), staged)
        part = batch_range("t", partition, 0, 1)
        target.publish([StagedRange(part, 1, 0, [(staged, data_file(part))])], scratch, lambda: None)
