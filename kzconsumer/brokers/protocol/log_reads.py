"""Requests for a partition's leader: Fetch, ListOffsets and OffsetForLeaderEpoch.

Fetch is written for hundreds of partitions per request: one packed struct per partition each way, and records are views
of the response's memory, never copies.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import msgspec

from kzconsumer.brokers.protocol.error_codes import CLUSTER_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED
from kzconsumer.brokers.protocol.primitives import (
    INT8,
    INT16,
    INT32,
    INT64,
    MALFORMED,
    NO_TAGS,
    Reader,
    compact_string,
    malformed,
    read_unsigned_varint,
    skip_tags,
    string,
    unsigned_varint,
)
from kzconsumer.brokers.protocol.versions import (
    FETCH,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    encoding_of,
    is_flexible,
    response,
)
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
    session_id: int = 0
    """Of the fetch session, which a full request may have opened; 0: none, and before version 7."""


class FetchRequest(msgspec.Struct, frozen=True):
    """The broker delays the response by up to `max_wait_ms` until it has `min_bytes`.

    `max_bytes` bounds the response from version 3 (0.10.1) on; before, only the partitions' bounds count. Brokers fill
    the response in the order of `partitions`. `isolation` has no effect before version 4 (0.11). READ_COMMITTED:
    nothing from the last stable offset on is sent, which stands for the high watermark therefore; aborted records
    before it are. A response names all transactions of those, so that filtering needs no state between fetches. `rack`
    is where this client is, for brokers from version 11 (2.3) on that choose the nearest replica.

    `session_id` and `session_epoch` are those of a fetch session (KIP-227, version 7 on). With an epoch above 0 the
    broker reads what the session has: `partitions` are those that are new or read elsewhere, `forgotten` the ones to
    leave out, and no partition is in both. Epoch 0 opens a session with all of `partitions`; epoch -1 opens none. Both
    end the one of `session_id`.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: Mapping[TopicPartition, FetchPosition]
    isolation: int = READ_UNCOMMITTED
    rack: str = ""
    session_id: int = 0
    session_epoch: int = -1
    forgotten: Sequence[TopicPartition] = ()
    api_key: ClassVar[int] = FETCH

    def encode(self, version: int) -> bytes:
        # replica_id -1: a consumer
        values = -1, self.max_wait_ms, self.min_bytes, self.max_bytes, self.isolation
        if version >= 7:
            head = [_REQUEST_V7.pack(*values, self.session_id, self.session_epoch)]
        else:
            layout = _REQUEST_V4 if version >= 4 else _REQUEST_V3 if version >= 3 else _REQUEST_V0
            head = [layout.pack(*values[: len(layout.format) - 1])]
        topics = _packed(self.partitions, version)
        if is_flexible(FETCH, version):
            head.append(unsigned_varint(len(topics) + 1))
            for topic, packed in topics:
                head += (compact_string(topic), unsigned_varint(len(packed) + 1), *packed, NO_TAGS)
            forgotten = _numbers(self.forgotten) if self.forgotten else {}
            head.append(unsigned_varint(len(forgotten) + 1))
            for topic, numbers in forgotten.items():
                head += (compact_string(topic), unsigned_varint(len(numbers) + 1), *map(INT32.pack, numbers), NO_TAGS)
            head += (compact_string(self.rack), NO_TAGS)
            return b"".join(head)
        head.append(INT32.pack(len(topics)))
        for topic, packed in topics:
            head += (string(topic), INT32.pack(len(packed)), *packed)
        if version >= 7:
            forgotten = _numbers(self.forgotten)
            head.append(INT32.pack(len(forgotten)))
            for topic, numbers in forgotten.items():
                head += (string(topic), INT32.pack(len(numbers)), *map(INT32.pack, numbers))
        if version >= 11:
            head.append(string(self.rack))
        return b"".join(head)

    def decode(self, version: int, body: memoryview) -> FetchResponse:
        throttle_ms = error = session_id = at = 0
        try:
            if version >= 7:
                throttle_ms, error, session_id = _RESPONSE_V7.unpack_from(body)
                at = _RESPONSE_V7.size
            elif version >= 1:
                (throttle_ms,) = INT32.unpack_from(body)
                at = 4
            read = _read_flexible if is_flexible(FETCH, version) else _read_plain
            return FetchResponse(error, throttle_ms, read(version, body, at), session_id)
        except MALFORMED as why:
            raise malformed("Fetch", version, why) from why


_REQUEST_V0: Final = struct.Struct(">iii")
_REQUEST_V3: Final = struct.Struct(">iiii")
_REQUEST_V4: Final = struct.Struct(">iiiib")
_REQUEST_V7: Final = struct.Struct(">iiiibii")
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


def _numbers(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The numbers of the partitions of each topic."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
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
            at += len(records)
            diverging, at = (None, at + 1) if body[at] == 0 else _read_tags(body, at)
            where = TopicPartition(topic, partition)
            fetched.append(
                FetchedPartition(where, error, high, stable, start, tuple(aborted), records, preferred, diverging)
            )
        at = skip_tags(body, at)
    _ended(body, skip_tags(body, at))
    return fetched


def _read_tags(body: memoryview, at: int) -> tuple[Diverging | None, int]:
    """What the tagged fields of a partition at `at` say of a diverging log, and where they end."""
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


# ListOffsets: where a log begins and ends, and the first offset at or after a time.

LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4
"""The first offset that the broker has on its own disks. Tiered storage (KIP-405) may have earlier ones elsewhere;
without it, this is EARLIEST."""
EARLIEST_LOCAL_VERSION: Final = 8
"""From this version of the request on brokers know EARLIEST_LOCAL. Apache Kafka before it has no tiered storage."""


class ListedOffset(msgspec.Struct, frozen=True):
    error: int
    offset: int
    """-1 if there is none: an error, or no record at or after the requested time."""
    timestamp: int
    """Milliseconds, of the record at `offset`; -1 for LATEST, EARLIEST and EARLIEST_LOCAL, and always in version 0."""
    leader_epoch: int = -1
    """Of the record at `offset`, for LATEST the log's last one; -1 before version 4 (Kafka 2.1), and if unknown."""


class ListOffsetsRequest(msgspec.Struct, frozen=True):
    """`partitions` says for each LATEST, EARLIEST, EARLIEST_LOCAL or a time in ms since 1970.

    With a time, version 0 (before Kafka 0.10.1) finds no record but the base offset of the newest segment that was last
    written before that time. With `isolation` 1 (read committed) LATEST is the last stable offset, from version 2 on.
    `leader_epochs`: in which the broker is taken to lead (version 4 on); it refuses any other.
    """

    partitions: Mapping[TopicPartition, int]
    isolation: int = 0
    leader_epochs: Mapping[TopicPartition, int] = {}
    api_key: ClassVar[int] = LIST_OFFSETS

    def encode(self, version: int) -> bytes:
        head = INT32.pack(-1)  # replica_id
        if version >= 2:
            head += INT8.pack(self.isolation)
        epochs = self.leader_epochs
        after = INT32.pack(1) if version == 0 else b""  # max_num_offsets
        encoding = encoding_of(LIST_OFFSETS, version)
        after += encoding.tags
        partitions = encoding.by_topic(
            (where, (INT32.pack(epochs.get(where, -1)) if version >= 4 else b"") + INT64.pack(timestamp) + after)
            for where, timestamp in self.partitions.items()
        )
        return head + partitions + encoding.tags

    def decode(self, version: int, body: memoryview) -> dict[TopicPartition, ListedOffset]:
        with response(LIST_OFFSETS, version, body) as reader:
            if version >= 2:
                reader.int32()  # throttle_time_ms
            return {where: _listed(reader, version) for where in reader.partitions()}


def _listed(reader: Reader, version: int) -> ListedOffset:
    error = reader.int16()
    if version == 0:
        offsets = reader.int64s()
        return ListedOffset(error, offsets[0] if offsets else -1, -1)
    timestamp = reader.int64()
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 4 else -1
    reader.tags()
    return ListedOffset(error, offset, timestamp, leader_epoch)


# OffsetForLeaderEpoch: where the records of a leader epoch end in the log. An epoch counts the elections of a
# partition's leader. Two logs have the same records up to an offset if the record before it is of the same epoch in
# both (KIP-101). Brokers know the request from 0.11 on.

CONSUMERS_MAY_ASK: Final = 3
"""From this version on (Kafka 2.3) the right Describe on the topic is enough (KIP-320)."""

NOT_PERMITTED: Final[Mapping[int, str]] = {
    TOPIC_AUTHORIZATION_FAILED: "Describe on the topic",
    CLUSTER_AUTHORIZATION_FAILED: "ClusterAction on the cluster (brokers before 2.3)",
}
"""Errors of a client that may not ask, and the right that it lacks."""


class AskedEpoch(NamedTuple):
    """The epoch that is asked about, and the one in which the broker is taken to lead (version 2 on, -1: unknown)."""

    epoch: int
    leader_epoch: int = -1


class EpochEnd(msgspec.Struct, frozen=True):
    """As `kafka.server.epoch.LeaderEpochFileCache.endOffsetFor` (3.9) answers.

    Of the latest epoch the end is that of the log. Of one before the log's first it is where that begins.
    """

    error: int
    epoch: int
    """The largest one in the log that is not above the one asked about; -1 if there is none, and in version 0."""
    end_offset: int
    """Where it ends; -1 if the log has no epoch as large as the one asked about, or none at all. Version 0 also has -1
    for epochs before the log's first one."""


class OffsetForLeaderEpochRequest(msgspec.Struct, frozen=True):
    """Versions 0 to 2 need the right ClusterAction, later ones only Describe on the topic (KIP-320)."""

    partitions: Mapping[TopicPartition, AskedEpoch]
    api_key: ClassVar[int] = OFFSET_FOR_LEADER_EPOCH

    def encode(self, version: int) -> bytes:
        encoding = encoding_of(OFFSET_FOR_LEADER_EPOCH, version)
        head = INT32.pack(-1) if version >= 3 else b""  # replica_id: a consumer
        asked = encoding.by_topic(
            (where, (INT32.pack(leader) if version >= 2 else b"") + INT32.pack(epoch) + encoding.tags)
            for where, (epoch, leader) in self.partitions.items()
        )
        return head + asked + encoding.tags

    def decode(self, version: int, body: memoryview) -> dict[TopicPartition, EpochEnd]:
        with response(OFFSET_FOR_LEADER_EPOCH, version, body) as reader:
            if version >= 2:
                reader.int32()  # throttle_time_ms
            found: dict[TopicPartition, EpochEnd] = {}
            for _ in range(reader.count()):
                topic = reader.string()
                found |= (_end(reader, topic, version) for _ in range(reader.count()))
                reader.tags()
            return found


def _end(reader: Reader, topic: str, version: int) -> tuple[TopicPartition, EpochEnd]:
    error = reader.int16()
    where = TopicPartition(topic, reader.int32())
    epoch = reader.int32() if version >= 1 else -1
    end = EpochEnd(error, epoch, reader.int64())
    reader.tags()
    return where, end
