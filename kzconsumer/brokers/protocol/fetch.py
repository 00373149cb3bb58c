"""Fetch: records of many partitions from their leader, in one request.

Written for hundreds of partitions per request: one packed struct per partition each way, and records are views of the
response's memory, never copies.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

import msgspec

from kzconsumer.brokers.protocol.primitives import (
    INT16,
    INT32,
    NO_TAGS,
    compact_string,
    read_unsigned_varint,
    reading,
    skip_tags,
    string,
    unsigned_varint,
)
from kzconsumer.brokers.protocol.versions import FETCH, is_flexible
from kzconsumer.errors import ProtocolError
from kzconsumer.model import TopicPartition

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
ISOLATION_LEVELS: Final[Mapping[str, int]] = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


class FetchPosition(NamedTuple):
    """Where to read on in a partition, and most bytes of it (from version 3 on at least one batch)."""

    offset: int
    max_bytes: int
    leader_epoch: int = -1
    """In which the broker is taken to lead (version 9 on); it refuses any other. -1: unknown."""
    fetched_epoch: int = -1
    """That of the last record before `offset` (version 12 on): the broker compares its log with it. -1: unknown."""


class Diverging(NamedTuple):
    """The log is not the one that was read before: its last epoch up to the asked one, and the offset where that ends.

    The epoch is the asked one, or the largest one below it that the log has. Records before `end_offset` are the same.
    """

    epoch: int
    end_offset: int


class FetchedPartition(msgspec.Struct, frozen=True):
    topic_partition: TopicPartition
    error: int
    high_watermark: int
    last_stable_offset: int
    """Where the first open transaction begins, or the high watermark. -1 before version 4."""
    log_start_offset: int
    """-1 before version 5."""
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of the aborted transactions that any of `records` belong to, wherever they begin and
    end; empty with READ_UNCOMMITTED."""
    records: memoryview
    """Whole batches as in the log, the last one perhaps cut short. A read-only view of the whole response."""
    preferred: int = -1
    """Id of the replica that a leader wants this client to fetch from instead, because of its rack (KIP-392); `records`
    is empty then. -1: none, and before version 11."""
    diverging: Diverging | None = None
    """Set, without records and error, if the log ends or differs before the position (KIP-595, version 12 on)."""


class FetchResponse(msgspec.Struct, frozen=True):
    error: int
    """Of the whole request; 0 before version 7."""
    throttle_ms: int
    partitions: list[FetchedPartition]


class FetchRequest(msgspec.Struct, frozen=True):
    """The broker delays the response by up to `max_wait_ms` until it has `min_bytes`.

    `max_bytes` bounds the response from version 3 (0.10.1) on; before, only the partitions' bounds count. Brokers fill
    the response in the order of `partitions`. No fetch session (KIP-227): id 0, epoch -1. `isolation` has no effect
    before version 4 (0.11). READ_COMMITTED: nothing from the last stable offset on is sent; aborted records before it
    are. `rack` is where this client is, for brokers from version 11 (2.3) on that choose the nearest replica.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: Mapping[TopicPartition, FetchPosition]
    isolation: int = READ_UNCOMMITTED
    rack: str = ""
    api_key: ClassVar[int] = FETCH

    def encode(self, version: int) -> bytes:
        head = [struct.pack(">iii", -1, self.max_wait_ms, self.min_bytes)]  # replica_id -1: a consumer
        if version >= 3:
            head.append(INT32.pack(self.max_bytes))
        if version >= 4:
            head.append(bytes((self.isolation,)))
        if version >= 7:
            head.append(struct.pack(">ii", 0, -1))  # session_id, session_epoch
        topics = _packed(self.partitions, version)
        if is_flexible(FETCH, version):
            head.append(unsigned_varint(len(topics) + 1))
            for topic, packed in topics:
                head += (compact_string(topic), unsigned_varint(len(packed) + 1), *packed, NO_TAGS)
            head += (b"\x01", compact_string(self.rack), NO_TAGS)  # no forgotten topics
            return b"".join(head)
        head.append(INT32.pack(len(topics)))
        for topic, packed in topics:
            head += (string(topic), INT32.pack(len(packed)), *packed)
        if version >= 7:
            head.append(INT32.pack(0))  # forgotten_topics_data
        if version >= 11:
            head.append(string(self.rack))
        return b"".join(head)

    def decode(self, version: int, body: memoryview) -> FetchResponse:
        with reading("Fetch", version):
            throttle_ms = error = at = 0
            if version >= 7:
                throttle_ms, error, _session_id = _RESPONSE_V7.unpack_from(body)
                at = _RESPONSE_V7.size
            elif version >= 1:
                (throttle_ms,) = INT32.unpack_from(body)
                at = 4
            read = _read_flexible if is_flexible(FETCH, version) else _read_plain
            return FetchResponse(error, throttle_ms, read(version, body, at))


_RESPONSE_V7: Final = struct.Struct(">ihi")
_PARTITION_V0: Final = struct.Struct(">iqi")
_PARTITION_V5: Final = struct.Struct(">iqqi")
_PARTITION_V9: Final = struct.Struct(">iiqqi")
_PARTITION_V12: Final = struct.Struct(">iiqiqix")


def _packed(partitions: Mapping[TopicPartition, FetchPosition], version: int) -> list[tuple[str, list[bytes]]]:
    """(topic, packed partitions) in order, so that a topic may occur more than once."""
    topics: list[tuple[str, list[bytes]]] = []
    current = None
    packed: list[bytes] = []
    for (topic, partition), (offset, max_bytes, leader, fetched) in partitions.items():
        if topic != current:
            current = topic
            packed = []
            topics.append((topic, packed))
        # -1: the log start offset, for followers.
        if version >= 12:
            packed.append(_PARTITION_V12.pack(partition, leader, offset, fetched, -1, max_bytes))
        elif version >= 9:
            packed.append(_PARTITION_V9.pack(partition, leader, offset, -1, max_bytes))
        elif version >= 5:
            packed.append(_PARTITION_V5.pack(partition, offset, -1, max_bytes))
        else:
            packed.append(_PARTITION_V0.pack(partition, offset, max_bytes))
    return topics


# A partition's fields before its records; plain: up to the count of aborted transactions, in version 0 the size.
_FETCHED_V0: Final = struct.Struct(">ihqi")
_FETCHED_V4: Final = struct.Struct(">ihqqi")
_FETCHED_V5: Final = struct.Struct(">ihqqqi")
_FETCHED_V12: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_DIVERGING_TAG: Final = 0
_DIVERGING: Final = struct.Struct(">iq")


def _read_plain(version: int, body: memoryview, at: int) -> list[FetchedPartition]:
    fetched = []
    topics, at = _count(body, at)
    for _ in range(topics):
        (size,) = INT16.unpack_from(body, at)
        topic = str(_part(body, at + 2, size), "utf-8")
        partitions, at = _count(body, at + 2 + size)
        for _ in range(partitions):
            stable = start = preferred = -1
            aborted: tuple[tuple[int, int], ...] = ()
            if version < 4:
                partition, error, high, size = _FETCHED_V0.unpack_from(body, at)
                at += _FETCHED_V0.size
            else:
                if version == 4:
                    partition, error, high, stable, count = _FETCHED_V4.unpack_from(body, at)
                    at += _FETCHED_V4.size
                else:
                    partition, error, high, stable, start, count = _FETCHED_V5.unpack_from(body, at)
                    at += _FETCHED_V5.size
                if count > 0:
                    aborted = tuple(_ABORTED.iter_unpack(_part(body, at, count * _ABORTED.size)))
                    at += count * _ABORTED.size
                if version >= 11:
                    (preferred,) = INT32.unpack_from(body, at)
                    at += 4
                (size,) = INT32.unpack_from(body, at)
                at += 4
            records = _part(body, at, max(size, 0))
            at += len(records)
            where = TopicPartition(topic, partition)
            fetched.append(FetchedPartition(where, error, high, stable, start, aborted, records, preferred))
    _ended(body, at)
    return fetched


def _read_flexible(version: int, body: memoryview, at: int) -> list[FetchedPartition]:
    fetched = []
    topics, at = read_unsigned_varint(body, at)
    for _ in range(topics - 1):
        size, at = read_unsigned_varint(body, at)
        topic = str(_part(body, at, size - 1), "utf-8")
        partitions, at = read_unsigned_varint(body, at + size - 1)
        for _ in range(partitions - 1):
            partition, error, high, stable, start = _FETCHED_V12.unpack_from(body, at)
            count, at = read_unsigned_varint(body, at + _FETCHED_V12.size)
            aborted = []
            for _ in range(count - 1):
                aborted.append(_ABORTED.unpack_from(body, at))
                at = skip_tags(body, at + _ABORTED.size)
            (preferred,) = INT32.unpack_from(body, at)
            size, at = read_unsigned_varint(body, at + 4)
            records = _part(body, at, max(size - 1, 0))
            diverging, at = _read_tags(body, at + len(records))
            where = TopicPartition(topic, partition)
            fetched.append(
                FetchedPartition(where, error, high, stable, start, tuple(aborted), records, preferred, diverging)
            )
        at = skip_tags(body, at)
    _ended(body, skip_tags(body, at))
    return fetched


def _read_tags(body: memoryview, at: int) -> tuple[Diverging | None, int]:
    """What the tagged fields of a partition at `at` say of a diverging log, and where they end."""
    if body[at] == 0:
        return None, at + 1
    diverging = None
    count, at = read_unsigned_varint(body, at)
    for _ in range(count):
        tag, at = read_unsigned_varint(body, at)
        size, at = read_unsigned_varint(body, at)
        field = _part(body, at, size)
        at += size
        if tag == _DIVERGING_TAG:
            diverging = Diverging(*_DIVERGING.unpack_from(field))
            _ended(field, skip_tags(field, _DIVERGING.size))
    return (diverging if diverging is not None and diverging.end_offset >= 0 else None), at


def _count(body: memoryview, at: int) -> tuple[int, int]:
    (count,) = INT32.unpack_from(body, at)
    if count < 0:
        raise ProtocolError(f"an array of {count} elements")
    return count, at + 4


def _part(body: memoryview, at: int, size: int) -> memoryview:
    """Exactly `size` bytes at `at`: a slice could be shorter."""
    if size < 0 or at + size > len(body):
        raise ProtocolError(f"{size} bytes wanted at {at} of {len(body)}")
    return body[at : at + size]


def _ended(body: memoryview, at: int) -> None:
    if at != len(body):
        raise ProtocolError(f"{len(body) - at} bytes left over")
