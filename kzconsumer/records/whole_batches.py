"""Keeps record bytes as they are, for sinks that want raw bytes: cut to whole batches, framing and checksums checked.

`walk` lists the batches of such bytes. Neither raises on any input.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from kzconsumer.records import _native
from kzconsumer.records import layout as L
from kzconsumer.records.decode import Corruption, Decoded
from kzconsumer.records.forms import NO_RECORDS, RawRecords

VIEWED_SHARE = 5
"""Raw bytes that are a fifth of their response or more are not copied: a few equal partitions fill a response together,
and are mostly held together. A chunk by itself keeps at most five times its bytes in memory."""

_HEADER = struct.Struct(">qi")
_TIMESTAMP = struct.Struct(">q")
_TIMESTAMP_AT = 18  # in a message of magic 1


class Entry(NamedTuple):
    """One batch, one wrapper message, or one run of uncompressed messages of equal magic and attributes."""

    position: int
    end: int
    """Bytes, relative to what was walked."""
    magic: int
    first: int
    """The offset in its header: a batch's base offset, a wrapper's last one."""
    last: int
    timestamp: int
    """The highest of a batch in ms since 1970, that of a run's first message; -1 for none."""
    leader_epoch: int = -1
    """Of a batch of magic 2."""

    @property
    def is_run(self) -> bool:
        return self.magic < 2 and self.first < self.last


class Walked(msgspec.Struct, frozen=True):
    """The whole and intact entries at the beginning of some bytes."""

    entries: list[Entry]
    fault: str | None
    """Why the bytes that follow are no entry; None at the end, also if that is inside an entry."""


def keep(records: memoryview, start: int) -> Decoded:
    """What `decode` returns, but with the bytes themselves (`RawRecords`) instead of columns.

    Batches that end below `start` are left out. One that holds `start` is kept whole, so its first offset may be lower.
    Control batches and those of aborted transactions are kept.
    """
    found, partial, fault, fault_at = _native.frame(records, crc32c)
    entries = [Entry(*each) for each in found]
    next_offset = max((start, *(entry.last + 1 for entry in entries)))
    corrupt = None if fault is None else Corruption(next_offset, fault, fault_at)
    wanted = next((entry for entry in entries if entry.last >= start), None)
    if wanted is None:
        return Decoded(NO_RECORDS, next_offset, partial and not entries, corrupt)
    kept = records[wanted.position : entries[-1].end]
    held = RawRecords(_own(kept), next_offset - start)
    return Decoded(held, next_offset, False, corrupt, len(kept), epochs=_epochs(entries, start))


def _epochs(entries: list[Entry], start: int) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for entry in entries:
        if entry.last >= start:
            if not runs or runs[-1][1] != entry.leader_epoch:
                runs.append((start, entry.leader_epoch))
            start = entry.last + 1
    return tuple(runs)


def _own(view: memoryview) -> memoryview:
    """The bytes of a view, copied if they are less than a `VIEWED_SHARE` of the response that it keeps in memory."""
    if VIEWED_SHARE * len(view) >= memoryview(view.obj).nbytes:
        return view
    return memoryview(bytes(view))


def walk(data: memoryview, *, check: bool) -> Walked:
    """The entries of record bytes; `check` compares checksums as well."""
    entries, _, fault, _ = _native.frame(data, crc32c if check else None)
    return Walked([Entry(*entry) for entry in entries], fault)


def messages(data: memoryview, run: Entry) -> list[Entry]:
    """The messages of a run, each an entry of its own."""
    found = []
    position = run.position
    while position < run.end:
        offset, size = _HEADER.unpack_from(data, position)
        end = position + L.LOG_OVERHEAD + size
        timestamp = _TIMESTAMP.unpack_from(data, position + _TIMESTAMP_AT)[0] if run.magic == 1 else L.NO_TIMESTAMP
        found.append(Entry(position, end, run.magic, offset, offset, timestamp))
        position = end
    return found
