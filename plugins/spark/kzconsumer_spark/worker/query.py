"""The streaming query whose foreachBatch writes batches.

Its source is a `RangeStream`: a batch of ours is what the source finds next, so the frame of foreachBatch is the batch,
and what Spark counts and shows of the query is true of it. The daemon's plans and the destination's ledger decide what
is written, never Spark's checkpoint: checkpoint and directory are new for each query, and after a failure the worker
makes a new query. So no query reads what an earlier one left.
"""

from __future__ import annotations

import queue
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from kzconsumer.display import some
from kzconsumer.errors import BrokersUnreachableError, DestinationWentBackError
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.records.checksums import Contents
from kzconsumer.registry.claim_record import Spans
from kzconsumer.sinks.interface import RecordsRejectedError
from kzconsumer_files.target_writer import WriteResult
from kzconsumer_spark.executors.fetching import (
    BrokersOutageError,
    CorruptPartError,
    NotStorableError,
    NotWholeError,
    PartAccount,
    corrupt_in,
    part_accounts,
    rejected_in,
    whole,
)
from kzconsumer_spark.executors.planned_topics import KafkaRegistry
from kzconsumer_spark.executors.range_source import IN_ROWS, NAME, RangeSource
from kzconsumer_spark.executors.task_parts import PublishedBatch, PublishedBatches, split
from kzconsumer_spark.ranges.batch import ACCOUNT, SCHEMA, PartsRead, SparkBatch, WorkerLease
from kzconsumer_spark.worker.spark_errors import Tracebacks, first_line, refuses_content
from kzconsumer_spark.worker_protocol.messages import BatchRange, Done, Failed, QueryProgress, RunBatch
from kzconsumer_spark.worker_protocol.spark_settings import is_cluster, location

_LOOK_SECONDS: Final = 0.5

Write: TypeAlias = Callable[[SparkBatch], WriteResult]


class RangeQuery:
    """A started query; `next_batch` is the number of the only batch that `run` takes next."""

    def __init__(
        self,
        session: SparkSession,
        directory: Path,
        next_batch: int,
        tracebacks: Tracebacks,
        kafka: KafkaRegistry,
        name: str = "kzconsumer",
    ) -> None:
        """`directory` is made. `name` is what Spark shows of the query."""
        self.next_batch = next_batch
        self._session = session
        self._directory = directory
        self._tracebacks = tracebacks
        self._asked: queue.SimpleQueue[tuple[RunBatch, Write]] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Done | Failed] = queue.SimpleQueue()
        self._nothing = session.createDataFrame([], SCHEMA)
        self._stream = RangeStream(session, directory / "stream", kafka)
        self._query = (
            self._stream.frame()
            .writeStream.queryName(name)
            .foreachBatch(self._foreach_batch)
            .option("checkpointLocation", location(directory / "checkpoint"))
            .start()
        )

    @property
    def run_id(self) -> str:
        """Spark's, of this run of the query."""
        return str(self._query.runId)

    @property
    def last_progress(self) -> StreamingQueryProgress | None:
        """Spark's report of the last batch; None before one."""
        return self._query.lastProgress

    def takes(self, batch: RunBatch) -> bool:
        """Whether `run` may be called with it; otherwise it needs a new query."""
        return batch.number == self.next_batch

    def run(self, batch: RunBatch, write: Write) -> Done | Failed:
        """Have Spark run a batch by `write`; returns when that is over, or the query without having begun it.

        A batch without records is none for Spark: `write` is called here.
        """
        assert self.takes(batch)
        self.next_batch += 1
        if not any(part.records for part in batch.ranges):
            try:
                return self._written(batch, write, self._nothing)
            except Exception as error:
                return failure(batch, error)
        self._asked.put((batch, write))
        self._stream.publish(batch.ranges, batch.rate_limit)
        while True:
            active = self._query.isActive  # asked first: an outcome may come between the two
            try:
                return self._outcomes.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if not active and self._withdrawn():
                    reason = self._query.exception()
                    return Failed(number=batch.number, error=first_line(reason) if reason else "the query ended")

    def stop(self) -> None:
        """Also removes what it has kept."""
        self._query.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _withdrawn(self) -> bool:
        """Take the batch back if foreachBatch has not begun it; one that runs is waited for, even after the query."""
        try:
            self._asked.get_nowait()
        except queue.Empty:
            return False
        return True

    def _foreach_batch(self, frame: DataFrame, number_of_query: int) -> None:
        batch, write = self._asked.get_nowait()
        self._session.sparkContext.setJobDescription(described(batch))
        try:
            self._outcomes.put(self._written(batch, write, self._stream.records(frame)))
        except BaseException as error:
            self._outcomes.put(failure(batch, error))
            raise

    def _read(self, batch: RunBatch) -> Mapping[TopicPartition, PartsRead]:
        spans = [span for part in batch.ranges for span in part.spans]
        return whole(spans, self._stream.accounts(self._query)) if spans else {}

    def _written(self, batch: RunBatch, write: Write, frame: DataFrame) -> Done:
        began = time.monotonic()
        try:
            read = partial(self._read, batch)
            written = write(SparkBatch(batch.number, frame, batch.ranges, batch.follows, batch.is_trial, read))
        except BaseException as error:
            self._tracebacks.report(batch.number, error, is_trial=batch.is_trial)
            raise
        return Done(number=batch.number, seconds=time.monotonic() - began, **written._asdict())


def _said(error: BaseException, raised: type[Exception]) -> str | None:
    """The text of an error of a task, whatever has wrapped it on its way: its traceback ends with it."""
    text = "".join(traceback.format_exception(error))
    _, found, rest = text.partition(f"\n{raised.__module__}.{raised.__qualname__}: ")
    return rest.partition("\n")[0] if found else None


def failure(batch: RunBatch, error: BaseException) -> Failed:
    """How the batch failed; if a task found no broker, or the driver none that knows the topics, that is the reason."""
    outage, named, corrupt = (_said(error, each) for each in (BrokersOutageError, NotStorableError, CorruptPartError))
    if isinstance(error, BrokersUnreachableError):
        outage = str(error)
    reason = outage[:1000] if outage is not None else first_line(error)
    rejected = tuple(error.records) if isinstance(error, RecordsRejectedError) else ()
    if named is not None and outage is None:
        rejected = rejected_in(named)
    lacks, ends = (error.lacking, error.ends) if isinstance(error, DestinationWentBackError) else (None, None)
    return Failed(
        number=batch.number,
        error=reason,
        rejected=rejected,
        refused=refuses_content(error),
        outage=outage is not None,
        corrupt=corrupt_in(corrupt) if corrupt is not None and outage is None else None,
        lacks=lacks,
        ends=ends,
    )


_MOST_RANGES: Final = 20


def described(batch: RunBatch) -> str:
    """What Spark shows of the batch's jobs."""
    ranges = [str(part.range) for part in batch.ranges if part.records]
    return f"batch {batch.number}: {some(ranges, _MOST_RANGES)}"


# Spark's own report of each batch of the query, passed on to the daemon.


class ProgressReports(StreamingQueryListener):
    """Calls `report` some milliseconds after foreachBatch has returned.

    Takes the JSON of each report: PySpark copies them field by field, which costs a batch 60 ms of the JVM's processor
    time, since at the end of each map Java looks for classes that it does not have.
    """

    def __init__(self, report: Callable[[QueryProgress], None], warm_up: str) -> None:
        """`warm_up`: the run whose first batch has no records of ours."""
        self._report = report
        self._warm_up = warm_up

    @property
    def _jlistener(self) -> Any:
        """What PySpark registers with the JVM: this, without its adapter that copies reports."""
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)  # type: ignore[union-attr]

    class Java:
        """For Py4J."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        """`event` is Java's."""
        report = msgspec.json.decode(event.progress().json(), type=_Report)
        if (report.run_id, report.batch_id) != (self._warm_up, 0):
            self._report(report.as_message())

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


class _Report(msgspec.Struct, rename="camel"):
    """Of `StreamingQueryProgress.json`, which leaves out rates that are not known."""

    run_id: str
    batch_id: int
    timestamp: str
    num_input_rows: int
    duration_ms: dict[str, int]
    name: str | None = None
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0

    def as_message(self) -> QueryProgress:
        return QueryProgress(
            query=self.name,
            run=self.run_id,
            batch_id=self.batch_id,
            timestamp=self.timestamp,
            input_rows=self.num_input_rows,
            input_rows_per_second=self.input_rows_per_second,
            processed_rows_per_second=self.processed_rows_per_second,
            milliseconds=self.duration_ms,
        )


# The first batch of a session: the first use of everything takes Spark seconds, later ones milliseconds.


def warm_up(query: RangeQuery) -> None:
    """Run a batch without rows, which shows whether executors can import what they need. Raises RuntimeError."""
    spans = (OffsetRange("", 0, 0, 0),)  # of no topic
    part = BatchRange(topic="", partition=0, first=0, until=0, incarnation=0, epoch=0, records=1, spans=spans)
    outcome = query.run(RunBatch(number=query.next_batch, ranges=(part,)), _write_nothing)
    if isinstance(outcome, Failed):
        raise RuntimeError(outcome.error)


def _write_nothing(batch: SparkBatch) -> WriteResult:
    batch.frame.write.format("noop").mode("append").save()
    return WriteResult(0, 1, 0)


# The batches of a query whose executors fetch: publishes the spans of planned ranges, the large ones in parts.


class TopicsLease:
    """The lease, and the batch in hand: its topics must be those that were planned, and its ranges read as a whole."""

    def __init__(
        self, lease: WorkerLease, registry: KafkaRegistry, record: Callable[[Mapping[TopicPartition, Contents]], None]
    ) -> None:
        """`record` returns when the plans have what was read, or raises."""
        self._lease = lease
        self._registry = registry
        self._record = record
        self._fetched: list[BatchRange] = []
        self._read: Callable[[], Mapping[TopicPartition, PartsRead]] = dict
        self._recorded = False

    def begin(self, batch: SparkBatch) -> None:
        assert batch.read is not None
        self._fetched = [part for part in batch.ranges if part.records]
        self._read = batch.read
        self._recorded = False

    def require(self) -> None:
        """Raises as `KafkaRegistry.require_planned` and `WorkerLease.require`, which comes last: it may run out."""
        self._registry.require_planned(self._fetched)
        self._lease.require()

    def require_now(self) -> None:
        """As `WorkerLease.require_now`."""
        self._lease.require_now()

    def require_whole(self) -> None:
        """As `require`. Raises NotWholeError if tasks have not accounted for all, and what `record` raises."""
        self._report(self._read())
        self.require()

    def report_read(self) -> None:
        """For a function, which need not read all, and whose work cannot be told from reading."""
        with suppress(NotWholeError):
            self._report(self._read())

    def _report(self, read: Mapping[TopicPartition, PartsRead]) -> None:
        if read and not self._recorded:
            self._record({partition: each.contents for partition, each in read.items()})
            self._recorded = True


_METRIC: Final = "kzconsumer"


class RangeStream:
    """For one query. Made at `path`, without a batch."""

    def __init__(self, session: SparkSession, path: Path, registry: KafkaRegistry) -> None:
        """Looks up the brokers. Raises as `KafkaRegistry`."""
        path.mkdir(parents=True)
        self._path = path
        self._session = session
        self._kafka = registry.kafka
        self._brokers = registry.brokers()
        self._batches = PublishedBatches(path)
        self._number = -1  # of the last batch
        self._in_rows = is_cluster(session.sparkContext.master)

    def frame(self) -> DataFrame:
        """That of the query."""
        self._session.dataSource.register(RangeSource)
        reader = self._session.readStream.format(NAME).option("path", str(self._path))
        if not self._in_rows:
            return reader.load()
        # Below the frame that destinations and functions get: however they evaluate it, and how often, the accounts of
        # the parts that were read to their ends are in the metric, once each.
        return reader.option(IN_ROWS, True).load().observe(_METRIC, sql.collect_set(ACCOUNT).alias(ACCOUNT))

    def records(self, frame: DataFrame) -> DataFrame:
        """Those of a batch, which the query has passed to foreachBatch as `frame`.

        Here, as the query itself would copy each row once more for it.
        """
        return frame.where(sql.col("offset").isNotNull()).drop(ACCOUNT) if self._in_rows else frame

    def publish(self, ranges: Sequence[BatchRange], rate_limit: int | None) -> None:
        """Let the query find these ranges. `rate_limit`: bytes per second of all its tasks."""
        epochs = {part.range.topic_partition: part.leader_epoch for part in ranges}
        spans = [span for part in ranges for span in part.spans]
        tasks = self._session.sparkContext.defaultParallelism
        parts = tuple(split(spans, tasks, {part.range.topic_partition: part.weight for part in ranges}))
        rejected = {part.range.topic_partition: part.left_out for part in ranges}
        batch = PublishedBatch(
            parts=parts,
            tasks=min(tasks, len(parts)),
            epochs=tuple(epochs[part.topic_partition] for part in parts),
            left_out=tuple(_within(part, rejected[part.topic_partition]) for part in parts),
            brokers=self._brokers,
            kafka=replace(self._kafka, fetch=replace(self._kafka.fetch, rate_limit=rate_limit)),
        )
        self._number += 1
        self._batches.publish(self._number, batch)

    def accounts(self, query: StreamingQuery) -> list[PartAccount]:
        """What tasks have reported so far of the batch that the query runs.

        The file has the account of each part that a task has read to its end. Those in rows count once their task has
        ended well, before Spark takes its job to be done.
        """
        if not self._in_rows:
            file = self._batches.accounts(self._number)
            return part_accounts(file.read_text().splitlines() if file.exists() else [])
        # Spark reports metrics of a batch when it is over, which is too late: they are asked of its execution.
        metrics = query._jsq.streamingQuery().lastExecution().observedMetrics()
        texts = metrics.apply(_METRIC).getSeq(0).mkString("\n")
        return part_accounts(str(texts).splitlines())


def _within(part: OffsetRange, spans: Spans) -> Spans:
    return tuple(span for span in spans if span[0] < part.until and span[1] > part.first)
