"""Which errors of Spark, of Java's driver and of PostgreSQL say that a record is at fault; why Java ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg import errors

from kzconsumer_spark.worker import spark_errors
from kzconsumer_spark.worker.spark_errors import end_of_java, first_line, reason_of, refuses_content
from kzconsumer_spark.worker.spark_session import LOG_NAME
from kzconsumer_spark.worker.worker_main import end, has_stopped
from kzconsumer_spark.worker_protocol.messages import Event, Failed, StartWorker, ToFiles, encode

# By PostgreSQL's appendix A: a value too long, out of range, U+0000, an index row that is too large, a RAISE.
RECORDS = ("22001", "22003", "22007", "22021", "22P02", "22P05", "54000", "54001", "P0001")
CONSTRAINTS = ("23502", "23503", "23505", "23514", "23P01", "44000")
# Connection, transaction, deadlock, full disk, memory, locks, a shutdown, a replica, an I/O error, a broken index.
OUTAGES = ("08006", "40001", "40P01", "53100", "53200", "53300", "55P03", "57014", "57P01", "25006", "58030", "XX002")
# Permissions, no such table or column, a wrong type, a login, no such database, a feature, a parameter's value.
SETTINGS = ("42501", "42P01", "42703", "42804", "28P01", "3D000", "0A000", "22023", "54011", "54023")


class _Throwable:
    """As py4j shows one of Java: any name is a method, which fails at the call if there is none."""

    def __init__(self, cause: _Throwable | None = None, **states: str) -> None:
        self._cause = cause
        self._states = states

    def __getattr__(self, name: str) -> object:
        def call() -> str:
            if name not in self._states:
                raise AttributeError(name)
            return self._states[name]

        return call

    def getCause(self) -> _Throwable | None:
        return self._cause


class _JavaError(Exception):
    def __init__(self, throwable: _Throwable) -> None:
        self.java_exception = throwable


def _published(state: str) -> BaseException:
    """As a sink has it: an error of one line, caused by psycopg's."""
    error = OSError("PostgreSQL: ...")
    error.__cause__ = errors.lookup(state)()
    return error


def _inserted(state: str) -> BaseException:
    """Of a task of Spark, by Java's driver."""
    return _JavaError(_Throwable(_Throwable(getSQLState=state), getSqlState="XXKST"))


@pytest.mark.parametrize("state", RECORDS)
def test_a_value_that_the_database_refuses_is_of_the_record(state: str) -> None:
    assert refuses_content(_published(state))
    assert refuses_content(_inserted(state))


@pytest.mark.parametrize("state", CONSTRAINTS)
def test_constraints_are_of_the_record_when_it_is_published(state: str) -> None:
    assert refuses_content(_published(state))
    assert not refuses_content(_inserted(state)), "the staging table has none but ours"


@pytest.mark.parametrize("state", [*OUTAGES, *SETTINGS])
def test_outages_and_settings_are_not_of_the_record(state: str) -> None:
    assert not refuses_content(_published(state))
    assert not refuses_content(_inserted(state))


def test_spark_says_of_a_malformed_record_what_the_database_says_of_a_parameter() -> None:
    assert refuses_content(_JavaError(_Throwable(getSqlState="22023")))
    assert not refuses_content(_JavaError(_Throwable(getSqlState="42K0D")))
    assert not refuses_content(OSError("no SQLSTATE"))


HEAP = "java.lang.OutOfMemoryError: Java heap space"


@pytest.mark.parametrize(
    ("program", "log", "reason"),
    [
        (
            "",
            f"ERROR Executor: Exception in task 0.0\n{HEAP}\n\tat java.base/x\nCaused by: x.Other: y",
            f"Java ended: {HEAP}: ",
        ),
        (
            "input()",
            f"Caused by: {HEAP}",
            f'Java ended: {HEAP}: raise "spark.driver.memory" in [sink.options.conf], or ',
        ),
        ("import os; os.kill(os.getpid(), 9)", "WARN x", "Java was killed by signal 9: "),
        ("raise SystemExit(3)", "", "Java ended with status 3"),
        ("input()", "WARN x", ""),
    ],
    ids=["no memory", "no memory, still ending", "killed", "ended", "goes on"],
)
def test_why_java_ended(program: str, log: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its log, which is deleted with the worker, or by its status."""
    monkeypatch.setattr(spark_errors, "_ENDS", 0.05 if program == "input()" else 10.0)
    start = _started(tmp_path, "local", log)
    with subprocess.Popen([sys.executable, "-ISc", program], stdin=subprocess.PIPE) as java:
        said = end_of_java(java, start)
    assert said is None if not reason else said is not None and said.startswith(reason), said


def _started(folder: Path, master: str, log: str) -> StartWorker:
    (folder / LOG_NAME).write_text(log)
    return StartWorker(
        scratch=str(folder), master=master, conf={}, destination=ToFiles(path="/d"), next_batch=1, safe_until=0.0
    )


def test_a_python_process_that_had_no_time_to_start_says_what_to_do() -> None:
    error = RuntimeError("Job aborted: Python worker failed to connect back.\n" + "Caused by: " + "x" * 2000)
    assert "let fewer tasks run at a time there, by spark.executor.cores or the number in local[n])" in first_line(
        error
    )
    assert "fewer tasks" not in first_line(RuntimeError("Job aborted"))


def test_a_master_that_does_not_answer_is_named(tmp_path: Path) -> None:
    """In place of the stopped context, which is what Spark 4.3 raises then."""
    error = RuntimeError("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.")
    said = "Application has been killed. Reason: All masters are unresponsive! Giving up."
    start = _started(
        tmp_path, "spark://h:7077", f"26/11/28 20:30:29 ERROR StandaloneSchedulerBackend: {said}\nWARN x\n"
    )
    assert reason_of(error, start) == "[sink.options] master: spark://h:7077: All masters are unresponsive! Giving up."
    assert reason_of(error, _started(tmp_path, "spark://h:7077", "WARN x")) == f"RuntimeError: {error}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"WARN TaskSetManager: Lost task 0.0 in stage 1.0 (TID 1) (h executor 1): {HEAP}", "Java ended with status 3"),
        (f"Caused by: {HEAP}", "Java ended with status 3"),
        (HEAP, f"Java ended: {HEAP}: raise "),
        (f'Exception in thread "dag-scheduler-event-loop" {HEAP}', f"Java ended: {HEAP}: raise "),
    ],
)
def test_what_an_executor_of_a_cluster_lacked_is_not_why_java_ended(line: str, reason: str, tmp_path: Path) -> None:
    """Its batch has failed, and was written by the next attempt."""
    (tmp_path / LOG_NAME).write_text(line)
    to = ToFiles(path="/d")
    start = StartWorker(
        scratch=str(tmp_path), master="spark://h:7077", conf={}, destination=to, next_batch=1, safe_until=0.0
    )
    with subprocess.Popen([sys.executable, "-ISc", "raise SystemExit(3)"]) as java:
        assert (end_of_java(java, start) or "").startswith(reason)


def test_a_spark_that_a_function_has_stopped_takes_no_more_work() -> None:
    """PySpark forgets its context then, so that there is nobody to ask."""
    stopped: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    assert has_stopped(stopped)


def test_a_worker_ends_though_its_daemon_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is not heard, and threads of Java's connections would keep it."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    read, write = os.pipe()
    os.close(read)

    def say(event: Event) -> None:
        os.write(write, encode(event))

    with pytest.raises(BrokenPipeError):
        end(say, Failed(number=None, error="x"))
    os.close(write)
    assert ended == [1]
