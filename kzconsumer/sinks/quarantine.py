"""The quarantine for ranges that the sink cannot write: `[sink] on_batch_failure = "quarantine"`.

A file is on disk before its range is committed. Its name is the range's identity, and it is never replaced.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec
from anyio import CancelScope, to_thread

from kzconsumer.durable_files import make_directory, publish, staged_name, sync_file
from kzconsumer.errors import SinkError
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import RangeData
from kzconsumer.sinks.reports import KeptRange

METADATA = "kzconsumer.quarantine"
"""Key of a Parquet file's metadata: the sink, the range and the reason, as JSON."""

_FILE: Final = re.compile(r"([^+]+)\+(\d+)\+(-?[0-9a-f]+)\.(\d+)\+(\d{20})\+(\d{20})\.(parquet|bin)", re.ASCII)


def kept_ranges(directory: Path) -> list[KeptRange]:
    """The ranges in a directory, which need not exist. Raises SinkError if it cannot be read."""
    found = []
    try:
        for file in sorted(directory.iterdir()) if directory.exists() else []:
            if match := _FILE.fullmatch(file.name):
                topic, partition, incarnation, epoch, first, until, kind = match.groups()
                numbers = int(incarnation, 16), int(epoch), int(first), int(until)
                records = _records_in(file) if kind == "parquet" else None
                found.append(KeptRange(RangeIdentity(topic, int(partition), *numbers), records))
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
        final = self._directory / f"{_name(part)}.{'parquet' if part.raw is None else 'bin'}"
        staged = staged_name(final)
        try:
            try:
                await to_thread.run_sync(self._stage, part, reason, staged)
                if not await decide():
                    return None
                await to_thread.run_sync(publish, staged, final)
            finally:
                with CancelScope(shield=True):
                    await to_thread.run_sync(_remove, staged)
        except OSError as error:
            why = f"the sink cannot write it ({reason}), nor can it be quarantined: {error}"
            raise SinkError(f"{part.range}: {why}") from error
        return final

    def _stage(self, part: RangeData, reason: str, staged: Path) -> None:
        make_directory(self._directory)
        if part.raw is None:
            about = {"sink": self._sink, "reason": reason, "range": part.range._asdict(), "records": part.records}
            _write_parquet(part, msgspec.json.encode(about), staged)
        else:
            with staged.open("xb") as file:
                file.writelines(part.raw)
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


def _records_in(file: Path) -> int:
    """Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(file).num_rows
    except pa.ArrowException as error:
        raise OSError(str(error)) from error


def _remove(staged: Path) -> None:
    with contextlib.suppress(OSError):
        staged.unlink()


def _name(part: RangeData) -> str:
    """The range's identity; topics have no `+`."""
    return f"{part.topic}+{part.partition}+{part.incarnation:x}.{part.epoch}+{part.first:020d}+{part.until:020d}"
