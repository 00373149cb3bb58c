"""Spark's own Kafka source into Parquet, which users would take otherwise: `python -m tests.bench.spark_source`.

Arguments: a scratch directory, and jars separated by commas. Runs one Spark session with our worker's settings. Each
line of standard input is a `Read`; it was executed, by one streaming query with the trigger available-now, when a line
is returned. Started by `tests.bench.spark_sides`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import BinaryIO

import msgspec
from pyspark.sql import SparkSession

from kzconsumer_spark.worker.spark_session import take_pipes
from kzconsumer_spark.worker_protocol.messages import StartWorker, ToFiles
from kzconsumer_spark.worker_protocol.spark_settings import settings

#: The set of jars of Spark's own source.
JARS = "spark-kafka-source"


class Read(msgspec.Struct, frozen=True):
    """Everything committed to a topic from these offsets on, in one batch, into the directory `path`."""

    bootstrap: str
    topic: str
    offsets: dict[str, int]
    path: str
    checkpoint: str


def main() -> None:
    scratch, jars = sys.argv[1:]
    commands, answers = take_pipes()
    session = session_in(scratch, {"spark.jars": jars})
    answer(answers)
    for line in commands:
        _run(session, msgspec.json.decode(line, type=Read))
        answer(answers)
    session.stop()


def _run(session: SparkSession, read: Read) -> None:
    query = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", read.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", read.topic)
        .option("startingOffsets", msgspec.json.encode({read.topic: read.offsets}).decode())
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", read.checkpoint)
        .trigger(availableNow=True)
        .start(read.path)
    )
    query.awaitTermination()


def session_in(scratch: str, conf: Mapping[str, str]) -> SparkSession:
    """With our worker's settings for files: whatever of them helps the other source as well, it has."""
    to = ToFiles(path="")
    start = StartWorker(
        scratch=scratch, master="local[2]", conf=dict(conf), destination=to, next_batch=0, safe_until=0.0
    )
    session = SparkSession.builder.config(map={**settings(start)}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def answer(answers: BinaryIO) -> None:
    answers.write(b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
