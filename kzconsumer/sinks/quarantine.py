"""The quarantine for ranges that the sink cannot write: `[sink] on_batch_failure = "quarantine"`.

A file is on disk before its range is committed. Its name is the range's identity, and it is never replaced.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from anyio import CancelScope, to_thread

from kzconsumer.durable_files import make_directory, publish, staged_name, sync_file
from kzconsumer.errors import SinkError
from kzconsumer.file_names import is_short, named_after
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
                if kind == "bin" and is_short(topic):
                    continue  # a file of raw bytes does not tell its topic; sinks of bytes are not verified
                held = _read(file, topic) if kind == "parquet" else _Content(topic, None)
                found.append(KeptRange(RangeIdentity(held.topic, int(partition), *numbers), held.records))
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
        final = self._directory / _name(part, "parquet" if part.raw is None else "bin")
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


class _Content(NamedTuple):
    topic: str
    records: int | None


def _read(file: Path, named: str) -> _Content:
    """`named` is the topic in the file's name. Raises OSError."""
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
    return _Content(topic, footer.num_rows)


def _remove(staged: Path) -> None:
    with contextlib.suppress(OSError):
        staged.unlink()


def _name(part: RangeData, extension: str) -> str:
    """The range's identity; topics have no `+`."""
    line = f"{part.partition}+{part.incarnation:x}.{part.epoch}+{part.first:020d}+{part.until:020d}"
    return named_after(part.topic, lambda topic: f"{topic}+{line}.{extension}")
