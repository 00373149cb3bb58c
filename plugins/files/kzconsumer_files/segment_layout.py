"""The end of a partition's archive, found from its last segment, and what a range of raw batches adds to it.

The end of an archive is the end of its last segment, or that segment's base offset while it is empty: an empty segment
says that the log had nothing up to there. Source: `kafka.log.UnifiedLog` and
`org.apache.kafka.storage.internals.log.LogSegment` (3.9): names, rolling, recovery.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from kzconsumer.records.decode import messages, walk

_OFFSET = struct.Struct(">q")
_NAME = re.compile(r"(\d{20})\.log", re.ASCII)
# Most bytes read at a time; more only where a single batch is larger.
WINDOW = 16 << 20
# A broker's index has offsets relative to the base in 32 bits.
_MOST_OFFSETS = 2**31 - 1


class Segment(NamedTuple):
    """The last segment of an archive."""

    base: int
    size: int
    end: int
    """The offset after the last one its entries stand for; the base while there is none."""
    since: int
    """Timestamp of its first entry in ms since 1970, -1 for none."""


class Recovered(NamedTuple):
    """`segment` as far as its entries are whole and good; `fault` says why there is more, if there is."""

    segment: Segment
    fault: str | None


class SegmentLimits(NamedTuple):
    """Of one segment: bytes, and milliseconds between the timestamps of its first and last entries (None: no limit)."""

    size: int
    time: int | None


class Begin(NamedTuple):
    """A new segment becomes the last one."""

    base: int


Step: TypeAlias = Begin | memoryview
"""A new segment, or bytes at the end of the last one."""


class ArchiveOverlap(Exception):
    """A batch begins below the end of the archive and ends beyond it: the log has other batches than it had."""


def segment_name(base: int) -> str:
    return f"{base:020d}.log"


def segment_base(name: str) -> int | None:
    """The base offset in a segment's name, None for names of other files."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def recover(read: Callable[[int, int], bytes], size: int, base: int) -> Recovered:
    """Walk a segment of `size` bytes, `read(position, length)` by piece, to the end of its last good entry.

    Sizes and checksums of all entries are checked, and that their offsets increase.
    """
    at = Segment(base, 0, base, -1)
    window = WINDOW
    while at.size < size:
        walked = walk(memoryview(read(at.size, min(window, size - at.size))), check=True)
        good = 0
        for entry in walked.entries:
            if entry.first < at.end:
                return Recovered(at, f"the offsets go back at byte {at.size}")
            since = at.since if at.size else entry.timestamp
            at = Segment(base, at.size + entry.end - entry.position, entry.last + 1, since)
            good = entry.end
        if walked.fault is not None:
            return Recovered(at, f"from byte {at.size - good}: {walked.fault}")
        if good == 0 and at.size + window >= size:
            return Recovered(at, f"the entry at byte {at.size} is cut off")
        window = WINDOW if good else window * 2
    return Recovered(at, None)


def start_of(first: int, pieces: Sequence[memoryview]) -> int:
    """The first offset that a range stands for: its first batch may begin before it, and is kept whole."""
    heads: list[int] = [_OFFSET.unpack_from(piece)[0] for piece in pieces[:1]]
    return min([first, *heads])


def plan(
    last: Segment | None, first: int, until: int, pieces: Sequence[memoryview], limits: SegmentLimits
) -> tuple[list[Step], Segment | None]:
    """The steps that add a range to an archive whose last segment is `last`, and the last segment after them.

    What lies below the archive's end is left out: it is there. Where the range begins beyond it, or ends with offsets
    that no batch stands for, a new segment begins. Raises Overlap.
    """
    # The log has holes: compaction, control batches, aborted transactions. An archive that just ended below the stored
    # offset could not tell a hole from files that were lost. So a sink of bytes also gets ranges without records, and a
    # hole at the end becomes an empty segment that is named by the next offset.
    steps: list[Step] = []
    start = start_of(first, pieces)
    at = last
    if at is None or start > at.end:
        at = _begin(steps, start)
    for piece in pieces:
        walked = walk(piece, check=False)
        if walked.fault is not None or (walked.entries and walked.entries[-1].end != len(piece)):
            raise ValueError(f"not whole batches: {walked.fault or 'the last one is cut off'}")
        begun = done = 0
        for whole in walked.entries:
            too_large = at.size + whole.end - whole.position > limits.size
            divided = whole.is_run and (too_large or whole.first < at.end)
            for entry in messages(piece, whole) if divided else [whole]:
                if entry.last < at.end:
                    _add(steps, piece[begun:done])
                    begun = done = entry.end
                    continue
                if entry.first < at.end:
                    raise ArchiveOverlap(f"the batch of offsets {entry.first} to {entry.last} begins below {at.end}")
                size = entry.end - entry.position
                if at.size and (
                    at.size + size > limits.size
                    or entry.last - at.base > _MOST_OFFSETS
                    or (limits.time is not None and at.since >= 0 and entry.timestamp - at.since > limits.time)
                ):
                    _add(steps, piece[begun:done])
                    begun = done
                    at = _begin(steps, at.end)
                at = Segment(at.base, at.size + size, entry.last + 1, at.since if at.size else entry.timestamp)
                done = entry.end
        _add(steps, piece[begun:done])
    if until > at.end:
        at = _begin(steps, until)
    return steps, at


def _begin(steps: list[Step], base: int) -> Segment:
    steps.append(Begin(base))
    return Segment(base, 0, base, -1)


def _add(steps: list[Step], data: memoryview) -> None:
    if data:
        steps.append(data)
