"""Streaming queries of `GroupSource`, whose rows are files by batch; also a program that runs one.

`python -m tests.support.source_query FOLDER ZOOKEEPER NAME HELD [OPTION=VALUE ...]` hangs in batch HELD, once its file
is there. Without options a batch has up to 600 records.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from kzconsumer.model import OffsetRange
from kzconsumer_spark import GroupSource
from tests.support.processes import exists, wait_until
from tests.support.spark_session import spark_session

LIMIT = 120
"""In seconds."""


class Written:
    """A sink that is exactly once within a checkpoint: a file for each batch, by its number."""

    def __init__(self, folder: Path, before: Callable[[int], None] = lambda number: None) -> None:
        """`before` is called in each batch, with its rows written."""
        self._folder = folder / "out"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._before = before

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = frame.select("topic", "partition", "offset", sql.col("value").cast("string")).collect()
        staged = self._folder / "next"
        staged.write_text(json.dumps([list(row) for row in rows]))
        staged.rename(self._file(number))
        self._before(number)

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.json"

    def rows(self, number: int) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in json.loads(self._file(number).read_text())]

    def ranges(self, number: int) -> set[OffsetRange]:
        """Of a batch of consecutive offsets."""
        found: dict[tuple[str, int], list[int]] = {}
        for topic, partition, offset, _ in self.rows(number):
            found.setdefault((topic, partition), []).append(offset)
        return {OffsetRange(*at, min(offsets), max(offsets) + 1) for at, offsets in found.items()}

    @property
    def batches(self) -> int:
        """Their number."""
        return len(list(self._folder.glob("*.json")))

    @property
    def all(self) -> list[tuple[Any, ...]]:
        """(topic, partition, offset, value), sorted."""
        return sorted(row for file in self._folder.glob("*.json") for row in self.rows(int(file.stem)))


def source(session: SparkSession, connect: str, name: str, **options: str) -> DataFrame:
    """Of the topic `name`, by the group of that name."""
    session.dataSource.register(GroupSource)
    base = {"zookeeper.connect": connect, "group.id": name, "topics": name}
    return session.readStream.format("kzconsumer").options(**({} if "config" in options else base), **options).load()


def start(frame: DataFrame, folder: Path, into: Callable[[DataFrame, int], None], **trigger: Any) -> StreamingQuery:
    """Returns when the source has been started."""
    written = frame.writeStream.foreachBatch(into).option("checkpointLocation", str(folder / "checkpoint"))
    while True:
        query = (written.trigger(**trigger) if trigger else written).start()
        wait_until(lambda: not str(query.status["message"]).startswith("Initializing"), LIMIT)  # noqa: B023
        if not starved(query.exception()):
            return query
        wait_until(lambda: not reader_processes(frame.sparkSession), LIMIT)  # it still tries to start


def starved(error: Exception | None) -> bool:
    """Whether a Python process did not start within the ten seconds that Spark gives it."""
    return "Python worker failed to connect back" in str(error)


def run_to_the_end(frame: DataFrame, folder: Path, into: Callable[[DataFrame, int], None]) -> None:
    """What is available now."""
    query = start(frame, folder, into, availableNow=True)
    try:
        assert query.awaitTermination(LIMIT), query.status
    finally:
        query.stop()


def reader_processes(session: SparkSession) -> list[int]:
    """The driver's Python process of each source that is read."""
    gateway = session.sparkContext._gateway
    assert gateway is not None
    module = "pyspark.sql.streaming.python_streaming_source_runner"
    pids: list[int] = []
    for file in Path(f"/proc/{gateway.proc.pid}/task").glob("*/children"):
        with suppress(FileNotFoundError):  # the thread has ended
            pids += map(int, file.read_text().split())
    return [pid for pid in pids if exists(pid) and module in Path(f"/proc/{pid}/cmdline").read_text()]


def main() -> None:
    folder, (connect, name, held, *given) = Path(sys.argv[1]), sys.argv[2:]
    options = dict(each.split("=", 1) for each in given) or {"maxRecordsPerBatch": "600"}

    def hang(number: int) -> None:
        while number == int(held):
            time.sleep(1)

    with spark_session(folder / "scratch") as session:
        query = start(source(session, connect, name, **options), folder, Written(folder, hang))
        assert not wait_until(lambda: not query.isActive, 10 * LIMIT)


if __name__ == "__main__":
    main()
