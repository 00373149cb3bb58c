"""The worker process: holds the Spark session for one daemon, runs the batches it gets, and ends with the daemon.

Started by `daemon.worker_process` in a session of its own, with the command pipe as standard input and the event pipe
as standard output. Output of user code goes to the daemon's standard error, that of the JVM to `spark.log` in the
scratch directory. Retries are the daemon's.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NoReturn, Protocol

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from kzconsumer.errors import ConfigError
from kzconsumer.redaction import redacted
from kzconsumer.sinks.function_reference import load_function
from kzconsumer_files.writer import Written
from kzconsumer_spark.columns.shaping import Shaping
from kzconsumer_spark.function.destination import FunctionDestination
from kzconsumer_spark.function.step_recorder import StepRecorder
from kzconsumer_spark.pipe.cluster import is_cluster, local_address
from kzconsumer_spark.pipe.messages import (
    Command,
    Event,
    Failed,
    Heartbeat,
    Ready,
    RunBatch,
    SpooledRange,
    Start,
    StepRecorded,
    Stop,
    ToDelta,
    ToFiles,
    ToFunction,
    ToJdbc,
    decode_command,
    encode,
)
from kzconsumer_spark.pipe.spark_settings import settings
from kzconsumer_spark.ranges import plain_parquet
from kzconsumer_spark.ranges.lease import Lease
from kzconsumer_spark.ranges.spool_reader import SCHEMA
from kzconsumer_spark.worker.files_destination import FilesDestination
from kzconsumer_spark.worker.query import RangeQuery, first_line
from kzconsumer_spark.worker.tracebacks import Tracebacks

LOG_NAME = "spark.log"
_NO_JAVA = "JAVA_GATEWAY_EXITED"
# Messages of Java and Spark about unusable settings. Any other failure may be transient.
_REFUSED = re.compile(
    r"INVALID_CONF_VALUE|ClassNotFoundException|NumberFormatException|Invalid (maximum|initial) heap size"
    r"|Unrecognized (VM )?option|[Nn]ot allowed to specify max heap"
)
# Log messages after which Spark continues, and the lines of an exception that follow one.
_NO_FAILURE = re.compile(r"(\S+ \S+ )?(WARN(ING)?|INFO|DEBUG|TRACE)\b")
_OF_EXCEPTION = re.compile(r"at |\.\.\. |Caused by: |Suppressed: |[\w.$]+(Exception|Error)(:|$)")


class Destination(Protocol):
    """Writes batches. An exception fails the batch; nothing is written of ranges without records."""

    def write(self, number: int, ranges: Sequence[SpooledRange]) -> Written: ...

    def close(self) -> None: ...


def _log_to_standard_error() -> None:
    """Our own lines only: PySpark would repeat each traceback of a function."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("kzconsumer")
    log.addHandler(handler)
    log.propagate = False


def main() -> None:
    commands, events = take_pipes()
    _log_to_standard_error()
    start = decode_command(commands.readline())
    assert isinstance(start, Start)
    Path(start.scratch).mkdir()
    lease = Lease(start.safe_until)
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    steps = StepRecorder(lambda event: _say(events, event))
    threading.Thread(target=_listen, args=(commands, lease, inbox, steps), daemon=True).start()
    try:
        session = start_session(start)
        shaping = Shaping(session, start.columns, SCHEMA)
        destination = _destination(start, session, lease, shaping, steps)
        tracebacks = Tracebacks()
        query = RangeQuery(session, _query_directory(start), start.next_batch - 1, tracebacks)
        _warm(start, session, query)
    except BaseException as error:
        refused = fault_of_settings(error, start)
        if refused is None and _NO_JAVA not in str(error):  # the daemon logs these in one line
            traceback.print_exc()
        _say(events, Failed(number=None, error=refused or reason_of(error, start), settings=refused is not None))
        _exit()
    _say(events, Ready(application=session.sparkContext.applicationId))
    failed = False

    def write(number: int, ranges: Sequence[SpooledRange]) -> Written:
        lease.require()
        try:
            return destination.write(number, ranges)
        finally:
            shaping.release()

    try:
        while isinstance(batch := inbox.get(), RunBatch):
            if failed or query.next_batch != batch.number:
                query.stop()
                query = RangeQuery(session, _query_directory(start), batch.number, tracebacks)
            steps.begin(batch)
            outcome = query.run(batch, write)
            failed = isinstance(outcome, Failed)
            _say(events, outcome)
        query.stop()
        destination.close()
        shaping.close()
        session.stop()
    except BaseException:
        traceback.print_exc()
        _exit()


def _exit() -> NoReturn:
    """Leave at once: with the JVM gone or hanging, its threads would keep this process running."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def fault_of_settings(error: BaseException, start: Start) -> str | None:
    """What is wrong with the settings, if that is why Spark did not start; another start would not change it."""
    if isinstance(error, ConfigError):
        return str(error)
    said = _failures(_java_said(start)) if _NO_JAVA in str(error) else [first_line(error)]
    found = next((line for line in said if _REFUSED.search(line)), None)
    return f"[sink.options] conf: {found[:800]}" if found else None


def reason_of(error: BaseException, start: Start) -> str:
    """The error; for a JVM that did not start, the end of its output, which is all that is known."""
    lines = _java_said(start) if _NO_JAVA in str(error) else []
    return f"Java ended before Spark was up: {' / '.join(lines[-3:])[:800]}" if lines else first_line(error)


def _java_said(start: Start) -> list[str]:
    log = Path(start.scratch, LOG_NAME)
    text = log.read_text(errors="replace") if log.exists() else ""
    return [line.strip() for line in text.splitlines() if line.strip()]


def _failures(lines: Sequence[str]) -> Iterator[str]:
    """The log without warnings: a Java that ended for want of memory may have warned of a class before."""
    passed = False
    for line in lines:
        passed = _NO_FAILURE.match(line) is not None or (passed and _OF_EXCEPTION.match(line) is not None)
        if not passed:
            yield line


def _query_directory(start: Start) -> Path:
    """A new query begins with a checkpoint of its own: the daemon, not Spark, knows what is done."""
    return Path(start.scratch, f"query-{time.monotonic_ns()}")


def _warm(start: Start, session: SparkSession, query: RangeQuery) -> None:
    """Run the road once without records: the first use of everything takes Spark seconds, later ones milliseconds."""
    nothing = SpooledRange(topic="", partition=0, first=0, until=0, incarnation=0, epoch=0, records=0, file=None)
    outcome = query.run(RunBatch(number=query.next_batch, ranges=(nothing,)), lambda number, ranges: Written(0, 0, 0))
    if isinstance(outcome, Failed):
        raise RuntimeError(outcome.error)
    place = f"{start.spool}/{Path(start.scratch).name}" if is_cluster(start.master) else start.scratch
    first, second = (f"{place}/{name}" for name in ("warm-1", "warm-2"))
    session.range(1).selectExpr("cast(id as string) as value").write.parquet(first)
    session.read.schema("value string").parquet(first).write.parquet(second)
    if is_cluster(start.master) and session.read.schema("value string").parquet(second).count() != 1:
        raise ConfigError([f"[sink.options] spool: what executors of {start.master} write to {place} is not there"])


def _destination(
    start: Start, session: SparkSession, lease: Lease, shaping: Shaping, steps: StepRecorder
) -> Destination:
    match start.destination:
        case ToFiles() as files:
            return FilesDestination(session, files, lease, shaping, plain_parquet.codec(files, start.conf))
        case ToDelta() as delta:
            from kzconsumer_spark.delta.destination import DeltaDestination  # deltalake is an extra

            return DeltaDestination(session, delta, lease, shaping, plain_parquet.codec(delta.files, start.conf))
        case ToJdbc() as jdbc:
            from kzconsumer_spark.jdbc.destination import JdbcDestination  # psycopg is an extra

            return JdbcDestination(session, jdbc, lease, shaping)
        case ToFunction() as called:
            function = load_function(called.function, "[sink.options] function")
            return FunctionDestination(session, function, start.scope, lease, shaping, steps)


def _listen(commands: BinaryIO, lease: Lease, inbox: queue.SimpleQueue[Command], steps: StepRecorder) -> None:
    """Take commands until the pipe ends, which is the daemon's end, however it came: then everything here ends too."""
    for line in commands:
        command = decode_command(line)
        if isinstance(command, Heartbeat):
            lease.renew(command.safe_until)
        elif isinstance(command, StepRecorded):
            steps.answered(command)
        else:
            inbox.put(command)
            if isinstance(command, Stop):
                return
    # The JVM is in our process group, Python processes of Spark end with the JVM.
    os.killpg(0, signal.SIGKILL)


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the two pipes for ourselves: no child, no print and no JVM can read or write them."""
    commands, events = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(commands, "rb"), os.fdopen(events, "wb")


def start_session(start: Start) -> SparkSession:
    """Build the session with the JVM's output going to the log; ours goes where it went."""
    kept = os.dup(2)
    log = os.open(Path(start.scratch) / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        return build_session(start)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.dup2(kept, 2)
        os.close(kept)


def _say(events: BinaryIO, event: Event) -> None:
    events.write(encode(event))
    events.flush()


_CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"


def build_session(start: Start) -> SparkSession:
    """About ten seconds."""
    configured = settings(start)
    address = local_address(start.master) if is_cluster(start.master) else "127.0.0.1"
    configured.setdefault("spark.driver.host", address)
    # Without it Spark looks up the machine's name, and does not start where the name has no address.
    os.environ.setdefault("SPARK_LOCAL_IP", address)
    # PySpark passes settings to Java as arguments, which every user can read: secrets are set after the start.
    shown = redacted(configured)
    public = [(key, value) for key, value in configured.items() if shown[key] == value]
    gateway = launch_gateway(SparkConf().setAll(public))  # type: ignore[no-untyped-call]
    SparkContext(gateway=gateway, conf=SparkConf().setAll(list(configured.items())))
    session = SparkSession.builder.config(map={**configured}).getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    # The default one runs `chmod` or `readlink` several times for each file, and has two files for each batch.
    if _CHECKPOINT_FILES not in configured and (manager := _checkpoint_files(session)) is not None:
        session.conf.set(_CHECKPOINT_FILES, manager)
    return session


def _checkpoint_files(session: SparkSession) -> str | None:
    """Spark's manager of checkpoint files that starts no processes, by the name it has in this version of Spark."""
    jvm = session.sparkContext._jvm
    assert jvm is not None
    for package in ("checkpointing.", ""):  # since 4.1, and before
        name = f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"
        if jvm.org.apache.spark.util.Utils.classIsLoadable(name):
            return name
    return None


if __name__ == "__main__":
    main()
