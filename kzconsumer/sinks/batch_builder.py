"""From chunks to a batch: collects ranges until one of the limits cuts.

Pure. Owned by the sink runner. Ranges tile each partition: what one batch ends with, the next begins with. A range that
is replayed is a batch of its own, cut where it was planned to end and nowhere else.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from kzconsumer.model import Wants
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer.streams.fetched_chunk import FetchedChunk


class _Range(msgspec.Struct):
    first: int
    until: int
    batches: list[pa.RecordBatch]
    raw: list[memoryview]


class BatchBuilder:
    """`full` when the next batch has reached its records or bytes."""

    def __init__(self, max_records: int, max_bytes: int, wants: Wants = "columns") -> None:
        self._wants = wants
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._ranges: dict[OffsetTracker, _Range] = {}
        self._replays: dict[OffsetTracker, _Range] = {}
        self._records = 0
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<BatchBuilder {len(self._ranges)} ranges {self._records} records {self._bytes} bytes>"

    def __bool__(self) -> bool:
        return bool(self._ranges) or self._whole_replay() is not None

    @property
    def full(self) -> bool:
        limited = self._records >= self._max_records or self._bytes >= self._max_bytes
        return limited or self._whole_replay() is not None

    def add(self, chunk: FetchedChunk) -> None:
        """A partition's chunks come in order, each beginning where the last one ended."""
        replayed = chunk.tracker.replay is not None
        ranges = self._replays if replayed else self._ranges
        part = ranges.setdefault(chunk.tracker, _Range(chunk.first, chunk.first, [], []))
        if part.until != chunk.first:
            raise AssertionError(
                f"a hole in {chunk.tracker.topic_partition}: {part.until} is followed by {chunk.first}"
            )
        part.until = chunk.until
        if chunk.batch is not None:
            part.batches.append(chunk.batch)
            if not replayed:  # its limits were those it was planned with
                self._records += chunk.batch.num_rows
                self._bytes += chunk.batch.nbytes
        elif chunk.raw is not None:
            part.raw.append(chunk.raw)
            self._records += chunk.until - chunk.first  # nobody has counted: what there may be at most
            self._bytes += len(chunk.raw)

    def cut(self) -> tuple[Batch, list[OffsetTracker]]:
        """What is collected, with the trackers to mark, in the same order; claims closed meanwhile are left out."""
        if (replay := self._whole_replay()) is not None:
            return Batch((self._data(replay, self._replays.pop(replay)),), is_replay=True), [replay]
        open_ranges = {tracker: part for tracker, part in self._ranges.items() if tracker.open}
        self._replays = {tracker: part for tracker, part in self._replays.items() if tracker.open}
        self._ranges = {}
        self._records = self._bytes = 0
        return Batch(tuple(self._data(tracker, part) for tracker, part in open_ranges.items())), list(open_ranges)

    def _whole_replay(self) -> OffsetTracker | None:
        for tracker, part in self._replays.items():
            if tracker.open and tracker.replay is not None and part.until >= tracker.replay.until:
                return tracker
        return None

    def _data(self, tracker: OffsetTracker, part: _Range) -> RangeData:
        return RangeData(
            topic=tracker.topic_partition.topic,
            partition=tracker.topic_partition.partition,
            first=part.first,
            until=part.until,
            batches=tuple(part.batches),
            incarnation=tracker.incarnation,
            epoch=tracker.epoch,
            raw=tuple(part.raw) if self._wants == "raw" else None,
        )
