"""One record as application code sees it.

What nearly every application reads (offset, key, value) is part of the message; timestamp and headers are looked up on
demand in what the messages made together share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.records.forms import NO_HEADERS, Headers, Rows

_NO_TIMESTAMP = -1


class HandedOut(NamedTuple):
    """The range acknowledged with a message or batch: `first <= offset < until` of a claim, with gaps of the log."""

    claim: OffsetTracker
    first: int
    until: int
    records: int


class _Shared(msgspec.Struct, frozen=True, eq=False):
    """What messages made together share. Copies: a message that is kept must not keep its whole chunk in memory."""

    topic: str
    partition: int
    first: int
    offsets: Sequence[int] | None
    """None if they are consecutive from `first` on."""
    timestamps: Sequence[int]
    timestamp_types: Sequence[int]
    headers: Sequence[Headers] | None
    """None if no message has any."""
    claim: OffsetTracker | None = None
    """None for a message made by hand."""
    begin: int = 0
    """Where the range of these messages begins: a gap of the log may come before the first of them."""

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
        """The range that acknowledging the message completes; None if no stream has made it."""
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
    rows: Rows, topic_partition: TopicPartition, claim: OffsetTracker | None = None, begin: int = 0
) -> list[Message]:
    """Messages of one partition; with a claim they stand for all of it from offset `begin` on."""
    offsets = rows.offsets
    if not offsets:
        return []
    shared = _Shared(
        *topic_partition,
        offsets[0],
        None if isinstance(offsets, range) else offsets,
        rows.timestamps,
        rows.timestamp_types,
        rows.headers,
        claim,
        begin,
    )
    return list(map(Message, offsets, rows.keys, rows.values, repeat(shared)))
