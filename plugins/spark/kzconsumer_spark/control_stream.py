"""The Python data source whose rows are the ranges of a batch: what makes Spark call foreachBatch.

Runs in Spark's planning process, beside the worker; owns nothing but its end of the wake-up pipe. The worker puts
`<number>.json` into the control directory and writes a byte into the pipe. A read waits for the next number, so an
idle query costs next to nothing and a batch starts at once. No record ever passes through it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from kzconsumer_spark.messages import RunBatch

NAME = "kzconsumer_ranges"
SCHEMA = (
    "batch bigint, topic string, partition int, first bigint, until bigint,"
    " incarnation bigint, epoch bigint, records bigint, file string"
)
WAKE = "wake"
_WAIT_SECONDS = 2.0  # Also how long a wake-up that got lost can delay a batch


class ControlStream(DataSource):
    """Options: `directory` (control files and the named pipe `wake`), `after` (the number before the first batch)."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return ControlReader(Path(self.options["directory"]), int(self.options["after"]))


class ControlReader(SimpleDataSourceStreamReader):
    """The stream's offset is the number of the last batch; each read hands out at most one batch."""

    def __init__(self, directory: Path, after: int) -> None:
        self._directory = directory
        self._after = after
        self._wake = -1

    def initialOffset(self) -> dict[str, int]:
        return {"batch": self._after}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[Any, ...]], dict[str, int]]:
        following = start["batch"] + 1
        if not self._exists(following):
            self._wait()
            if not self._exists(following):
                return iter(()), start
        end = {"batch": following}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[Any, ...]]:
        rows = []
        for number in range(start["batch"] + 1, end["batch"] + 1):
            batch = msgspec.json.decode(control_file(self._directory, number).read_bytes(), type=RunBatch)
            rows += [(number, *msgspec.structs.astuple(each)) for each in batch.ranges]
        return iter(rows)  # not a generator: Spark copies the iterator

    def _exists(self, number: int) -> bool:
        return control_file(self._directory, number).exists()

    def _wait(self) -> None:
        if self._wake < 0:
            # Opened for writing too: a pipe that nobody has open for writing would poll as ended for ever.
            self._wake = os.open(self._directory / WAKE, os.O_RDWR | os.O_NONBLOCK)
        if select.select([self._wake], [], [], _WAIT_SECONDS)[0]:
            os.read(self._wake, 4096)


def control_file(directory: Path, number: int) -> Path:
    return directory / f"{number}.json"
