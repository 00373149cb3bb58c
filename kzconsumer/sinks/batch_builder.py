"""Collects chunks as ranges until a limit is reached, then makes a batch of them.

A range of a partition begins where the previous one ended. A replayed range is a batch of its own.
"""

from __future__ import annotations

import math
import sys

import msgspec

from kzconsumer.model import Wants
from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.records.forms import DecodedRecords, Records
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.interface import Batch, RangeData

# Made into columns, a piece takes 6 KiB beside its records. JOINED consecutive ones that are smaller than that are
# joined.
SMALL = 6 * 1024
JOINED = 8


class _Range(msgspec.Struct):
    begun: float  # when its first chunk came
    first: int
    until: int
    pieces: list[Records] = msgspec.field(default_factory=list)
    records: int = 0
    bytes: int = 0
    at_end: bool = False  # nothing more is fetched of this partition
    small: int = 0  # how many pieces at the end are small

    def append(self, piece: Records, size: int) -> None:
        self.pieces.append(piece)
        self.records += len(piece)
        self.bytes += size
        self.small = self.small + 1 if size < SMALL and isinstance(piece, DecodedRecords) else 0
        if self.small == JOINED:
            first, *following = self.pieces[-JOINED:]
            assert isinstance(first, DecodedRecords)
            joined = first.joined(following)
            self.pieces[-JOINED:] = [joined]
            self.small = int(joined.nbytes < SMALL)


class OwnedBatch:
    """A batch with the progress of each of its ranges, `parts`. What is lost, rejected or empty leaves it."""

    def __init__(self, parts: dict[Progress, RangeData], like: Batch | None = None) -> None:
        """`like` has all but the ranges."""
        self.batch = like if like is not None else Batch(())
        self.keep(parts)

    def keep(self, parts: dict[Progress, RangeData]) -> None:
        self.parts = parts
        self.batch = msgspec.structs.replace(self.batch, ranges=tuple(parts.values()))

    @property
    def lost(self) -> bool:
        """Whether every partition is."""
        return all(progress.lost for progress in self.parts)

    @property
    def shown(self) -> list[str]:
        return [str(part.range) for part in self.parts.values()]


class BatchBuilder:
    """Times are seconds of one clock, the caller's.

    A batch is due when all that is collected has reached `max_records`, `max_bytes` or the `most_bytes` that the sink
    wants in a batch (`full`), or its `due_records`, when a range has waited `max_time`, or when no range collected can
    grow any more. Ranges below the floor (`min_records`, `min_bytes`: reaching one of those given is enough) stay and
    grow on. But where all are below it, everything goes, so that what is held is bounded by the limits alone; and with
    a range that has waited `max_time` go those that have waited half as long: quiet partitions share their batches.
    """

    def __init__(
        self,
        limits: BatchSettings,
        most_bytes: int = sys.maxsize,
        due_records: int = sys.maxsize,
        wants: Wants = "columns",
    ) -> None:
        self._limits = limits
        self._wants: Wants = wants
        self._most_bytes = most_bytes
        self._due_records = due_records
        self._ranges: dict[Progress, _Range] = {}
        self._replays: dict[Progress, _Range] = {}
        self._records = 0
        self._bytes = 0

    def limit(self, limits: BatchSettings) -> None:
        self._limits = limits

    def __bool__(self) -> bool:
        return bool(self._ranges) or self._whole_replay() is not None

    @property
    def full(self) -> bool:
        """Nothing more should be added before a batch is cut. Only a cut ends it, even if claims are lost meanwhile."""
        most_records, most_bytes = self._limits.most(self._wants)
        limited = self._records >= most_records or self._bytes >= min(most_bytes, self._most_bytes)
        return limited or self._whole_replay() is not None

    @property
    def due_at(self) -> float:
        """When to cut the next batch if nothing more is added: -inf for now, inf for never."""
        due = self.full or self._records >= self._due_records
        if due or (self._ranges and all(part.at_end for part in self._ranges.values())):
            return -math.inf
        return self.begun + self._limits.max_time

    @property
    def begun(self) -> float:
        """When the range that has waited longest was begun; inf if there is none."""
        return next((part.begun for part in self._ranges.values()), math.inf)  # they are in that order

    def add(self, chunk: Chunk, now: float) -> None:
        """Chunks of a partition must be added in order, each beginning where the last one ended."""
        replayed = chunk.progress.replay is not None
        ranges = self._replays if replayed else self._ranges
        part = ranges.get(chunk.progress)
        if part is None:
            part = ranges[chunk.progress] = _Range(now, chunk.first, chunk.first)
        if part.until != chunk.first:
            partition = chunk.progress.topic_partition
            raise AssertionError(f"a gap in {partition}: {part.until} is followed by {chunk.first}")
        part.until = chunk.until
        part.at_end = chunk.at_end
        if not chunk.records:
            return
        size = chunk.records.nbytes
        part.append(chunk.records, size)
        if not replayed:  # its limits were those it was planned with
            self._records += len(chunk.records)
            self._bytes += size

    def cut(self, now: float) -> OwnedBatch:
        """The next batch. Closed claims are dropped.

        With a `now` of infinity everything collected goes into it.
        """
        # A replayed range is a batch of its own: it has to be written with the bounds of its plan. A full batch leaves
        # out partitions below the minimum, unless all are: so a batch ends when limits are reached, and memory needs no
        # other bound. If one range has waited `max_time`, those that have waited half as long go with it, so that quiet
        # partitions share batches.
        self._replays = {progress: part for progress, part in self._replays.items() if progress.open}
        if (replay := self._whole_replay()) is not None:
            return OwnedBatch({replay: self._data(replay, self._replays.pop(replay))}, Batch((), is_replay=True))
        collected = {progress: part for progress, part in self._ranges.items() if progress.open}
        going = {progress: part for progress, part in collected.items() if self._goes(part, now)} or collected
        self._ranges = {progress: part for progress, part in collected.items() if progress not in going}
        self._records = sum(part.records for part in self._ranges.values())
        self._bytes = sum(part.bytes for part in self._ranges.values())
        return OwnedBatch({progress: self._data(progress, part) for progress, part in going.items()})

    def _goes(self, part: _Range, now: float) -> bool:
        limits = self._limits
        floors = [
            reached >= least
            for reached, least in ((part.records, limits.min_records), (part.bytes, limits.min_bytes))
            if least is not None
        ]
        return part.at_end or not floors or any(floors) or now - part.begun >= limits.max_time / 2

    def _whole_replay(self) -> Progress | None:
        for progress, part in self._replays.items():
            if progress.replay is not None and part.until >= progress.replay.until:
                return progress
        return None

    def _data(self, progress: Progress, part: _Range) -> RangeData:
        return RangeData(
            topic=progress.topic_partition.topic,
            partition=progress.topic_partition.partition,
            first=part.first,
            until=part.until,
            pieces=tuple(part.pieces),
            incarnation=progress.incarnation,
            epoch=progress.epoch,
        )
