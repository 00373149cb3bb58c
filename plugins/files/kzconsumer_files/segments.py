"""The sink `segments`: archives what was fetched, undecoded, in segment files of Kafka's own format.

When `write` returns, the whole batch is on disk. Records that are written again after a crash are recognised and left
out.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
from msgspec import Meta

from kzconsumer.clock import now
from kzconsumer.durable_files import create_whole, make_directory, sync_directory, write_again
from kzconsumer.errors import SinkError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition, Wants
from kzconsumer.process_lock import ProcessLock
from kzconsumer.settings.tables import ByteSize, PositiveDuration, read_table, reader
from kzconsumer.sinks.interface import Batch, RangeData, SinkContext
from kzconsumer_files.segment_layout import (
    ArchiveOverlap,
    Begin,
    Recovered,
    Segment,
    SegmentLimits,
    Step,
    plan,
    recover,
    segment_base,
    segment_name,
    start_of,
)
from kzconsumer_files.writer import read_directory, require_writable, unusable

# One partition's directory of an archive: its lock, its recovery, and appending to its last segment. The lock is held
# for one write at a time: the next writer finds either all of it or a tail to cut off. Calls block. What has been made
# durable is never changed.
#
# The lock file names the last writer, and how much of the last segment is on disk. A writer that opens the segment
# writes what follows once more: the sync of its predecessor may have failed, after which another one proves nothing
# (`kzconsumer.durable_files`). The file itself is not synced. If a power failure takes it back, more is written again;
# the content of the page cache, which it is about, is gone then.

log = get_logger("kzconsumer.sink")

LOCK, IDENTITY = ".lock", "archive.json"


class Identity(msgspec.Struct, frozen=True):
    """The owner of a directory's records; `incarnation` distinguishes a topic from a deleted one of the same name."""

    topic: str
    partition: int
    incarnation: int


class PartitionArchive:
    """`append` under `locked`, each time."""

    def __init__(self, directory: Path, writer: str, limits: SegmentLimits, *, spread: bool) -> None:
        """`writer` is a name that no other object has; `spread`: other directories may hold what is missing here."""
        self._directory = directory
        self._writer = writer.encode()
        self._limits = limits
        self._spread = spread
        self._identity: Identity | None = None  # None: what is there has to be found out
        self._last: Segment | None = None
        self._lock = -1
        self._on_disk: tuple[int, int] | None = None  # the base of the last segment, and bytes that are on disk

    @contextmanager
    def locked(self, wait: Callable[[], None]) -> Iterator[None]:
        """Be the only writer of this directory; `wait` is called while another one is, and may raise."""
        self._directory.mkdir(parents=True, exist_ok=True)
        # Locked for one write, not for as long as the partition is owned. A zombie that was suspended within a write
        # holds the lock, and nobody can take it away; its successor waits for it. Whichever of the two writes first,
        # the other appends the same bytes and finds them there, so the order does not matter.
        while (lock := ProcessLock.take(self._directory / LOCK, mode=0o644)) is None:
            wait()
        descriptor = lock.descriptor
        try:
            # If the last writer is another one, what we know may be outdated.
            writer, *numbers = os.pread(descriptor, 1000, 0).split() or [b""]
            if writer != self._writer:
                self._identity = None
                self._on_disk = _mark(numbers)
                self._sign(descriptor)
            self._lock = descriptor
            yield
        finally:
            self._lock = -1
            lock.release()

    def _sign(self, lock: int) -> None:
        text = b" ".join((self._writer, *(b"%020d" % number for number in self._on_disk or ())))
        os.pwrite(lock, text, 0)
        os.ftruncate(lock, len(text))

    def append(self, part: RangeData, guard: Callable[[], None]) -> None:
        """Make a range durable. `guard` is called before each piece and may raise.

        Raises SinkError where the range cannot follow what is there, OSError, and what `guard` raises; after any of
        them the next call reads the directory again.
        """
        identity, self._identity = self._identity, None
        wanted = Identity(part.topic, part.partition, part.incarnation)
        if identity != wanted or not self._is_as_left():
            before = self._last if identity == wanted else None
            self._last = self._opened(wanted, part, guard)
            if before is not None and self._last is None:
                raise SinkError(
                    f"segments: {part.topic_partition}: {self._directory} ended at {before.end}, and has no segments"
                    " now: put back what is missing, or move the directory away"
                )
        else:
            self._refuse_gap(part, self._last)
        try:
            steps, last = plan(self._last, part.first, part.until, part.raw or (), self._limits)
        except ArchiveOverlap as overlap:
            raise SinkError(
                f"segments: {part.topic_partition}: {overlap}, where {self._directory} ends: "
                "the log has been rewritten; move the directory away to begin a new one"
            ) from None
        self._carry_out(steps, guard)
        self._note(last)
        self._last = last
        self._identity = wanted

    def _note(self, last: Segment | None) -> None:
        """All of the last segment is on disk."""
        self._on_disk = None if last is None else (last.base, last.size)
        self._sign(self._lock)

    def _is_as_left(self) -> bool:
        """False if the directory was restored from a copy: what is there has to be found out, and synced."""
        if self._last is None:
            return True
        try:
            found = (self._directory / segment_name(self._last.base)).stat().st_size == self._last.size
        except FileNotFoundError:
            found = False
        if not found:
            self._on_disk = None
        return found

    def _refuse_gap(self, part: RangeData, last: Segment | None) -> None:
        start = start_of(part.first, part.raw or ())
        if last is None or start <= last.end:
            return
        if not self._spread:
            raise SinkError(
                f"segments: {part.topic_partition}: the stored offset is {part.first}, but {self._directory} ends at "
                f"{last.end}: put back what is missing, set the offset to {last.end}, or move the directory away; if "
                "members of this group write to different disks, set spread = true"
            )
        log.warning(
            "gap in the archive, which other members may have",
            topic=part.topic,
            partition=part.partition,
            first=last.end,
            until=start,
        )

    def _opened(self, wanted: Identity, part: RangeData, guard: Callable[[], None]) -> Segment | None:
        """The last segment, recovered; None when there is none yet."""
        bases = sorted(base for name in os.listdir(self._directory) if (base := segment_base(name)) is not None)
        marker = self._directory / IDENTITY
        if not marker.exists():
            if bases:
                raise SinkError(f"segments: {self._directory} holds segments but no {IDENTITY}: it is not ours")
            create_whole(marker, msgspec.json.encode(wanted))
        sync_directory(self._directory.parent)
        try:
            found = msgspec.json.decode(marker.read_bytes(), type=Identity)
        except msgspec.DecodeError as error:
            raise SinkError(f"segments: {marker} cannot be read: {error}") from error
        if found != wanted:
            raise SinkError(
                f"segments: {part.topic_partition}: {self._directory} holds an earlier topic of that name, which was "
                "deleted since: move the directory away"
            )
        if not bases:
            return None
        path = self._directory / segment_name(bases[-1])
        with path.open("r+b", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size

            def read(position: int, length: int) -> bytes:
                guard()
                return os.pread(file.fileno(), length, position)

            recovered = recover(read, size, bases[-1])
            self._refuse_gap(part, recovered.segment)  # before anything is cut off
            self._cut(path, file.fileno(), size, recovered)
            base, on_disk = self._on_disk or (-1, 0)
            write_again(file.fileno(), on_disk if base == bases[-1] else 0, guard)
        sync_directory(self._directory)
        return recovered.segment

    @staticmethod
    def _cut(path: Path, descriptor: int, size: int, recovered: Recovered) -> None:
        """Drop what follows the last good entry."""
        if size > recovered.segment.size:
            log.warning(
                "cut off what an interrupted write left",
                segment=str(path),
                kept=recovered.segment.size,
                dropped=size - recovered.segment.size,
                end=recovered.segment.end,
                reason=recovered.fault,
            )
            os.ftruncate(descriptor, recovered.segment.size)

    def _carry_out(self, steps: list[Step], guard: Callable[[], None]) -> None:
        if not steps:
            return
        descriptor = -1
        begun = False
        try:
            if not isinstance(steps[0], Begin):
                assert self._last is not None
                name = segment_name(self._last.base)
                descriptor = os.open(self._directory / name, os.O_WRONLY | os.O_APPEND)
            for step in steps:
                guard()
                if isinstance(step, Begin):
                    if descriptor >= 0:
                        os.fdatasync(descriptor)  # a segment that is followed by another one is whole
                        os.close(descriptor)
                        descriptor = -1  # by the time the next open fails it may be another thread's
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
                    descriptor = os.open(self._directory / segment_name(step.base), flags, 0o644)
                    begun = True
                else:
                    _write_all(descriptor, step, guard)
            os.fdatasync(descriptor)
            if begun:
                sync_directory(self._directory)
        finally:
            if descriptor >= 0:
                os.close(descriptor)


_PIECE = 4 << 20


def _mark(numbers: list[bytes]) -> tuple[int, int] | None:
    """None without one: the writer was of an earlier version, or a power failure took it."""
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 and all(map(bytes.isdigit, numbers)) else None


def _write_all(descriptor: int, data: memoryview, guard: Callable[[], None]) -> None:
    while data:
        data = data[os.write(descriptor, data[:_PIECE]) :]
        if data:
            guard()


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


class ArchiveOwner(msgspec.Struct, frozen=True):
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
        self._limits = SegmentLimits(
            read.segment_bytes, None if read.segment_time is None else int(read.segment_time * 1000)
        )
        self._spread = read.spread
        self._owner = ArchiveOwner(context.cluster, context.group)
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
            found = msgspec.json.decode(marker.read_bytes(), type=ArchiveOwner)
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
