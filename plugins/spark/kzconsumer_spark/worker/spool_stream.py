"""The batches of a query that reads the spool."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from kzconsumer_spark.pipe.locations import location
from kzconsumer_spark.pipe.messages import SpooledRange
from kzconsumer_spark.ranges.spool_reader import SCHEMA
from kzconsumer_spark.worker.stream_directory import SOURCE_OPTIONS, StreamDirectory


class SpoolStream:
    """For one query. Made at `path`, without a batch."""

    def __init__(self, session: SparkSession, path: Path) -> None:
        self._session = session
        self._directory = StreamDirectory(path)

    def frame(self) -> DataFrame:
        path = location(self._directory.path)
        return self._session.readStream.schema(SCHEMA).options(**SOURCE_OPTIONS).parquet(path)

    def publish(self, ranges: Iterable[SpooledRange]) -> None:
        """Let the query find the files of these ranges."""
        self._directory.publish([part.file for part in ranges if part.file is not None])
