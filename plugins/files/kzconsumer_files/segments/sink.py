"""The sink `segments`: archives what was fetched, undecoded, in segment files of Kafka's own format.

When `write` returns, the whole batch is on disk. Records that are written again after a crash are recognised and left
out.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
from msgspec import Meta

from kzconsumer.clock import now
from kzconsumer.durable_files import create_whole, make_directory
from kzconsumer.errors import SinkError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition, Wants
from kzconsumer.settings.quantities import ByteSize, PositiveDuration, reader
from kzconsumer.settings.tables import read_table
from kzconsumer.sinks.interface import Batch, RangeData, SinkContext
from kzconsumer_files.options import read_directory, require_writable, unusable
from kzconsumer_files.segments.archive import PartitionArchive
from kzconsumer_files.segments.layout import Limits

log = get_logger("kzconsumer.sink")

OWNER = "archive-owner.json"
_LARGEST_SEGMENT = 2**31 - 1  # brokers count the bytes of a segment in an int32
_WAIT_SECONDS = 0.02
_LONG_WAIT = 5.0
_CONCURRENT = 16


class SegmentsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`[sink.options]` of the sink `segments`."""

    # a directory; each partition gets one of its own in it
    path: Annotated[str, Meta(min_length=1), reader(read_directory)]
    # a segment is closed before it would become larger
    segment_bytes: Annotated[ByteSize, Meta(ge=1, le=_LARGEST_SEGMENT)] = 1 << 30
    # ... and when a record is that much younger than the segment's first (by the records' timestamps)
    segment_time: PositiveDuration | None = None
    # members write to different disks: a partition's archive is then spread over them, and gaps are not a fault
    spread: bool = False


class Owner(msgspec.Struct, frozen=True):
    """Who may write into a target directory."""

    cluster: str
    group: str

    def __str__(self) -> str:
        return f"group {self.group} of cluster {self.cluster}"


class _LeaseInDoubt(Exception):
    """Others may own our partitions: nothing is written until we know."""


class SegmentsSink:
    """Appends each batch's ranges to their partitions' segments.

    Entering raises ConfigError for a directory that is not this group's or cannot be used; `write` raises SinkError,
    with the partition's name, for what cannot be written or does not follow what is there.
    """

    wants: Wants = "raw"

    def __init__(self, options: Mapping[str, object], context: SinkContext) -> None:
        read = read_table(options, SegmentsOptions, "[sink.options]")
        self._path = Path(read.path)
        self._limits = Limits(read.segment_bytes, None if read.segment_time is None else int(read.segment_time * 1000))
        self._spread = read.spread
        self._owner = Owner(context.cluster, context.group)
        self._safe_until = context.safe_until
        self._writer = uuid.uuid4().hex
        self._archives: dict[TopicPartition, PartitionArchive] = {}
        self._limiter = anyio.CapacityLimiter(_CONCURRENT)

    def __repr__(self) -> str:
        return f"SegmentsSink({self._path})"

    async def __aenter__(self) -> Self:
        try:
            await anyio.to_thread.run_sync(self._claim)
        except OSError as error:
            raise unusable(f"{self._path} cannot be used: {error.strerror}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def write(self, batch: Batch) -> None:
        # Concurrently: a partition waits for the disk, and disks take many writes at once.
        failures: list[SinkError] = []

        async def write(part: RangeData) -> None:
            try:
                await anyio.to_thread.run_sync(self._write, part, limiter=self._limiter)
            except SinkError as error:
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            for part in batch.ranges:
                tasks.start_soon(write, part)
        for failure in failures:
            raise failure

    def check(self) -> None:
        """Find what a start would stumble over, and touch nothing. Raises ConfigError."""
        try:
            if require_writable(self._path) and self._marked():
                self._refuse_others()
        except OSError as error:
            raise unusable(f"{self._path} cannot be used: {error.strerror}") from error

    def _claim(self) -> None:
        """Mark the directory as our group's."""
        make_directory(self._path)
        if not self._marked():
            create_whole(self._path / OWNER, msgspec.json.format(msgspec.json.encode(self._owner)))
        self._refuse_others()

    def _marked(self) -> bool:
        """Whether the directory is marked as an archive. Raises ConfigError if it is not, and not empty."""
        marker = self._path / OWNER
        if marker.exists():
            return True
        foreign = next((each for each in sorted(self._path.iterdir()) if not each.name.startswith(".")), None)
        if foreign is not None and not marker.exists():
            raise unusable(f"{self._path} is not empty ({foreign.name}) and not marked as an archive of any group")
        return foreign is not None

    def _refuse_others(self) -> None:
        marker, ours = self._path / OWNER, self._owner
        try:
            found = msgspec.json.decode(marker.read_bytes(), type=Owner)
        except msgspec.DecodeError as error:
            raise unusable(f"{marker} cannot be read: {error}") from error
        if found.group != ours.group or found.cluster != (ours.cluster or found.cluster):
            this = str(ours) if ours.cluster else f"group {ours.group}"
            raise unusable(f"{self._path} is the archive of {found}; this is {this}: give another path")

    def _write(self, part: RangeData) -> None:
        try:
            self._write_range(part)
        except OSError as error:
            raise SinkError(f"segments: {part.topic_partition}: {error}") from error

    def _write_range(self, part: RangeData) -> None:
        where = part.topic_partition
        archive = self._archives.get(where)
        if archive is None:
            archive = PartitionArchive(self._path / str(where), self._writer, self._limits, spread=self._spread)
            self._archives[where] = archive
        began: float | None = now()

        def wait() -> None:
            nonlocal began
            anyio.from_thread.check_cancelled()
            if began is not None and now() - began > _LONG_WAIT:
                log.warning(
                    "another process writes this partition: waiting", topic=part.topic, partition=part.partition
                )
                began = None
            time.sleep(_WAIT_SECONDS)

        while True:
            try:
                with archive.locked(wait):
                    self._guard()  # with the lock: no other process has the segment open now
                    archive.append(part, self._guard)
                return
            except _LeaseInDoubt:
                while now() >= self._safe_until():
                    anyio.from_thread.check_cancelled()
                    time.sleep(_WAIT_SECONDS)

    def _guard(self) -> None:
        anyio.from_thread.check_cancelled()
        if now() >= self._safe_until():
            raise _LeaseInDoubt
