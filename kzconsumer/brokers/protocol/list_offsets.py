"""ListOffsets: where a partition's log begins and ends, and the first offset at or after a time.

Owns no state. Only the partition's leader answers. An offset is the next record to be read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from kzconsumer.brokers.protocol.primitives import INT32, Reader, reading, string
from kzconsumer.brokers.protocol.versions import LIST_OFFSETS
from kzconsumer.model import TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2

_V0: Final = struct.Struct(">iqi")
_V1: Final = struct.Struct(">iq")
_V4: Final = struct.Struct(">iiq")


class ListedOffset(msgspec.Struct, frozen=True):
    error: int
    offset: int
    """-1 when there is none: an error, or no record at or after the time asked for."""
    timestamp: int
    """Milliseconds, of the record at `offset`; -1 for LATEST and EARLIEST, and always in version 0."""


class ListOffsetsRequest(msgspec.Struct, frozen=True):
    """`partitions` says for each LATEST, EARLIEST or a time in ms since 1970.

    With a time, version 0 (before Kafka 0.10.1) finds no record but the base offset of the newest segment that was last
    written before that time. With `isolation` 1 (read committed) LATEST is the last stable offset, from version 2 on.
    """

    partitions: Mapping[TopicPartition, int]
    isolation: int = 0
    api_key: ClassVar[int] = LIST_OFFSETS

    def encode(self, version: int) -> bytes:
        topics: dict[str, list[bytes]] = {}
        for (topic, partition), timestamp in self.partitions.items():
            if version == 0:
                packed = _V0.pack(partition, timestamp, 1)
            elif version < 4:
                packed = _V1.pack(partition, timestamp)
            else:
                packed = _V4.pack(partition, -1, timestamp)
            topics.setdefault(topic, []).append(packed)
        parts = [INT32.pack(-1)]  # replica_id
        if version >= 2:
            parts.append(bytes((self.isolation,)))
        parts.append(INT32.pack(len(topics)))
        for topic, partitions in topics.items():
            parts += (string(topic), INT32.pack(len(partitions)), *partitions)
        return b"".join(parts)

    def decode(self, version: int, body: memoryview) -> dict[TopicPartition, ListedOffset]:
        with reading("ListOffsets", version):
            reader = Reader(body)
            if version >= 2:
                reader.int32()  # throttle_time_ms
            listed = {}
            for _ in range(reader.count()):
                topic = reader.string()
                for _ in range(reader.count()):
                    where = TopicPartition(topic, reader.int32())
                    listed[where] = _listed(reader, version)
            reader.end()
            return listed


def _listed(reader: Reader, version: int) -> ListedOffset:
    error = reader.int16()
    if version == 0:
        offsets = reader.int64s()
        return ListedOffset(error, offsets[0] if offsets else -1, -1)
    timestamp = reader.int64()
    offset = reader.int64()
    if version >= 4:
        reader.int32()  # leader_epoch
    return ListedOffset(error, offset, timestamp)
