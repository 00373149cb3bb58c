"""The streaming query that runs batches, on a real Spark: its frame is the batch, and each batch has one outcome."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kzconsumer_files.target_writer import WriteResult
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark.columns.shaping import Shaping
from kzconsumer_spark.executors.planned_topics import KafkaRegistry
from kzconsumer_spark.ranges.batch import SCHEMA, SparkBatch
from kzconsumer_spark.ranges.staged_files import RangeFiles
from kzconsumer_spark.worker.query import RangeQuery
from kzconsumer_spark.worker.spark_errors import Tracebacks
from kzconsumer_spark.worker_protocol.column_options import Columns, FieldOptions
from kzconsumer_spark.worker_protocol.messages import BatchRange, Done, Failed, RunBatch, ToFiles
from tests.spark.spark.test_executors_fetch import kafka
from tests.support.batch_ranges import batch_range
from tests.support.extent import extent
from tests.support.processes import wait_until
from tests.support.producing import Sent, produce

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]
LIMIT = 30.0


MOST = 60
"""Records of each partition of the topic, from offset 0 on."""


class Log(NamedTuple):
    """A topic of a broker, from which tasks fetch."""

    topic: str
    registry: KafkaRegistry

    def ranges(self, *sizes: int, first: int = 0) -> tuple[BatchRange, ...]:
        """A range of each partition from 0 on, with so many records."""
        return tuple(batch_range(self.topic, n, first, first + size) for n, size in enumerate(sizes))


@pytest.fixture
def log(cluster: Cluster, unique: str) -> Log:
    return log_of(cluster, f"_{unique}", [Sent(n, None, b"v") for n in range(3) for _ in range(MOST)])


def log_of(cluster: Cluster, topic: str, sent: list[Sent]) -> Log:
    asyncio.run(create_topic(cluster.connect, topic, 3))
    produce(cluster.bootstrap, cluster.version, topic, sent)
    return Log(topic, KafkaRegistry(kafka(cluster)))


class Collected:
    """Writes a batch into a list of its positions, and keeps what its jobs are called; spoils the run of some."""

    def __init__(self, fails: int | None = None) -> None:
        self.batches: list[tuple[int, list[tuple[str, int, int]]]] = []
        self.descriptions: list[str | None] = []
        self._fails = fails

    def __call__(self, batch: SparkBatch) -> WriteResult:
        self.descriptions.append(batch.frame.sparkSession.sparkContext.getLocalProperty("spark.job.description"))
        rows = batch.frame.select("topic", "partition", "offset").collect()
        self.batches.append((batch.number, sorted(tuple(row) for row in rows)))
        if batch.number == self._fails:
            raise ValueError("no room\nleft")
        return WriteResult(len(rows), 1, 0)


def positions(ranges: Sequence[BatchRange]) -> list[tuple[str, int, int]]:
    return [(part.topic, part.partition, offset) for part in ranges for offset in range(part.first, part.until)]


class Progress(StreamingQueryListener):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.seen.append(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...


@contextmanager
def listening(spark: SparkSession) -> Iterator[Progress]:
    listener = Progress()
    spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        spark.streams.removeListener(listener)


def test_the_frame_is_the_batch_and_spark_reports_what_it_read(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    """Its jobs name its ranges. Ranges without records need no run of the query."""
    collected = Collected()
    sizes = [(15, 10, 0), (1,), (0, 0), (0, 7)]
    with listening(spark) as listener:
        query = RangeQuery(spark, tmp_path / "query", 7, Tracebacks(), log.registry, "orders")
        for number, each in enumerate(sizes, 7):
            ranges = log.ranges(*each, first=2 * number)
            outcome = query.run(RunBatch(number=number, ranges=ranges), collected)
            assert isinstance(outcome, Done)
            assert (outcome.number, outcome.rows) == (number, sum(each))
            assert collected.batches[-1] == (number, positions([part for part in ranges if part.records]))
        assert wait_until(lambda: len(listener.seen) == 3, LIMIT)
        last = query.last_progress
        assert last is not None
        query.stop()
    assert [each.numInputRows for each in (*listener.seen, last)] == [25, 1, 7, 7]
    assert last.name == "orders"
    assert last.inputRowsPerSecond > 0
    assert last.durationMs["addBatch"] > 0
    named = [f"batch 7: {log.topic}-0[14..29), {log.topic}-1[14..24)", f"batch 8: {log.topic}-0[16..17)"]
    assert collected.descriptions == [*named, None, f"batch 10: {log.topic}-1[20..27)"]


def test_files_of_this_machine_are_not_looked_for_in_the_default_file_system(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """Which on YARN mostly is HDFS."""
    ranges = log.ranges(5, 3)
    spark.conf.set("fs.defaultFS", "nowhere://x")

    def write(batch: SparkBatch) -> WriteResult:
        files = RangeFiles(spark, ToFiles(path="")).stage(batch.frame, batch.ranges, tmp_path / "100% out").ranges
        assert all(file.is_file() for each in files for file, _ in each.files)
        return WriteResult(sum(each.rows for each in files), 2, 0)

    try:
        query = RangeQuery(spark, tmp_path / "query 100%", 1, Tracebacks(), log.registry)
        outcome = query.run(RunBatch(number=1, ranges=ranges), write)
        query.stop()
    finally:
        spark.conf.unset("fs.defaultFS")
    assert isinstance(outcome, Done), outcome
    assert outcome.rows == 8
    assert not (tmp_path / "query 100%").exists()


@pytest.mark.parametrize("on_error", extent(["quarantine"], ["reject", "quarantine", "column"]))  # it reads them most
def test_shaping_a_batch_reads_its_records_once(
    spark: SparkSession,
    cluster: Cluster,
    unique: str,
    tmp_path: Path,
    on_error: Literal["reject", "quarantine", "column"],
) -> None:
    """Spark counts what its tasks read: counting bad records, or asking whether any are left, must not read again."""
    value = FieldOptions(format="json", schema="a INT", on_error=on_error)
    columns = Columns(value=value, where="offset >= 10", quarantine=str(tmp_path / "bad"))
    shaping = Shaping(spark, columns, SCHEMA)
    counts: list[int] = []

    def write(batch: SparkBatch) -> WriteResult:
        frame = shaping.shape(batch.frame, batch.ranges).frame
        assert shaping.has_rows(frame)
        counts.append(len(frame.collect()))
        shaping.release()
        return WriteResult(1, 1, 0)

    texts = [b'{"a": 1}'] * 38 + [b'{"a": 2}' if on_error == "reject" else b"{"] * 2
    log = log_of(cluster, unique, [Sent(0, None, text) for text in texts])
    ranges = log.ranges(40)
    with listening(spark) as listener:
        query = RangeQuery(spark, tmp_path / "query", 1, Tracebacks(), log.registry)
        assert isinstance(query.run(RunBatch(number=1, ranges=ranges), write), Done)
        assert wait_until(lambda: len(listener.seen) == 1, LIMIT)
        query.stop()
    shaping.close()
    assert counts == [28 if on_error == "quarantine" else 30]
    assert listener.seen[0].numInputRows == 40


def test_a_failed_batch_is_run_again_by_a_new_query_that_knows_nothing_of_the_first(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """Neither skipped, because Spark has it as begun, nor joined by what earlier queries left."""
    collected = Collected(fails=8)
    first, second = log.ranges(3), log.ranges(2, 4, first=50)
    query = RangeQuery(spark, tmp_path / "first", 7, Tracebacks(), log.registry)
    assert isinstance(query.run(RunBatch(number=7, ranges=first), collected), Done)
    failed = query.run(RunBatch(number=8, ranges=second), collected)
    assert isinstance(failed, Failed)
    assert (failed.number, failed.error) == (8, "ValueError: no room")
    query.stop()
    again = Collected()
    query = RangeQuery(spark, tmp_path / "second", 8, Tracebacks(), log.registry)
    assert isinstance(query.run(RunBatch(number=8, ranges=second), again), Done)
    query.stop()
    assert again.batches == [(8, positions(second))]


def test_each_batch_has_an_outcome_and_a_batch_not_begun_never_begins(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    written: list[int] = []

    def write(batch: SparkBatch) -> WriteResult:
        written.append(batch.number)
        return WriteResult(1, 1, 0)

    def write_and_spoil(batch: SparkBatch) -> WriteResult:
        shutil.rmtree(tmp_path / "query" / "checkpoint" / "commits")
        (tmp_path / "query" / "checkpoint" / "commits").touch()
        return write(batch)

    query = RangeQuery(spark, tmp_path / "query", 20, Tracebacks(), log.registry)
    first = query.run(RunBatch(number=20, ranges=log.ranges(1)), write_and_spoil)
    assert isinstance(first, Done)  # it is durable; only then does Spark fail
    over = query.run(RunBatch(number=21, ranges=log.ranges(1)), write)
    assert isinstance(over, Failed)
    assert (over.number, "commits" in over.error) == (21, True), over.error
    query.stop()
    assert written == [20]
    assert list(spark.streams.active) == []


def test_checkpoint_files_are_written_without_other_programs(spark: SparkSession) -> None:
    """Spark has the class under the configured name; otherwise the session would use its default."""
    manager = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass", "")
    assert manager is not None
    assert manager.endswith("FileSystemBasedCheckpointFileManager")
