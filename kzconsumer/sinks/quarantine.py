"""The quarantine: ranges that the sink cannot write, kept as Parquet files.

A file is on disk before its range is committed. Its name is the range's identity, and it is never replaced.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec
from anyio import CancelScope

from kzconsumer.durable_files import make_directory, publish, staged_name, sync_file
from kzconsumer.errors import (
    SinkError,
)
from kzconsumer.file_names import is_short, named_after
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import QuarantinedRange, RangeData
from kzconsumer.threads import in_thread

METADATA = "kzconsumer.quarantine"
"""Key of a Parquet file's metadata: the sink, the range and the reason, as JSON."""


_FILE: Final = re.compile(r"([^+]+)\+(\d+)\+(-?[0-9a-f]+)\.(\d+)\+(\d{20})\+(\d{20})\.parquet", re.ASCII)


def kept_ranges(directory: Path) -> list[QuarantinedRange]:
    """The ranges in a directory, which need not exist. Raises SinkError if it cannot be read."""
    # Others are passed over: earlier versions had a sink of raw bytes, whose ranges are files with the ending .bin.
    found = []
    try:
        for file in sorted(directory.iterdir()) if directory.exists() else []:
            if match := _FILE.fullmatch(file.name):
                named, partition, incarnation, epoch, first, until = match.groups()
                numbers = int(incarnation, 16), int(epoch), int(first), int(until)
                topic, records = _read(file, named)
                found.append(QuarantinedRange(RangeIdentity(topic, int(partition), *numbers), records))
    except OSError as error:
        raise SinkError(f"[sink] quarantine: {error}") from error
    return found


class RangeQuarantine:
    """One directory of one group's sink, made when it is first needed. Members may share it."""

    def __init__(self, directory: Path, sink: str) -> None:
        self._directory = directory
        self._sink = sink

    async def keep(self, part: RangeData, reason: str, decide: Callable[[], Awaitable[bool]]) -> Path | None:
        """Keep a range's records; returns the file, or None if `decide` refuses.

        `decide` is called when the records are on disk and only lack their final name, so a decision that other members
        see may rely on them. Raises SinkError if the range cannot be kept.
        """
        final = self._directory / _name(part)
        staged = staged_name(final)
        try:
            try:
                await in_thread(self._stage, part, reason, staged)
                if not await decide():
                    return None
                await in_thread(publish, staged, final)
            finally:
                with CancelScope(shield=True):
                    await in_thread(_remove, staged)
        except OSError as error:
            why = f"the sink cannot write it ({reason}), nor can it be quarantined: {error}"
            raise SinkError(f"{part.range}: {why}") from error
        return final

    def _stage(self, part: RangeData, reason: str, staged: Path) -> None:
        make_directory(self._directory)
        about = {"sink": self._sink, "reason": reason, "range": part.range._asdict(), "records": part.records}
        _write_parquet(part, msgspec.json.encode(about), staged)
        sync_file(staged)


def _write_parquet(part: RangeData, about: bytes, file: Path) -> None:
    """Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from kzconsumer.records.columns import SCHEMA

    try:
        table = pa.Table.from_batches(part.batches, SCHEMA)
        pq.write_table(table.replace_schema_metadata({METADATA: about}), file)
    except pa.ArrowException as error:
        raise OSError(str(error)) from error


def _read(file: Path, named: str) -> tuple[str, int]:
    """Topic and number of records; `named` is the topic in the file's name. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(file)
        topic = named
        if is_short(named):
            about = msgspec.json.decode((footer.metadata or {}).get(METADATA.encode(), b""))
            topic = str(about["range"]["topic"])
    except (pa.ArrowException, msgspec.DecodeError, LookupError) as error:
        raise OSError(f"{file.name}: {error}") from error
    return topic, int(footer.num_rows)


def _remove(staged: Path) -> None:
    with contextlib.suppress(OSError):
        staged.unlink()


def _name(part: RangeData) -> str:
    """The range's identity; topics have no `+`."""
    line = f"{part.partition}+{part.incarnation:x}.{part.epoch}+{part.first:020d}+{part.until:020d}"
    return named_after(part.topic, lambda topic: f"{topic}+{line}.parquet")
