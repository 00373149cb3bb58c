"""The Spark session of the worker.

Owns no state. The worker calls `build_session` once, which starts the JVM.
"""

from __future__ import annotations

from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from kzconsumer.redaction import redacted
from kzconsumer_spark.cluster import is_cluster, local_address
from kzconsumer_spark.messages import Start
from kzconsumer_spark.settings import settings

_CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"


def build_session(start: Start) -> SparkSession:
    """About ten seconds."""
    configured = settings(start)
    if is_cluster(start.master):
        configured.setdefault("spark.driver.host", local_address(start.master))
    # PySpark starts Java with what it is given as arguments, for all the machine to read: secrets are told behind it.
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
