"""The worker process: holds the Spark session for one daemon, runs the batches it gets, and ends with the daemon.

`worker.__main__` has started Java. Output of user code goes to the daemon's standard error, that of the JVM to
`spark.log` in the scratch directory. Retries are the daemon's.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO, NoReturn, Protocol, runtime_checkable

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from kzconsumer.errors import ConfigError, KzConsumerError
from kzconsumer.logs.setup import configure
from kzconsumer.plugins import load_function
from kzconsumer_files.target_writer import WriteResult
from kzconsumer_spark.columns.shaping import Shaping
from kzconsumer_spark.executors.planned_topics import KafkaRegistry
from kzconsumer_spark.ranges.batch import SCHEMA, Permission, SparkBatch, WorkerLease
from kzconsumer_spark.ranges.staged_files import RangeFiles
from kzconsumer_spark.worker.query import ProgressReports, RangeQuery, TopicsLease, warm_up
from kzconsumer_spark.worker.range_writers import FilesDestination, FunctionDestination, StepRecorder, TableDestination
from kzconsumer_spark.worker.spark_errors import (
    Tracebacks,
    end_of_java,
    fault_of_settings,
    first_line,
    is_without_java,
    reason_of,
)
from kzconsumer_spark.worker.spark_session import build_session
from kzconsumer_spark.worker_protocol.messages import (
    Command,
    Event,
    Failed,
    LeaseRenewal,
    Ready,
    Recorded,
    RunBatch,
    StartWorker,
    StopWorker,
    ToDelta,
    ToFiles,
    ToFunction,
    ToIceberg,
    ToJdbc,
    decode_command,
    encode,
)
from kzconsumer_spark.worker_protocol.spark_settings import codec_of, is_cluster


class RangeWriter(Protocol):
    """Writes batches. An exception fails the batch; nothing is written of ranges without records."""

    def write(self, batch: SparkBatch) -> WriteResult: ...

    def close(self) -> None: ...


@runtime_checkable
class TryingWriter(RangeWriter, Protocol):
    """Not that of a function, whose work stays: the daemon asks for no trial there."""

    def trial(self, batch: SparkBatch) -> None:
        """As `write`, but nothing is published, and nothing stays."""
        ...


def log_as_the_daemon(level: str, form: str) -> None:
    """Our own lines, and warnings of Python's libraries, only: PySpark would repeat each traceback of a function."""
    before = logging.root.level
    configure(level, form)
    (handler,) = logging.root.handlers
    logging.root.removeHandler(handler)
    logging.root.setLevel(before)
    for name in ("kzconsumer", "py.warnings"):
        log = logging.getLogger(name)
        log.addHandler(handler)
        log.propagate = False


def run(start: StartWorker, commands: BinaryIO, events: BinaryIO, java: Future[JavaGateway]) -> None:
    """Until a command or the end of the daemon ends it."""
    log_as_the_daemon(start.log_level, start.log_format)
    lease = WorkerLease(start.safe_until)
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    say = _speaker(events)
    steps = StepRecorder(say)
    threading.Thread(target=_listen, args=(commands, lease, inbox, steps), daemon=True).start()
    assert start.kafka is not None
    kafka = KafkaRegistry(start.kafka)
    permission = TopicsLease(lease, kafka, steps.record_read)
    stages = _Stages()
    try:
        gateway = java.result()
        stages.end("java")
        session = build_session(start, gateway)
        stages.end("session")
        shaping = Shaping(session, start.columns, SCHEMA)
        destination = writer_for(start, session, permission, shaping, steps)
        stages.end("destination")
        tracebacks = Tracebacks()
        query = RangeQuery(session, query_directory(start), start.next_batch - 1, tracebacks, kafka, start.name)
        warm_up(query)
        stages.end("warm_up")
        session.streams.addListener(ProgressReports(say, warm_up=query.run_id))
    except BaseException as error:
        refused = fault_of_settings(error, start)
        if refused is None and not is_without_java(error):  # the daemon logs these in one line
            traceback.print_exc()
        end(say, Failed(number=None, error=refused or reason_of(error, start), settings=refused is not None))
    context = session.sparkContext
    say(Ready(application=context.applicationId, ui=context.uiWebUrl, stages=stages.seconds))
    failed = False

    def write(batch: SparkBatch) -> WriteResult:
        permission.begin(batch)
        permission.require()
        try:
            shaping.is_trial = batch.is_trial
            if batch.is_trial:
                assert isinstance(destination, TryingWriter)
                destination.trial(batch)
                return WriteResult(0, 0, len(batch.ranges))
            return destination.write(batch)
        finally:
            shaping.release()

    try:
        while isinstance(batch := inbox.get(), RunBatch):
            if failed or not query.takes(batch):
                query.stop()
                try:
                    query = RangeQuery(session, query_directory(start), batch.number, tracebacks, kafka, start.name)
                except KzConsumerError as error:  # of the cluster; Spark is as it was
                    failed = True
                    say(Failed(number=batch.number, error=first_line(error)))
                    continue
            steps.begin(batch)
            outcome = query.run(batch, write)
            failed = isinstance(outcome, Failed)
            if isinstance(outcome, Failed) and has_stopped(session):
                raise SparkStopped(outcome.error)  # it takes no other attempt
            say(outcome)
        query.stop()
        destination.close()
        shaping.close()
        session.stop()
    except BaseException as error:
        if (why := end_of_java(gateway.proc, start)) is None:
            traceback.print_exc()
        end(say, Failed(number=None, error=why or first_line(error)))


class SparkStopped(Exception):
    """Spark stopped during a batch, as it does when Java ends. The text is the error of that batch."""


def has_stopped(session: SparkSession) -> bool:
    """Whether Spark takes no more work: it has stopped, as by a function that calls `stop`, or Java does not answer."""
    context = session.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except Py4JError:
        return True


class _Stages:
    """The parts of a start, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def end(self, stage: str) -> None:
        began, self._since = self._since, time.monotonic()
        self.seconds[stage] = round(self._since - began, 1)


def end(say: Callable[[Event], None], last: Failed) -> NoReturn:
    """Leave at once: with the JVM gone or hanging, its threads would keep this process running.

    Also if the daemon has gone, and nobody hears why.
    """
    try:
        say(last)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(1)


def query_directory(start: StartWorker) -> Path:
    """A new query begins with a checkpoint of its own: the daemon, not Spark, knows what is done."""
    return Path(start.scratch, f"query-{time.monotonic_ns()}")


def writer_for(
    start: StartWorker, session: SparkSession, lease: Permission, shaping: Shaping, steps: StepRecorder
) -> RangeWriter:
    """The destination's writer. Raises ConfigError."""
    on_cluster = is_cluster(start.master)
    match start.destination:
        case ToFiles() as files:
            return FilesDestination(session, files, lease, shaping, on_cluster=on_cluster)
        case ToDelta() as delta:
            from kzconsumer_spark.destinations.delta_table import DeltaTarget  # deltalake is an extra

            as_written = RangeFiles(session, delta.files, shaping)
            return TableDestination(as_written, DeltaTarget(delta), lease, on_cluster=on_cluster)
        case ToIceberg() as iceberg:
            from kzconsumer_spark.destinations.iceberg_table import IcebergTarget  # pyiceberg is an extra

            table = IcebergTarget(iceberg)
            if on_cluster and table.put(table.open()) is not None:
                try:
                    codec_of(iceberg.write_options, start.conf)
                except ValueError as error:
                    raise ConfigError([f"[sink.options] {error}"]) from error
            with_columns = RangeFiles(session, iceberg.files, shaping, keep_columns=True)
            return TableDestination(with_columns, table, lease, on_cluster=on_cluster)
        case ToJdbc() as jdbc:
            from kzconsumer_spark.destinations.jdbc_writer import JdbcDestination  # psycopg is an extra

            return JdbcDestination(session, jdbc, lease, shaping)
        case ToFunction() as called:
            function = load_function(called.function, "[sink.options] function")
            return FunctionDestination(function, start.scope, lease, shaping, steps)


def _listen(commands: BinaryIO, lease: WorkerLease, inbox: queue.SimpleQueue[Command], steps: StepRecorder) -> None:
    """Take commands until the pipe ends, which is the daemon's end, however it came: then everything here ends too."""
    for line in commands:
        command = decode_command(line)
        if isinstance(command, LeaseRenewal):
            lease.renew(command.safe_until)
        elif isinstance(command, Recorded):
            steps.answered(command)
        else:
            inbox.put(command)
            if isinstance(command, StopWorker):
                return
    # The JVM is in our process group, Python processes of Spark end with the JVM.
    os.killpg(0, signal.SIGKILL)


def _speaker(events: BinaryIO) -> Callable[[Event], None]:
    """Sends events, from any thread."""
    one_at_a_time = threading.Lock()

    def say(event: Event) -> None:
        with one_at_a_time:
            events.write(encode(event))
            events.flush()

    return say
