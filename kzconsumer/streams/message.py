"""One record as application code sees it, and rows of them out of a column batch.

Pure. Called by streams/kafka_stream only. What nearly every application reads (offset, key, value) is made with the
message; the rest is looked up when it is asked for, in what the messages made together share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa

from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.records.python_records import Record

Headers = tuple[tuple[str, bytes | None], ...]

NO_HEADERS: Headers = ()
_NO_TIMESTAMP = -1


class HandedOut(NamedTuple):
    """What is acknowledged with a message or batch: of a claim, `first <= offset < until`, with holes of the log."""

    claim: OffsetTracker
    first: int
    until: int
    records: int


class _Shared(msgspec.Struct, frozen=True, eq=False):
    """What messages made together share: copies, so that a message that is kept pins this and not its whole chunk."""

    topic: str
    partition: int
    first: int
    offsets: Sequence[int] | None
    """None when they are `first` and what follows it without a gap."""
    timestamps: Sequence[int]
    timestamp_types: Sequence[int]
    headers: Sequence[Headers] | None
    """None when no message has any."""
    claim: OffsetTracker | None = None
    """None for a message made by hand."""
    begin: int = 0
    """Where the range begins that these messages stand for: a hole of the log may come before the first of them."""

    def row(self, offset: int) -> int:
        return offset - self.first if self.offsets is None else bisect_left(self.offsets, offset)


class Message(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A Kafka record (`kafka.message.MessageAndMetadata`, with headers). `Message.of` makes one by hand."""

    offset: int
    key: bytes | None
    value: bytes | None
    _shared: _Shared

    @classmethod
    def of(
        cls,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None = None,
        headers: Headers = NO_HEADERS,
        timestamp_type: int = -1,
    ) -> Message:
        stamp = _NO_TIMESTAMP if timestamp is None else timestamp
        return cls(offset, key, value, _Shared(topic, partition, offset, None, (stamp,), (timestamp_type,), (headers,)))

    @property
    def topic(self) -> str:
        return self._shared.topic

    @property
    def partition(self) -> int:
        return self._shared.partition

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970; None when the record has none."""
        shared = self._shared
        timestamp = shared.timestamps[shared.row(self.offset)]
        return None if timestamp == _NO_TIMESTAMP else timestamp

    @property
    def timestamp_type(self) -> int:
        """0 for the producer's clock, 1 for the broker's, -1 for none."""
        shared = self._shared
        return shared.timestamp_types[shared.row(self.offset)]

    @property
    def headers(self) -> Headers:
        """(key, value) pairs in the order they were produced."""
        shared = self._shared
        return NO_HEADERS if shared.headers is None else shared.headers[shared.row(self.offset)]

    def _all(self) -> tuple[str, int, int, bytes | None, bytes | None, int | None, Headers, int]:
        return (
            self.topic,
            self.partition,
            self.offset,
            self.key,
            self.value,
            self.timestamp,
            self.headers,
            self.timestamp_type,
        )

    def __eq__(self, other: object) -> bool:
        return self._all() == other._all() if isinstance(other, Message) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, key={self.key!r}, "
            f"value={self.value!r}, timestamp={self.timestamp}, headers={self.headers!r}, "
            f"timestamp_type={self.timestamp_type})"
        )

    def handed_out(self) -> HandedOut | None:
        """What its stream goes by when the message is acknowledged; None when no stream has made it."""
        shared = self._shared
        if shared.claim is None:
            return None
        if row := shared.row(self.offset):
            first = self.offset if shared.offsets is None else shared.offsets[row - 1] + 1
        else:
            first = shared.begin
        return HandedOut(shared.claim, first, self.offset + 1, 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return Message.of, self._all()  # alone, without what it shares


def messages(
    batch: pa.RecordBatch, topic: str, partition: int, claim: OffsetTracker | None = None, begin: int = 0
) -> list[Message]:
    """The rows of a batch of one partition, as messages; with a claim they stand for all of it from `begin` on."""
    rows = batch.num_rows
    if rows == 0:
        return []
    column = batch.column(2).to_numpy()
    first, last = int(column[0]), int(column[-1])
    gapless = last - first == rows - 1
    offsets = range(first, last + 1) if gapless else column.tolist()
    keys = batch.column(3)
    none: Iterable[None] = repeat(None)
    timestamps = batch.column(5).view(pa.int64())
    shared = _Shared(
        topic,
        partition,
        first,
        None if gapless else offsets,
        _copy(timestamps.fill_null(_NO_TIMESTAMP) if timestamps.null_count else timestamps),
        _copy(batch.column(7)),
        _headers(cast("pa.ListArray[Any]", batch.column(6))),
        claim,
        begin,
    )
    return list(
        map(
            Message,
            offsets,
            none if keys.null_count == rows else keys.to_pylist(),
            batch.column(4).to_pylist(),
            repeat(shared),
        )
    )


def few_messages(
    records: Sequence[Record], topic: str, partition: int, claim: OffsetTracker | None = None, begin: int = 0
) -> list[Message]:
    """Records of one partition, at least one, as messages; claim and `begin` as above."""
    first = records[0].offset
    gapless = records[-1].offset - first == len(records) - 1
    shared = _Shared(
        topic,
        partition,
        first,
        None if gapless else [record.offset for record in records],
        [record.timestamp for record in records],
        [record.timestamp_type for record in records],
        [tuple((str(key, "utf-8", "replace"), value) for key, value in record.headers) for record in records]
        if any(record.headers for record in records)
        else None,
        claim,
        begin,
    )
    return [Message(record.offset, record.key, record.value, shared) for record in records]


def _copy(numbers: pa.Array[Any]) -> Sequence[int]:
    return cast("Sequence[int]", np.array(numbers.to_numpy()).data)


def _headers(column: pa.ListArray[Any]) -> list[Headers] | None:
    ends = column.offsets.to_numpy()  # flatten() would import pyarrow.compute: 35 ms of the first message
    if ends[0] == ends[-1]:
        return None
    return [tuple((pair["key"], pair["value"]) for pair in row or ()) for row in column.to_pylist()]
