"""A Spark session in the test's own process, with the sink's settings."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from kzconsumer_spark.daemon.worker_process import worker_environment
from kzconsumer_spark.worker.spark_session import build_session, start_java
from kzconsumer_spark.worker_protocol.messages import StartWorker, ToFiles


def into_parquet(
    scratch: Path, path: str = "", conf: Mapping[str, str] | None = None, master: str = "local[2]"
) -> StartWorker:
    """The configuration of a worker that writes Parquet."""
    return StartWorker(
        scratch=str(scratch),
        master=master,
        conf=dict(conf or {}),
        destination=ToFiles(path=path, format="parquet"),
        next_batch=1,
        safe_until=0.0,
    )


@contextmanager
def spark_session(
    scratch: Path, conf: Mapping[str, str] | None = None, master: str = "local[2]"
) -> Iterator[SparkSession]:
    """About ten seconds. The JVM ends with the block, which PySpark alone would not ensure."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in worker_environment({}, master).items():
            patch.setenv(name, value)
        scratch.mkdir(parents=True, exist_ok=True)
        start = into_parquet(scratch, conf=conf, master=master)
        session = build_session(start, start_java(start))
        session.sparkContext.setLogLevel("ERROR")
        gateway = session.sparkContext._gateway
        assert gateway is not None
        try:
            yield session
        finally:
            session.stop()
            gateway.shutdown()
            gateway.proc.terminate()
            assert gateway.proc.wait() == 128 + signal.SIGTERM
            gateway.proc.stdin.close()
            SparkContext._gateway = SparkContext._jvm = None
