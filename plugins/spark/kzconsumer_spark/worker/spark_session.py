"""The Spark session of a worker process: made with its settings, the JVM's output in a log of its own.

What its errors mean is in `spark_errors`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kzconsumer.display import redacted
from kzconsumer_spark.worker_protocol.messages import StartWorker
from kzconsumer_spark.worker_protocol.spark_settings import is_cluster, local_address, settings

LOG_NAME: Final = "spark.log"


_CLASS_PATH: Final = "spark.driver.extraClassPath"
# With the most classes that a start loads, most first: together seven of ten.
JARS_FIRST: Final = (
    *("spark-catalyst", "scala-library", "spark-core", "scala-reflect", "spark-sql", "log4j-core", "spark-sql-api"),
    *("jackson-databind", "hadoop-client-api"),
)
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
    silence_query_contexts()
    configured = _configured(start)
    SparkContext(gateway=java, conf=SparkConf().setAll(list(configured.items())))
    session = SparkSession.builder.config(map={**configured}).getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    # The default one runs `chmod` or `readlink` several times for each file, and has two files for each batch.
    if _CHECKPOINT_FILES not in configured and (manager := _checkpoint_files(session)) is not None:
        session.conf.set(_CHECKPOINT_FILES, manager)
    return session


def silence_query_contexts() -> None:
    """PySpark prints an error of Java with its traceback, and with the value of the record that could not be cast."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _configured(start: StartWorker) -> dict[str, str]:
    """On YARN, whose address only Hadoop's files have, executors get the name of this machine."""
    configured = settings(start)
    configured[_CLASS_PATH] = with_jars_first(configured.get(_CLASS_PATH), Path(_find_spark_home(), "jars"))
    if start.master == "yarn":
        return configured
    address = local_address(start.master) if is_cluster(start.master) else "127.0.0.1"
    return {"spark.driver.host": address} | configured


def with_jars_first(given: str | None, jars: Path) -> str:
    """The class path to come before all of Spark's `jars`: what was `given`, and the jars most classes are found in.

    Java looks for each class in one jar after the other, and Spark's launcher names 300 of them in no order. With these
    first, a start takes about a tenth less of the processors. Java skips a jar that is named again.
    """
    first = [str(jar) for name in JARS_FIRST for jar in jars.glob(f"{name}[-_][0-9]*.jar")]
    return os.pathsep.join([*([given] if given else []), *first])


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
