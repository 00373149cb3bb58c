"""What errors of Spark, Java and a database mean: in one line, of the settings, or of what is in the records.

An error is of the records by its SQLSTATE (`refuses_content`). Tracebacks are for the author of a function.
"""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException

from kzconsumer.errors import ConfigError
from kzconsumer_spark.worker.spark_session import LOG_NAME
from kzconsumer_spark.worker_protocol.messages import StartWorker
from kzconsumer_spark.worker_protocol.spark_settings import is_cluster

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
# By a cluster, or because it does not answer. What Spark raises then is that its context is stopped.
_APPLICATION_ENDED = re.compile(r"Application has been killed\. Reason: (.*)")
_OF_EXCEPTION = re.compile(r"at |\.\.\. |Caused by: |Suppressed: |[\w.$]+(Exception|Error)(:|$)")


_NO_MEMORY = re.compile(r"(java\.lang\.OutOfMemoryError: .*)")
# The driver's. What an executor of a cluster lacked stands inside a line, or is a cause: that Java goes on.
_NO_MEMORY_HERE = re.compile(r'(?:Exception in thread ".*" )?(java\.lang\.OutOfMemoryError: .*)')
_MORE_MEMORY = 'raise "spark.driver.memory" in [sink.options.conf], or lower [batch] max_bytes'
_STARVED = "Python worker failed to connect back"
_MORE_TIME = (
    "Spark gives a Python process 10 s to start, and its machine had no processor time left: let fewer tasks run at a"
    " time there, by spark.executor.cores or the number in local[n]"
)
_ENDS = 5.0
"""Seconds in which a Java ends that has stopped Spark; a busy machine may need more."""


def first_line(error: BaseException) -> str:
    """What an operator needs of an exception in one line: its kind, its text, and the last cause of a Java stack."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(error, PythonException):  # of a task; its traceback ends with what it raised
        lines = lines[-1:]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    said = " ".join([f"{type(error).__name__}: {lines[0] if lines else ''}", *causes[-1:]])
    said = said if len(said) <= 1000 else f"{said[:997]}..."
    return f"{said} ({_MORE_TIME})" if _STARVED in text else said


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
    """The error, or why the cluster ended the application.

    For a JVM that did not start, the exception or the end of its output, which is all that is known.
    """
    output = _java_said(start)
    if not is_without_java(error):
        ended = next(filter(None, map(_APPLICATION_ENDED.search, output)), None)
        return f"[sink.options] master: {start.master}: {ended[1]}" if ended else first_line(error)
    lines = [line for line in output if not _FRAME.match(line)]
    thrown = [line.removeprefix(_THROWN) for line in lines if line.startswith(_THROWN)][-1:]
    said = " / ".join(thrown or lines[-3:])
    return f"Java ended before Spark was up: {said[:800]}" if said else first_line(error)


def end_of_java(java: subprocess.Popen[Any], start: StartWorker) -> str | None:
    """Why Java ended, in one line, as its log is deleted with the worker; None if it goes on."""
    status = None
    with suppress(subprocess.TimeoutExpired):
        status = java.wait(_ENDS)
    find = _NO_MEMORY_HERE.fullmatch if is_cluster(start.master) else _NO_MEMORY.search
    for line in reversed(_java_said(start)):
        if found := find(line):
            return f"Java ended: {found[1]}: {_MORE_MEMORY}"
    if status is None:
        return None
    if status < 0:
        return f"Java was killed by signal {-status}: does the kernel's log say that memory ran out?"
    return f"Java ended with status {status}"


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


# Whether a batch failed for what is in its records: by the SQLSTATE of errors of Spark, the driver and the database.
#
# Only what is known to be of the content counts: an outage, a full disk, a missing permission and a fault of the
# settings never do.

# Data exceptions, limits of the program (a value too large for an index), `raise_error` and the RAISE of a trigger.
_CONTENT: Final = ("22", "54", "P0001")
# Faults of the statement or the session in these classes: a parameter with a wrong value, which PostgreSQL also says of
# a time zone that it does not know when Java connects, and too many columns or arguments.
_SETTINGS: Final = frozenset({"22023", "54011", "54023"})
# Of the transaction that publishes: constraints, and the check option of a view. The staging table has a constraint of
# ours, which says nothing of the content.
_CONSTRAINTS: Final = ("23", "44")
_LONGEST_CHAIN: Final = 30


def refuses_content(error: BaseException) -> bool:
    """By the SQLSTATE of Spark, or by PostgreSQL's (appendix A of its manual), through psycopg or Java's driver."""
    return any(state.startswith(_CONTENT) for state in (*_spark_states(error), *_driver_states(error))) or any(
        state.startswith((*_CONTENT, *_CONSTRAINTS)) for state in _database_states(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _database_states(error: BaseException) -> Iterator[str]:
    for each in _chain(error):
        state = getattr(each, "sqlstate", None)  # psycopg's
        if isinstance(state, str) and state not in _SETTINGS:
            yield state


def _spark_states(error: BaseException) -> Iterator[str]:
    return _java_states(error, "getSqlState")  # of SparkThrowable


def _driver_states(error: BaseException) -> Iterator[str]:
    return (state for state in _java_states(error, "getSQLState") if state not in _SETTINGS)  # of java.sql.SQLException


def _java_states(error: BaseException, method: str) -> Iterator[str]:
    for each in _chain(error):
        throwable: Any = getattr(each, "java_exception", None) or getattr(each, "_origin", None)
        for _ in range(_LONGEST_CHAIN):
            if throwable is None:
                break
            with suppress(Exception):  # it has no such method
                state = getattr(throwable, method)()
                if isinstance(state, str):
                    yield state
            throwable = throwable.getCause()


# Tracebacks of failed batches on standard error, for the author of a function: each once per batch.

# Numbers and generated names change from one attempt to the next: tasks, stages, directories.
_VOLATILE: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}|\d+")


class Tracebacks:
    """Printed to standard error."""

    def __init__(self) -> None:
        self._batch: int | None = None
        self._printed: set[str] = set()

    def report(self, batch: int, error: BaseException, *, is_trial: bool = False) -> None:
        """Unless this batch has failed in this way before.

        A search for records that are refused has a trial that fails for each of them. They are logged as rejected.
        """
        if is_trial and refuses_content(error):
            return
        if batch != self._batch:
            self._batch, self._printed = batch, set()
        text = "".join(traceback.format_exception(error))
        same = _VOLATILE.sub("#", text)
        if same not in self._printed:
            self._printed.add(same)
            print(text, end="", file=sys.stderr, flush=True)
