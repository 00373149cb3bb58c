"""The batches of a query that reads the spool: a directory without data, only a log that lists the files of each batch.

It is the log that Spark's file sink keeps of its output and that Spark's file source reads in place of a listing. An
entry appears by one rename, so Spark sees all files of a batch or none, wherever they are; each poll of the query reads
one small local file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
from pyspark.sql import DataFrame, SparkSession

from kzconsumer_spark.pipe.locations import location
from kzconsumer_spark.pipe.messages import SpooledRange
from kzconsumer_spark.ranges.spool_reader import SCHEMA

#: Files need not be in the directory itself.
_SOURCE_OPTIONS: Final = {"recursiveFileLookup": "true"}
_VERSION: Final = "v1"
_UNRESERVED: Final = "/:+@=,;!$&'()*"


class _File(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A file as Spark's log has it. Spark asks the file system for its size when it reads it."""

    path: str
    modification_time: int
    size: int = 0
    is_dir: bool = False
    block_replication: int = 1
    block_size: int = 0
    action: str = "add"


class SpoolStream:
    """For one query. Made at `path`, without a batch."""

    def __init__(self, session: SparkSession, path: Path) -> None:
        self._session = session
        self._directory = StreamDirectory(path)

    def frame(self) -> DataFrame:
        path = location(self._directory.path)
        return self._session.readStream.schema(SCHEMA).options(**_SOURCE_OPTIONS).parquet(path)

    def publish(self, ranges: Iterable[SpooledRange]) -> None:
        """Let the query find the files of these ranges."""
        self._directory.publish([part.file for part in ranges if part.file is not None])


class StreamDirectory:
    """Made at `path`, without a batch. Needs `pipe.spark_settings.STREAM` in the session."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = path / "_spark_metadata"
        self._log.mkdir(parents=True)
        self._numbers = count()
        self.publish(())

    def publish(self, files: Sequence[str]) -> None:
        """Let the query find these files, and no longer those before: paths, or URIs as Spark names them."""
        number = next(self._numbers)
        # The source ignores files that are much older than the latest one: what counts here is the order.
        entries = [msgspec.json.encode(_File(path=_uri(file), modification_time=number)) for file in files]
        staged = self.path / "next"
        staged.write_bytes(b"\n".join([_VERSION.encode(), *entries]))
        staged.rename(self._log / f"{number}.compact")
        # A poll may have listed the previous one and be about to read it.
        (self._log / f"{number - 2}.compact").unlink(missing_ok=True)


def _uri(file: str) -> str:
    return Path(file).as_uri() if file.startswith("/") else quote(file, safe=_UNRESERVED)
