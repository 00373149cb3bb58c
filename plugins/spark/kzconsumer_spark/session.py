"""The Spark session of the worker.

Owns no state. The worker calls `build_session` once, which starts the JVM.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from kzconsumer_spark.cluster import is_cluster, local_address
from kzconsumer_spark.control_stream import ControlStream
from kzconsumer_spark.messages import Start
from kzconsumer_spark.settings import settings


def build_session(start: Start) -> SparkSession:
    """About ten seconds."""
    builder = SparkSession.builder
    configured = settings(start)
    if is_cluster(start.master):
        configured.setdefault("spark.driver.host", local_address(start.master))
    for key, value in configured.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    session.dataSource.register(ControlStream)
    return session
