"""A Spark of another version than the installed one, in a process of its own: it answers SQL with Arrow tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa

from kzconsumer_sandbox.servers.jars import cache_folder
from kzconsumer_spark.daemon.worker_process import worker_environment
from tests.support.jars import fetched

_LOCAL = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "1g"} | {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_PROGRAM = """
import json, os, sys
import pyarrow as pa
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # what Java prints
from pyspark.sql import SparkSession
spark = SparkSession.builder.config(map=json.loads(sys.argv[1])).getOrCreate()
for line in sys.stdin:
    frame = spark.sql(json.loads(line))  # carries out a command
    found = frame.toArrow() if json.loads(line).startswith("SELECT") else pa.table({})
    with pa.ipc.new_stream(answers, found.schema) as stream:
        stream.write_table(found)
    answers.flush()
spark.stop()
"""


def pyspark(version: str) -> Path:
    """The folder of that PySpark in the cache, which is installed there once: 450 MB are downloaded."""
    folder = cache_folder() / f"pyspark-{version}"
    if not folder.exists():
        new = folder.with_suffix(".new")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(new)]
        subprocess.run([*command, f"pyspark=={version}"], check=True)
        new.rename(folder)
    return folder


def table_formats(spark: str) -> str:
    """The jars with which Spark `spark` (such as 4.1) reads Delta and Iceberg tables, for `spark.jars`."""
    folder = fetched(f"table-formats-{spark}")
    return ",".join(str(each) for each in sorted(folder.glob("*.jar")))


class OtherSpark:
    def __init__(self, requests: IO[bytes], answers: Any, log: Path) -> None:
        self._requests = requests
        self._answers = answers
        self._log = log

    def sql(self, statement: str) -> pa.Table:
        """Of a command, which must not begin with SELECT, an empty table."""
        self._requests.write(msgspec.json.encode(statement) + b"\n")
        self._requests.flush()
        try:
            return pa.ipc.open_stream(self._answers).read_all()
        except pa.ArrowInvalid:
            raise AssertionError(f"{statement}:\n{self._log.read_text()[-5000:]}") from None


@contextmanager
def other_spark(version: str, folder: Path, conf: Mapping[str, str]) -> Iterator[OtherSpark]:
    """About ten seconds."""
    folder.mkdir(parents=True)
    environment = worker_environment({})
    environment["PYTHONPATH"] = os.pathsep.join([str(pyspark(version)), environment["PYTHONPATH"]])
    settings = msgspec.json.encode({**_LOCAL, "spark.local.dir": str(folder), **conf}).decode()
    log = folder / "log.txt"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        yield OtherSpark(process.stdin, process.stdout, log)
