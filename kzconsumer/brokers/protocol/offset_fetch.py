"""OffsetFetch: a group's offsets as stored with the brokers.

Owns no state. Only the group's coordinator answers. An offset is the next record to be read. Version 0 is another thing
than the later ones: with it the broker reads the offsets from ZooKeeper, and any broker does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import msgspec

from kzconsumer.brokers.protocol.primitives import COMPACT, INT32, PLAIN, Reader, reading
from kzconsumer.brokers.protocol.versions import OFFSET_FETCH, is_flexible
from kzconsumer.model import TopicPartition


class StoredOffset(msgspec.Struct, frozen=True):
    error: int
    """Of a partition that has no offset: NONE, but UNKNOWN_TOPIC_OR_PARTITION in version 0, and always from 0.8.2."""
    offset: int
    """-1 when there is none."""
    metadata: str = ""


class StoredOffsets(msgspec.Struct, frozen=True):
    error: int
    """Of the whole request; 0 before version 2, where each partition has it."""
    offsets: dict[TopicPartition, StoredOffset]


class OffsetFetchRequest(msgspec.Struct, frozen=True):
    """Offsets that an open transaction is about to change are given as they are (`require_stable` of KIP-447: no).

    `partitions` None asks for all that the group has, from version 2 on.
    """

    group: str
    partitions: Collection[TopicPartition] | None
    api_key: ClassVar[int] = OFFSET_FETCH

    def encode(self, version: int) -> bytes:
        encoding = COMPACT if is_flexible(OFFSET_FETCH, version) else PLAIN
        topics: dict[str, list[bytes]] = {}
        for topic, partition in self.partitions or ():
            topics.setdefault(topic, []).append(INT32.pack(partition))
        parts = [encoding.string(self.group), encoding.array(-1 if self.partitions is None else len(topics))]
        for topic, partitions in topics.items():
            parts += (encoding.string(topic), encoding.array(len(partitions)), *partitions, encoding.tags)
        if version >= 7:
            parts.append(b"\0")  # require_stable
        parts.append(encoding.tags)
        return b"".join(parts)

    def decode(self, version: int, body: memoryview) -> StoredOffsets:
        with reading("OffsetFetch", version):
            reader = (COMPACT if is_flexible(OFFSET_FETCH, version) else PLAIN).reader(body)
            if version >= 3:
                reader.int32()  # throttle_time_ms
            offsets = {}
            for _ in range(reader.count()):
                topic = reader.string()
                for _ in range(reader.count()):
                    where = TopicPartition(topic, reader.int32())
                    offsets[where] = _stored(reader, version)
                reader.tags()
            error = reader.int16() if version >= 2 else 0
            reader.tags()
            reader.end()
            return StoredOffsets(error, offsets)


def _stored(reader: Reader, version: int) -> StoredOffset:
    offset = reader.int64()
    if version >= 5:
        reader.int32()  # committed_leader_epoch
    metadata = reader.nullable_string() or ""
    error = reader.int16()
    reader.tags()
    return StoredOffset(error, offset, metadata)
