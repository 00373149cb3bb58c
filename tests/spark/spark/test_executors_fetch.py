"""Ranges that Spark's tasks fetch from real brokers: every record once, large ranges in parts, no secret shown."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from kzconsumer.model import TopicPartition
from kzconsumer.records.checksums import Contents, contents_of
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.interface import StepNotRecordedError
from kzconsumer_files.directory_target import Target
from kzconsumer_files.range_names import TargetOwner
from kzconsumer_files.target_writer import WriteResult
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark.daemon.marked_destination import destination_for
from kzconsumer_spark.executors.fetching import NotWholeError
from kzconsumer_spark.executors.planned_topics import KafkaRegistry
from kzconsumer_spark.executors.task_parts import FEWEST_OFFSETS
from kzconsumer_spark.ranges.batch import PartsRead, SparkBatch, WorkerLease
from kzconsumer_spark.worker.query import RangeQuery, RangeStream, TopicsLease
from kzconsumer_spark.worker.range_writers import FilesDestination
from kzconsumer_spark.worker.spark_errors import Tracebacks
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from kzconsumer_spark.worker_protocol.messages import Done, Failed, RunBatch, ToFiles
from tests.support.batch_ranges import batch_range
from tests.support.extent import only_nightly
from tests.support.members import committed, daemon
from tests.support.processes import wait_until
from tests.support.producing import Sent, produce
from tests.support.range_data import range_data, record
from tests.support.secured import PLAIN_PASSWORD, Secured
from tests.support.spark_cluster import SparkCluster
from tests.support.zookeeper_sessions import session, until

LIMIT = 300.0

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


def kafka(cluster: Cluster, **tables: object) -> Kafka:
    base = {"zookeeper": {"connect": cluster.connect}, "group": {"id": "g"}}
    return Kafka.of(Settings.from_dict(base | tables))


async def test_the_frame_is_what_was_planned_and_a_large_range_is_fetched_by_several_tasks(
    spark: SparkSession, cluster_of: Callable[[str], Cluster], unique: str, tmp_path: Path
) -> None:
    """From the oldest broker. A range that the log has lost fails its batch with one line. What tasks have read is
    known once all of them have read to the end, and however often they do.
    """
    cluster = cluster_of("0.8.2.2")
    await create_topic(cluster.connect, unique, 2)
    large = 2 * FEWEST_OFFSETS + 500
    sent = [Sent(0, b"k%d" % n if n % 7 else None, b"%d" % n) for n in range(large)]
    sent += [Sent(1, b"", None), Sent(1, b"k", b"v")]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
    found: list[tuple[object, ...]] = []
    tasks: list[int] = []
    read: dict[TopicPartition, PartsRead] = {}

    def write(batch: SparkBatch) -> WriteResult:
        assert batch.read is not None
        batch.frame.limit(1).collect()
        with pytest.raises(NotWholeError, match="no task has accounted for the offsets from"):
            batch.read()
        batch.frame.where("partition = 1").count()
        read.update(batch.read())
        rows = batch.frame.select(sql.spark_partition_id(), "topic", "partition", "offset", "key", "value").collect()
        assert batch.read() == read
        tasks.append(len({task for task, *_ in rows}))
        found.extend(tuple(row)[1:] for row in rows)
        return WriteResult(len(rows), 1, 0)

    def run() -> str:
        query = RangeQuery(spark, tmp_path / "query", 1, Tracebacks(), kafka=KafkaRegistry(kafka(cluster)))
        late = msgspec.structs.replace(batch_range(unique, 0, 250, large), first=0)  # the log has lost what is before
        ranges = (late, batch_range(unique, 1, 0, 2))
        outcome = query.run(RunBatch(number=1, ranges=ranges), write)
        assert isinstance(outcome, Done), outcome
        assert wait_until(lambda: query.last_progress is not None, LIMIT)
        last = query.last_progress
        assert last is not None
        assert last.numInputRows == 1 + 2 * (large - 250 + 2)  # as often as `write` reads them: accounts add none
        lost = query.run(RunBatch(number=2, ranges=(batch_range(unique, 1, 5, 7),)), write)
        query.stop()
        assert isinstance(lost, Failed)
        return lost.error

    error = await asyncio.to_thread(run)
    assert sorted(found, key=lambda row: row[1:3]) == [
        *((unique, 0, n, sent[n].key, sent[n].value) for n in range(250, large)),
        (unique, 1, 0, b"", None),
        (unique, 1, 1, b"k", b"v"),
    ]
    assert tasks == [3]
    for partition, first, count in ((0, 250, large), (1, 0, 2)):
        of = [each for each in sent if each.partition == partition]
        rows = [record(n, key=of[n].key, value=of[n].value) for n in range(first, count)]
        expected = contents_of(range_data(unique, partition, 0, count, rows).batches)
        assert read.pop(TopicPartition(unique, partition)) == PartsRead(expected)
    assert not read
    lost = f"kzconsumer.errors.OffsetLostError: {unique}-1: the leader says that offset 5 is not in its log"
    why = "deleted or cut off; a new leader may also not know yet what is in tiered storage"
    assert error == f"PythonException: {lost} ({why})"


async def test_nothing_is_published_before_all_is_accounted_for_and_recorded(
    spark: SparkSession,
    cluster_of: Callable[[str], Cluster],
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not if one of two tasks has not reported what it read, nor if the plan cannot be stored, as after a loss.

    The last attempt is the control: neither is in its way.
    """
    cluster = cluster_of("0.8.2.2")
    await create_topic(cluster.connect, unique, 2)
    async with session(cluster.connect) as zookeeper:
        incarnation = (await zookeeper.get(f"/brokers/topics/{unique}")).stat.czxid
    sent = [Sent(n % 2, None, b"%d" % n) for n in range(5)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
    of_both = batch_range(unique, 0, 0, 3), batch_range(unique, 1, 0, 2)
    parts = [msgspec.structs.replace(part, incarnation=incarnation) for part in of_both]
    to = ToFiles(path=str(tmp_path / "out"))
    destination_for(to).mark(TargetOwner(cluster="c", group="g"))
    target = Target(tmp_path / "out")
    known = KafkaRegistry(kafka(cluster))
    recorded: list[list[int]] = []

    def record_read(found: Mapping[TopicPartition, Contents]) -> None:
        assert target.missing(parts) == parts
        recorded.append([found[part.range.topic_partition].records for part in parts])
        if len(recorded) == 1:
            raise StepNotRecordedError("the partitions are lost")

    lease = TopicsLease(WorkerLease(math.inf), known, record_read)
    destination = FilesDestination(spark, to, lease)

    def write(batch: SparkBatch) -> WriteResult:
        lease.begin(batch)
        return destination.write(batch)

    def attempt(number: int) -> Done | Failed:
        query = RangeQuery(spark, tmp_path / f"query {number}", number, Tracebacks(), kafka=known)
        outcome = query.run(RunBatch(number=number, ranges=tuple(parts)), write)
        query.stop()
        return outcome

    with monkeypatch.context() as patched:
        accounts = RangeStream.accounts
        patched.setattr(RangeStream, "accounts", lambda stream, query: accounts(stream, query)[1:])
        untold = await asyncio.to_thread(attempt, 1)
        assert isinstance(untold, Failed)
        assert "no task has accounted for the offsets from 0 on" in untold.error
        assert (target.missing(parts), recorded) == (parts, [])
    with monkeypatch.context() as patched:  # tasks of other machines report in rows
        patched.setattr("kzconsumer_spark.worker.query.is_cluster", lambda master: True)
        lost = await asyncio.to_thread(attempt, 2)
    assert isinstance(lost, Failed)
    assert lost.error == "StepNotRecordedError: the partitions are lost"
    assert target.missing(parts) == parts
    done = await asyncio.to_thread(attempt, 3)
    assert isinstance(done, Done), done
    assert (done.rows, done.published, recorded, target.missing(parts)) == (5, 2, [[3, 2]] * 2, [])


def options(cluster: SparkCluster, tmp_path: Path, brokers: Mapping[str, object]) -> str:
    """The tables of a daemon, as JSON where that is TOML, too."""
    tls, sasl = brokers["tls"], brokers["sasl"]
    assert isinstance(tls, dict)
    assert isinstance(sasl, dict)
    plain = {key: value for key, value in brokers.items() if key not in ("tls", "sasl")}
    conf = {
        "spark.cores.max": "1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.redaction.regex": "nothing is redacted",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(tmp_path / "events"),
    }
    sink = {
        "destination": "parquet",
        "path": str(tmp_path / "out"),
        "master": cluster.master,
        "scratch": str(tmp_path / "scratch"),
        "start_timeout": "240s",
        "ui": True,
    }
    tables = {"brokers": plain, "brokers.tls": tls, "brokers.sasl": sasl, "sink": {"plugin": "spark"}}
    tables |= {"sink.options": sink, "sink.options.conf": conf}
    return "".join(
        f"[{name}]\n" + "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


def shown(ui: str, application: str) -> bytes:
    """What Spark's own pages say of the application."""
    base = f"{ui}/api/v1/applications/{application}"
    pages = ("environment", "jobs", "stages", "executors", "sql?details=true&planDescription=true&length=1000")
    found = []
    for page in pages:
        with urlopen(f"{base}/{page}") as answer:
            found.append(answer.read())
    return b"".join(found)


@only_nightly  # fetched by tasks: the tests above; what tasks are given: tests/spark/plain/test_executor_access.py
async def test_executors_of_a_cluster_fetch_each_record_once_and_no_password_is_shown(
    standalone: SparkCluster, secured: Secured, unique: str, tmp_path: Path
) -> None:
    """By TLS and SASL, though the worker that runs their driver is killed."""
    cluster = secured.cluster_of("3.9.1")
    await create_topic(cluster.connect, unique, 2)
    (tmp_path / "events").mkdir()
    extra = options(standalone, tmp_path, secured.table(cluster, "SASL_SSL", "PLAIN"))

    async def send(first: int, until: int) -> None:
        records = [Sent(n % 2, None, b"%d" % n) for n in range(first, until)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)

    await send(0, 1600)
    with daemon(tmp_path / "member", cluster.connect, unique, {unique: 1}, extra) as member:
        await until(lambda: member.events("batch written"), LIMIT)
        os.kill(member.events("spark ready")[0]["pid"], signal.SIGKILL)
        await committed(cluster.connect, unique, unique, [800, 800], LIMIT)
        await send(1600, 1700)
        await committed(cluster.connect, unique, unique, [850, 850], LIMIT)
        ready = member.events("spark ready")[-1]
        pages = await asyncio.to_thread(shown, ready["ui"], ready["application"])
        logs = [file.read_bytes() for file in (tmp_path / "scratch").rglob("spark.log")]
        member.signal(signal.SIGTERM)
        assert await member.ended() == 0
    assert len(member.events("spark ready")) == 2
    table = ds.dataset(tmp_path / "out", format="parquet", partitioning=None).to_table(
        columns=["partition", "offset", "value"]
    )
    assert sorted(map(tuple, (row.values() for row in table.to_pylist()))) == [
        (n % 2, n // 2, b"%d" % n) for n in sorted(range(1700), key=lambda n: (n % 2, n // 2))
    ]
    written = [file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file()]
    for text in (b"".join(written), pages):  # where a password among Spark's settings would be shown
        assert b"spark.cores.max" in text
        assert b"InsertIntoHadoopFsRelationCommand" in text
    secret = PLAIN_PASSWORD.encode()[-8:]
    assert not [text for text in (*written, pages, *logs, member.err.read_bytes()) if secret in text]
