"""The source of the sink's streaming query: a Python data source that delivers exactly published ranges.

Spark's driver has a process of its own for `RangeStreamReader`, which waits for the next published batch and makes
input partitions of it; `read` runs in the executors.

A start of Spark has half a dozen Python processes that import this module, to learn the source's name and schema, or to
pass its reader on. So whatever takes long to import is imported where it is used.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

NAME: Final = "kzconsumer-planned-ranges"
IN_ROWS: Final = "accounts_in_rows"
"""The option for tasks on other machines than the driver: their accounts are rows."""
_WAIT_SECONDS: Final = 0.5  # a query that is stopped waits for `latestOffset`
_LOOK_SECONDS: Final = 0.01


class RangeStreamReader(DataSourceStreamReader):
    """An offset is the number of a batch; those of a query go up by one, from 0 on."""

    def __init__(self, path: Path, *, accounts_in_rows: bool = False) -> None:
        self._path = path
        self._accounts_in_rows = accounts_in_rows
        self._latest = -1

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": self._latest}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # without a limit
        from kzconsumer_spark.executors.task_parts import PublishedBatches

        batches = PublishedBatches(self._path)
        until = time.monotonic() + _WAIT_SECONDS
        while not batches.has(self._latest + 1) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        self._latest += batches.has(self._latest + 1)
        return {"batch": self._latest}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from kzconsumer_spark.executors.task_parts import PublishedBatches

        batches, number = PublishedBatches(self._path), end["batch"]
        return batches.read(number).range_parts(None if self._accounts_in_rows else batches.accounts(number))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from kzconsumer_spark.executors.fetching import PartReading, fetched
        from kzconsumer_spark.executors.task_parts import RangePart

        assert isinstance(partition, RangePart)
        reading = PartReading(partition.part, partition.left_out)
        records = fetched([partition.part], partition.access, partition.epochs, reading=reading)
        if partition.accounts is None:
            return reading.with_account(records)
        return reading.noting_account(records, partition.accounts)


class RangeSource(DataSource):
    """Its options are shown on Spark's pages: `path`, the directory of the published batches, and `IN_ROWS`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        from kzconsumer_spark.ranges.batch import ACCOUNT, SCHEMA

        return f"{SCHEMA}, {ACCOUNT} string" if self._accounts_in_rows else SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return RangeStreamReader(Path(self.options["path"]), accounts_in_rows=self._accounts_in_rows)

    @property
    def _accounts_in_rows(self) -> bool:
        return IN_ROWS in self.options
