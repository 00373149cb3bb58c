"""The Spark session of a worker process: made with its settings, the JVM's output in a log of its own.

Also what errors of Spark and Java mean: in one line, or as a fault of the settings.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PythonException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from kzconsumer.display import redacted
from kzconsumer.errors import ConfigError
from kzconsumer_spark.pipe.messages import StartWorker
from kzconsumer_spark.pipe.spark_settings import is_cluster, local_address, settings

LOG_NAME: Final = "spark.log"


_CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"


def start_java(start: StartWorker) -> JavaGateway:
    """Some seconds. What the JVM and its children print goes to the log."""
    configured = _configured(start)
    # Without it Spark looks up the machine's name, and does not start where the name has no address.
    if (address := configured.get("spark.driver.host")) is not None:
        os.environ.setdefault("SPARK_LOCAL_IP", address)
    # PySpark passes settings to Java as arguments, which every user can read: secrets are set after the start.
    shown = redacted(configured)
    public = [(key, value) for key, value in configured.items() if shown[key] == value]
    log = os.open(Path(start.scratch) / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return launch_gateway(SparkConf().setAll(public), {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    finally:
        os.close(log)


def build_session(start: StartWorker, java: JavaGateway) -> SparkSession:
    """The most of ten seconds."""
    configured = _configured(start)
    SparkContext(gateway=java, conf=SparkConf().setAll(list(configured.items())))
    session = SparkSession.builder.config(map={**configured}).getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    # The default one runs `chmod` or `readlink` several times for each file, and has two files for each batch.
    if _CHECKPOINT_FILES not in configured and (manager := _checkpoint_files(session)) is not None:
        session.conf.set(_CHECKPOINT_FILES, manager)
    return session


def _configured(start: StartWorker) -> dict[str, str]:
    """On YARN, whose address only Hadoop's files have, executors get the name of this machine."""
    if start.master == "yarn":
        return settings(start)
    address = local_address(start.master) if is_cluster(start.master) else "127.0.0.1"
    return {"spark.driver.host": address} | settings(start)


def _checkpoint_files(session: SparkSession) -> str | None:
    """Spark's manager of checkpoint files that starts no processes, by the name it has in this version of Spark."""
    jvm = session.sparkContext._jvm
    assert jvm is not None
    for package in ("checkpointing.", ""):  # since 4.1, and before
        name = f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"
        if jvm.org.apache.spark.util.Utils.classIsLoadable(name):
            return name
    return None


# The two pipes between the daemon and its worker process, as the worker has them.


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the two pipes for ourselves: no child, no print and no JVM can read or write them."""
    commands, events = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(commands, "rb"), os.fdopen(events, "wb")


# Tracebacks of failed batches on standard error, for the author of a function: each once per batch.

# Numbers and generated names change from one attempt to the next: tasks, stages, directories.
_VOLATILE: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}|\d+")


class Tracebacks:
    """Printed to standard error."""

    def __init__(self) -> None:
        self._batch: int | None = None
        self._printed: set[str] = set()

    def report(self, batch: int, error: BaseException) -> None:
        """Unless this batch has failed in this way before."""
        if batch != self._batch:
            self._batch, self._printed = batch, set()
        text = "".join(traceback.format_exception(error))
        same = _VOLATILE.sub("#", text)
        if same not in self._printed:
            self._printed.add(same)
            print(text, end="", file=sys.stderr, flush=True)


# What errors of Spark, Java and a database mean: in one line, of the settings, or of what is in the records.


_NO_JAVA = "JAVA_GATEWAY_EXITED"
# Java 24 removed what older Hadoops, such as that of Spark 4.0, find the user by.
_NEW_JAVA = "getSubject is not supported"
# Messages of Java and Spark about unusable settings. Any other failure may be transient.
_REFUSED = re.compile(
    r"INVALID_CONF_VALUE|ClassNotFoundException|NumberFormatException|Invalid (maximum|initial) heap size"
    r"|Unrecognized (VM )?option|[Nn]ot allowed to specify max heap"
)
# Log messages after which Spark continues, and the lines of an exception that follow one.
_NO_FAILURE = re.compile(r"(\S+ \S+ )?(WARN(ING)?|INFO|DEBUG|TRACE)\b")
_FRAME = re.compile(r"at |\.\.\. ")
_THROWN = 'Exception in thread "main" '
_OF_EXCEPTION = re.compile(r"at |\.\.\. |Caused by: |Suppressed: |[\w.$]+(Exception|Error)(:|$)")


def first_line(error: BaseException) -> str:
    """What an operator needs of an exception in one line: its kind, its text, and the last cause of a Java stack."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(error, PythonException):  # of a task; its traceback ends with what it raised
        lines = lines[-1:]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    said = " ".join([f"{type(error).__name__}: {lines[0] if lines else ''}", *causes[-1:]])
    return said if len(said) <= 1000 else f"{said[:997]}..."


def is_without_java(error: BaseException) -> bool:
    """Whether Java did not start: all that is known is what it has printed."""
    return _NO_JAVA in str(error)


def fault_of_settings(error: BaseException, start: StartWorker) -> str | None:
    """What is wrong with the settings, if that is why Spark did not start; another start would not change it."""
    if isinstance(error, ConfigError):
        return str(error)
    if _NEW_JAVA in str(error):
        return f"JAVA_HOME: this Java is newer than Spark {pyspark.__version__} supports: use Java 17 or 21"
    said = _failures(_java_said(start)) if is_without_java(error) else [first_line(error)]
    found = next((line for line in said if _REFUSED.search(line)), None)
    return f"[sink.options] conf: {found[:800]}" if found else None


def reason_of(error: BaseException, start: StartWorker) -> str:
    """The error; for a JVM that did not start, the exception or the end of its output, which is all that is known."""
    if not is_without_java(error):
        return first_line(error)
    lines = [line for line in _java_said(start) if not _FRAME.match(line)]
    thrown = [line.removeprefix(_THROWN) for line in lines if line.startswith(_THROWN)][-1:]
    said = " / ".join(thrown or lines[-3:])
    return f"Java ended before Spark was up: {said[:800]}" if said else first_line(error)


def _java_said(start: StartWorker) -> list[str]:
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
