"""The sink `parquet`: each range of records becomes one Parquet file, exactly once.

The columns and types are those of Spark's own Kafka source.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar, cast

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kzconsumer.clock import now
from kzconsumer.errors import SinkError
from kzconsumer.model import RangeIdentity
from kzconsumer.records.columns import one_number
from kzconsumer.settings.table_reader import read_table, reader
from kzconsumer.sinks.interface import Batch, Holdings, RangeData, RecordsRejectedError, Rejected, SinkContext
from kzconsumer_files.holdings import Held, files
from kzconsumer_files.object_store import StoreUnavailable, is_object_store, require_usable_options, without_store
from kzconsumer_files.publication import SetAside, StagedRange
from kzconsumer_files.range_names import NotOurs, TargetOwner, data_file
from kzconsumer_files.target_writer import (
    TargetDestination,
    TargetWriter,
    WriteResult,
    read_place,
    require_usable,
    unusable,
)

Codec: TypeAlias = Literal["snappy", "none", "gzip", "zstd"]

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_COLUMNS: Final[Mapping[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}
FIRST_MS: Final = -62_135_596_800_000
"""0001-01-01T00:00:00Z. Before it and after the year 9999 Spark's Python, Delta, Iceberg and pandas have no times."""
LAST_MS: Final = 253_402_300_799_999
UNSTORABLE: Final = "unstorable"
"""The class of errors of records with a value that their destination cannot hold."""
NO_TIME: Final = "timestamp is outside of the years 1 to 9999: it is to be in milliseconds"
_WITH_STATISTICS: Final = ["topic", "partition", "offset", "timestamp", "timestampType"]
_ROW_GROUP_BYTES: Final = 128 << 20  # as Spark's


def unstorable(ranges: Iterable[RangeData]) -> list[Rejected]:
    """The records whose timestamp is no time that readers of files and tables have.

    Brokers store any number of milliseconds, also one of nanoseconds. Arrow computes; a record costs some nanoseconds.
    """
    return [
        Rejected(part.topic, part.partition, offset, NO_TIME, UNSTORABLE)
        for part in ranges
        for batch in part.batches
        for offset in without_time(batch)
    ]


def without_time(records: pa.RecordBatch) -> list[int]:
    """The offsets of records that `unstorable` rejects, of a batch of `kzconsumer.records.columns.SCHEMA`."""
    times = records.column("timestamp").cast(pa.int64())
    bounds = pc.min_max(times)
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    if least is None or (least >= FIRST_MS and greatest <= LAST_MS):
        return []
    first, last = (one_number(each, pa.int64()) for each in (FIRST_MS, LAST_MS))
    outside = pc.or_(pc.less(times, first), pc.greater(times, last))
    places = cast("pa.Array[Any]", pc.indices_nonzero(outside))  # null is none of them
    return cast("list[int]", records.column("offset").take(places).to_pylist())


def record_table(part: RangeData) -> pa.Table:
    """The records of a range; columns that are null throughout are left out.

    As in Spark, a record without headers has null headers, not an empty array.
    """
    return _columns(pa.Table.from_batches(part.batches))


def spark_columns(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records of `kzconsumer.records.columns.SCHEMA` with all columns and the types of Spark."""
    return _whole(_columns(pa.Table.from_batches([records]))).combine_chunks().to_batches()[0]


def row_of_nulls() -> pa.RecordBatch:
    """One row in the columns of `spark_columns`."""
    return pa.record_batch({name: pa.nulls(1, kind) for name, kind in _COLUMNS.items()})


def _columns(table: pa.Table) -> pa.Table:
    columns: dict[str, pa.ChunkedArray[Any]] = {
        "key": table.column("key"),
        "value": table.column("value"),
        "topic": table.column("topic"),
        "partition": table.column("partition"),
        "offset": table.column("offset"),
        "timestamp": table.column("timestamp"),
        "timestampType": table.column("timestamp_type").cast(pa.int32()),
    }
    headers = table.column("headers")
    present = pc.greater(pc.list_value_length(headers), one_number(0, pa.int32()))
    if pc.any(present).as_py():
        columns["headers"] = pc.if_else(present, headers, pa.nulls(1, headers.type)[0]).cast(_HEADERS)
    return pa.table({name: column for name, column in columns.items() if column.null_count < table.num_rows})


def write_records(records: pa.Table, path: Path, codec: Codec) -> None:
    """Write a table of `record_table` with all columns, those that were left out being null. Raises OSError."""
    table = _whole(records)
    pq.write_table(
        table,
        path,
        row_group_size=max(1, table.num_rows * _ROW_GROUP_BYTES // max(table.nbytes, 1)),
        compression=codec,
        write_statistics=_WITH_STATISTICS,
        store_schema=False,
    )


def _whole(records: pa.Table) -> pa.Table:
    """With the columns that were left out, null throughout."""
    return pa.table(
        {
            name: records.column(name).cast(kind) if name in records.column_names else pa.nulls(records.num_rows, kind)
            for name, kind in _COLUMNS.items()
        }
    )


_WAIT_SECONDS = 0.02
_Answer = TypeVar("_Answer")


class ParquetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`[sink.options]` of the sink `parquet`."""

    # a directory on a local or mounted file system, or a URI (s3://bucket/orders), of this group alone; made if missing
    path: Annotated[str, msgspec.Meta(min_length=1), reader(read_place)]
    # for a URI: how to reach the store, with the names of obstore (aws_endpoint, aws_region); credentials elsewhere
    store_options: Mapping[str, str] = {}
    # how pages are compressed
    codec: Codec = "snappy"

    def __post_init__(self) -> None:
        require_usable_options(self.path, self.store_options)


class ParquetSink:
    """Publishes each range as a file named after it; of two members that write one range the first wins.

    Entering raises ConfigError for a directory that belongs to another group or cannot be used, SinkError for a store
    that does not answer. Other methods raise SinkError, `write` also for a range that is set aside.
    """

    remembers = True

    def __init__(self, options: Mapping[str, object], context: SinkContext) -> None:
        read = read_table(options, ParquetOptions, "[sink.options]")
        self._path = read.path
        self._codec: Codec = read.codec
        self._owner = TargetOwner(cluster=context.cluster, group=context.group, sink="parquet")
        self.target = TargetDestination(self._path, "parquet", store_options=read.store_options)
        self._safe_until = context.safe_until
        self._writer: TargetWriter | None = None

    def __repr__(self) -> str:
        return f"ParquetSink({self._path})"

    def check(self) -> None:
        """See `kzconsumer.sinks.interface.Checkable`."""
        require_usable(self._path)

    async def __aenter__(self) -> Self:
        try:
            self._writer = await anyio.to_thread.run_sync(self._open)
        except NotOurs as error:
            raise unusable(str(error)) from error
        except StoreUnavailable as error:
            raise SinkError(f"{self.destination}: {error}") from error
        except OSError as error:
            raise unusable(f"{error.filename or self._path} cannot be used: {error.strerror or error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(writer.close)

    @property
    def destination(self) -> str:
        """As errors name it."""
        return f"parquet files in {self._path}"

    @property
    def fingerprint(self) -> str:
        """See `TargetDestination`."""
        return self.target.fingerprint

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        """Those that the ledger has as published."""
        return await self._in_thread(partial(self.target.has, ranges), abandon=True)

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """See `kzconsumer.sinks.interface.SettingAside`."""
        return await self._in_thread(partial(self.target.set_aside, part, records), abandon=True)

    async def write(self, batch: Batch) -> None:
        if rejected := unstorable(batch.ranges):
            raise RecordsRejectedError(rejected)
        if batch.ranges:
            await self._in_thread(partial(self._write, batch))

    @staticmethod
    def elsewhere(options: Mapping[str, object], into: str) -> Mapping[str, object]:
        """See `kzconsumer.sinks.interface.Redirectable`."""
        kept = options if is_object_store(into) else without_store(options)
        return {**kept, "path": into}

    async def holdings(self, *, count_rows: bool) -> Holdings:
        """See `kzconsumer.sinks.interface.Accountable`. If the sink is entered, decisions are carried out first."""
        ranges, strays, leftovers = await self._in_thread(partial(self._held, count_rows))
        return Holdings(
            destination=self.destination,
            fingerprint=self.fingerprint,
            ranges=ranges,
            strays=strays,
            leftovers=leftovers,
        )

    async def _in_thread(self, call: Callable[[], _Answer], *, abandon: bool = False) -> _Answer:
        try:
            return await anyio.to_thread.run_sync(call, abandon_on_cancel=abandon)
        except (OSError, pa.ArrowException, NotOurs, SetAside) as error:
            raise SinkError(f"{self.destination}: {error}") from error

    def _open(self) -> TargetWriter:
        self.target.mark(self._owner)
        return TargetWriter(self.target.target, self._require_lease)

    def _write(self, batch: Batch) -> WriteResult:
        assert self._writer is not None
        return self._writer.write(batch.ranges, self._stage, batch.follows)

    def _stage(self, ranges: Sequence[RangeData], output: Path) -> list[StagedRange]:
        output.mkdir()
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return list(threads.map(partial(self._stage_range, output), ranges))

    def _stage_range(self, output: Path, part: RangeData) -> StagedRange:
        file = output / data_file(part)
        write_records(record_table(part), file, self._codec)
        return StagedRange(part, part.records, 0, [(file, file.name)])

    def _require_lease(self) -> None:
        """Return while the lease holds; wait for its renewal, or for the member to cancel the write."""
        anyio.from_thread.check_cancelled()
        while now() >= self._safe_until():
            time.sleep(_WAIT_SECONDS)
            anyio.from_thread.check_cancelled()

    def _held(self, count_rows: bool) -> Held:
        self.target.find(self._owner)
        if self._writer is not None:
            self.target.target.finish()
        return files(self.target.target, "parquet", count_rows)
