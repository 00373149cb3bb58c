"""OffsetFetch: a group's offsets as stored with its coordinator. An offset is the next record to be read.

Version 0 differs from the later ones: any broker accepts it, and reads the offsets from ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import msgspec

from kzconsumer.brokers.protocol.primitives import Reader, reading
from kzconsumer.brokers.protocol.versions import OFFSET_FETCH, encoding_of
from kzconsumer.model import TopicPartition


class StoredOffset(msgspec.Struct, frozen=True):
    error: int
    """Of a partition that has no offset: NONE, but UNKNOWN_TOPIC_OR_PARTITION in version 0, and always from 0.8.2."""
    offset: int
    """-1 if there is none."""
    metadata: str = ""


class StoredOffsets(msgspec.Struct, frozen=True):
    error: int
    """Of the whole request; 0 before version 2, where each partition has it."""
    offsets: dict[TopicPartition, StoredOffset]


class OffsetFetchRequest(msgspec.Struct, frozen=True):
    """`partitions` None asks for all that the group has, from version 2 on.

    Offsets that an open transaction will change are returned as they are (KIP-447: not `require_stable`).
    """

    group: str
    partitions: Collection[TopicPartition] | None
    api_key: ClassVar[int] = OFFSET_FETCH

    def encode(self, version: int) -> bytes:
        encoding = encoding_of(OFFSET_FETCH, version)
        if self.partitions is None:
            topics = encoding.array(-1)
        else:
            topics = encoding.by_topic((where, b"") for where in self.partitions)
        require_stable = b"\0" if version >= 7 else b""
        return encoding.string(self.group) + topics + require_stable + encoding.tags

    def decode(self, version: int, body: memoryview) -> StoredOffsets:
        with reading("OffsetFetch", version):
            reader = encoding_of(OFFSET_FETCH, version).reader(body)
            if version >= 3:
                reader.int32()  # throttle_time_ms
            offsets = {where: _stored(reader, version) for where in reader.partitions()}
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
