"""Ranges as Parquet files that Spark reads cheaply.

Uncompressed and PLAIN: a spool file is written once and read once, most often on one machine. It is never synced.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import anyio.to_thread
import msgspec
import pyarrow.parquet as pq
from pyarrow import fs

from kzconsumer.clock import now
from kzconsumer.sinks.interface import RangeData
from kzconsumer_files.parquet import record_table
from kzconsumer_spark.pipe.messages import SpooledRange

# Where spool files are: a directory that this process and Spark see, or a URI in an object store.
#
# For an object store both sides use the same settings: those of Spark's Hadoop client in `conf`.

_URI: Final = re.compile(r"(\w+)://.+")
_SCHEMES: Final = ("s3a", "gs", "abfss", "hdfs")
_S3A: Final = "spark.hadoop.fs.s3a."


class SpoolPlace(NamedTuple):
    """`path` is as `filesystem` names it, `uri` as Spark does."""

    filesystem: fs.FileSystem
    path: str
    uri: str

    @classmethod
    def in_directory(cls, directory: Path) -> SpoolPlace:
        """On a file system that is mounted; a directory by the same path for Spark."""
        return cls(fs.LocalFileSystem(), str(directory), str(directory))

    @classmethod
    def in_object_store(cls, uri: str, conf: Mapping[str, str]) -> SpoolPlace:
        """A place of our own below `uri`, made at once. Raises OSError, ValueError where that cannot be done.

        Files of a killed process stay there: another process cannot tell whether their owner is alive.
        """
        filesystem, path = _opened(uri.rstrip("/"), conf)
        place = cls(filesystem, path, uri.rstrip("/")).below(f"kzconsumer-spark-{uuid.uuid4().hex}")
        place.make()
        return place

    def below(self, name: str) -> SpoolPlace:
        return SpoolPlace(self.filesystem, f"{self.path}/{name}", f"{self.uri}/{name}")

    def make(self) -> None:
        """Raises OSError."""
        self.filesystem.create_dir(self.path)

    def remove(self) -> None:
        """With all that is in it; what cannot be removed stays."""
        with suppress(OSError):
            self.filesystem.delete_dir(self.path)


def is_spool_store(spool: str) -> bool:
    """Whether it is a URI. Raises ValueError for an unsupported scheme."""
    found = _URI.fullmatch(spool)
    if found is not None and found[1] not in _SCHEMES:
        raise ValueError(f"is not a directory, nor a URI with {', '.join(_SCHEMES)}")
    return found is not None


def _opened(uri: str, conf: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    if not uri.startswith("s3a://"):
        return fs.FileSystem.from_uri(uri)
    said = {key.removeprefix(_S3A): value for key, value in conf.items() if key.startswith(_S3A)}
    scheme, _, endpoint = said.get("endpoint", "").rpartition("://")
    plain = said.get("connection.ssl.enabled") == "false"
    # What is not said both sides look for where every client of AWS does.
    options: dict[str, Any] = {
        "access_key": said.get("access.key"),
        "secret_key": said.get("secret.key"),
        "session_token": said.get("session.token"),
        "region": said.get("endpoint.region"),
        "endpoint_override": endpoint or None,
        "scheme": scheme or ("http" if plain else "https"),
    }
    return fs.S3FileSystem(**options), uri.removeprefix("s3a://")


# Constant in a file: as one dictionary entry they cost nothing to write or read.
_CONSTANT = ["topic", "partition", "timestampType"]
_ROW_GROUP_BYTES = 64 << 20  # bounds what the JVM holds of one task


def write_spool(place: SpoolPlace, ranges: Sequence[RangeData]) -> tuple[SpooledRange, ...]:
    """One file for each range that has records. Raises OSError."""
    # The name of a topic may begin with _ or a dot: Spark ignores such files.
    return tuple(_write_range(place.below(f"{number}.parquet"), part) for number, part in enumerate(ranges))


def unspooled(part: RangeData) -> SpooledRange:
    """The range without a file, with the spans that executors are to fetch."""
    return SpooledRange(
        topic=part.topic,
        partition=part.partition,
        first=part.first,
        until=part.until,
        incarnation=part.incarnation,
        epoch=part.epoch,
        records=part.records,
        file=None,
        spans=part.spans,
        leader_epoch=part.leader_epoch,
        left_out=part.left_out,
    )


def _write_range(file: SpoolPlace, part: RangeData) -> SpooledRange:
    spooled = unspooled(part)
    if not spooled.records:
        return spooled
    table = record_table(part)
    pq.write_table(
        table,
        file.path,
        filesystem=file.filesystem,
        row_group_size=max(1, table.num_rows * _ROW_GROUP_BYTES // max(table.nbytes, 1)),
        compression="none",
        use_dictionary=[name for name in _CONSTANT if name in table.column_names],  # type: ignore[arg-type]
        write_statistics=False,
        store_schema=False,
    )
    return msgspec.structs.replace(spooled, file=file.uri)


# The spool files of the current batch and of the next one.
#
# Those of the next batch are written ahead and taken by its `write`, or removed if it never comes.


class Spooled:
    """One batch's files, in a place of their own: a range whose claim was lost may be in the next batch too."""

    def __init__(self, place: SpoolPlace, files: tuple[SpooledRange, ...], seconds: float) -> None:
        self.place = place
        self.files = files
        self.seconds = seconds


class Spooling:
    """Files below `place`, which exists."""

    def __init__(self, place: SpoolPlace) -> None:
        self._place = place
        self._numbers = count()
        self._ahead: Spooled | None = None

    async def prepare(self, ranges: Sequence[RangeData]) -> None:
        """Write the files of the batch that comes next; those of one that never came are removed. Raises OSError."""
        await self._forget()
        self._ahead = await self._write(ranges)

    async def take(self, ranges: Sequence[RangeData]) -> Spooled:
        """The files of exactly these ranges, written now if they were not prepared. Raises OSError."""
        if self._ahead is not None:
            prepared = {(each.range, each.incarnation, each.epoch, each.records): each for each in self._ahead.files}
            # Not a file with records that were rejected since.
            found = [prepared.get((part.range, part.incarnation, part.epoch, part.records)) for part in ranges]
            files = tuple(each for each in found if each is not None)
            if len(files) == len(ranges):
                ahead, self._ahead = self._ahead, None
                return Spooled(ahead.place, files, ahead.seconds)
            await self._forget()
        return await self._write(ranges)

    async def fresh(self, ranges: Sequence[RangeData]) -> Spooled:
        """Files of these ranges, whatever is prepared. Raises OSError."""
        return await self._write(ranges)

    async def remove(self, spooled: Spooled) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(spooled.place.remove)

    async def _forget(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await self.remove(ahead)

    async def _write(self, ranges: Sequence[RangeData]) -> Spooled:
        began = now()
        place = self._place.below(str(next(self._numbers)))
        try:
            files = await anyio.to_thread.run_sync(_written, place, ranges)
        except BaseException:
            await self.remove(Spooled(place, (), 0.0))
            raise
        return Spooled(place, files, now() - began)


def _written(place: SpoolPlace, ranges: Sequence[RangeData]) -> tuple[SpooledRange, ...]:
    place.make()
    return write_spool(place, ranges)
