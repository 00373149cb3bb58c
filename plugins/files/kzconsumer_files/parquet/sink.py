"""The sink `parquet`: each range of records becomes one Parquet file, exactly once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import pyarrow as pa

from kzconsumer.clock import now
from kzconsumer.errors import SinkError
from kzconsumer.model import RangeIdentity
from kzconsumer.settings.quantities import reader
from kzconsumer.settings.tables import read_table
from kzconsumer.sinks.interface import Batch, RangeData, RecordsRejectedError, SinkContext
from kzconsumer.sinks.reports import Holdings
from kzconsumer_files.destination import TargetDestination
from kzconsumer_files.holdings import Held, files
from kzconsumer_files.names import NotOurs, Owner, data_file
from kzconsumer_files.object_store import StoreUnavailable, is_object_store, require_usable_options, without_store
from kzconsumer_files.options import read_place, require_usable, unusable
from kzconsumer_files.parquet.records import Codec, record_table, unstorable, write_records
from kzconsumer_files.publication import KeptAside, StagedRange
from kzconsumer_files.writer import TargetWriter, Written

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
        self._owner = Owner(cluster=context.cluster, group=context.group, sink="parquet")
        self._destination = TargetDestination(self._path, "parquet", store_options=read.store_options)
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
        return self._destination.fingerprint

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        """Those that the ledger has as published."""
        return await self._in_thread(partial(self._destination.has, ranges), abandon=True)

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """See `kzconsumer.sinks.interface.SettingAside`."""
        return await self._in_thread(partial(self._destination.set_aside, part, records), abandon=True)

    async def write(self, batch: Batch) -> None:
        if rejected := unstorable(batch.ranges):
            raise RecordsRejectedError(rejected)
        if batch.ranges:
            await self._in_thread(partial(self._write, batch))

    @staticmethod
    def elsewhere(options: Mapping[str, object], into: str) -> Mapping[str, object]:
        """See `kzconsumer.sinks.reports.Redirectable`."""
        kept = options if is_object_store(into) else without_store(options)
        return {**kept, "path": into}

    async def holdings(self, *, count_rows: bool) -> Holdings:
        """See `kzconsumer.sinks.reports.Accountable`. If the sink is entered, decisions are carried out first."""
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
        except (OSError, pa.ArrowException, NotOurs, KeptAside) as error:
            raise SinkError(f"{self.destination}: {error}") from error

    def _open(self) -> TargetWriter:
        self._destination.claim(self._owner)
        return TargetWriter(self._destination.target, self._require_lease)

    def _write(self, batch: Batch) -> Written:
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
        self._destination.find(self._owner)
        if self._writer is not None:
            self._destination.target.finish()
        return files(self._destination.target, "parquet", count_rows)
