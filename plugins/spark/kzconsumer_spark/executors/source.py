"""The source of the streaming query whose executors fetch: a Python data source that delivers exactly published ranges.

The worker publishes each batch as a small file, which appears by one rename. Spark's driver has a process of its own
for `RangeStreamReader`, which waits for the file and makes input partitions of it; `read` runs in the executors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kzconsumer.model import Broker, OffsetRange
from kzconsumer.registry.offset_list import Spans
from kzconsumer_spark.executors.access import BrokerAccess
from kzconsumer_spark.executors.accounts import COLUMN, PartReading
from kzconsumer_spark.executors.fetching import fetched
from kzconsumer_spark.executors.timestamps import TaskPolicy
from kzconsumer_spark.pipe.kafka import Kafka
from kzconsumer_spark.ranges.spool_reader import SCHEMA

NAME: Final = "kzconsumer-planned-ranges"
_WAIT_SECONDS: Final = 0.5  # a query that is stopped waits for `latestOffset`
_LOOK_SECONDS: Final = 0.01


class PublishedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be fetched, by one task for each part, and how.

    `epochs`: the leader epoch of each part; `left_out`: its records that are rejected.
    """

    parts: tuple[OffsetRange, ...]
    epochs: tuple[int, ...]
    left_out: tuple[Spans, ...]
    brokers: tuple[Broker, ...]
    kafka: Kafka


class PublishedBatches:
    """The directory with the batches of one query. `publish` makes one visible, and removes the one before the last."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def publish(self, number: int, batch: PublishedBatch) -> None:
        staged = self._path / "next"
        staged.write_bytes(msgspec.json.encode(batch))
        staged.rename(self._file(number))
        self._file(number - 2).unlink(missing_ok=True)

    def has(self, number: int) -> bool:
        return self._file(number).exists()

    def read(self, number: int) -> PublishedBatch:
        return msgspec.json.decode(self._file(number).read_bytes(), type=PublishedBatch)

    def _file(self, number: int) -> Path:
        return self._path / f"{number}.json"


class RangePart(InputPartition):
    """What one task fetches. Pickled for it; its text is without secrets."""

    def __init__(
        self,
        part: OffsetRange,
        access: BrokerAccess,
        epoch: int = -1,
        policy: TaskPolicy | None = None,
        left_out: Spans = (),
    ) -> None:
        """`epoch`, `policy`: see `fetched`; `left_out`: see `PartReading`."""
        super().__init__(None)
        self.part = part
        self.access = access
        self.epoch = epoch
        self.policy = policy
        self.left_out = left_out

    def __repr__(self) -> str:
        return f"RangePart({self.part})"


class RangeStreamReader(DataSourceStreamReader):
    """An offset is the number of a batch; those of a query go up by one, from 0 on."""

    def __init__(self, path: Path) -> None:
        self._batches = PublishedBatches(path)
        self._latest = -1

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": self._latest}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # without a limit
        until = time.monotonic() + _WAIT_SECONDS
        while not self._batches.has(self._latest + 1) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        self._latest += self._batches.has(self._latest + 1)
        return {"batch": self._latest}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        batch = self._batches.read(end["batch"])
        access = BrokerAccess(batch.kafka, batch.brokers)
        parts = zip(batch.parts, batch.epochs, batch.left_out, strict=True)
        return [RangePart(part, access, epoch, left_out=left_out) for part, epoch, left_out in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePart)
        reading = PartReading(partition.part, partition.left_out)
        return reading.with_account(fetched(partition.part, partition.access, partition.epoch, reading=reading))


class RangeSource(DataSource):
    """Its only option is shown on Spark's pages: `path`, the directory of the published batches."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return f"{SCHEMA}, {COLUMN} string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return RangeStreamReader(Path(self.options["path"]))
