"""OffsetCommit: store a group's offsets with its coordinator. An offset is the next record to be read.

Version 0 differs from the later ones: any broker accepts it, and writes the offsets to ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from kzconsumer.brokers.protocol.primitives import COMPACT, INT32, INT64, reading
from kzconsumer.brokers.protocol.versions import OFFSET_COMMIT, encoding_of
from kzconsumer.model import TopicPartition


class OffsetCommitRequest(msgspec.Struct, frozen=True):
    """The commit of a consumer outside of a broker-coordinated group: generation -1, no member id.

    As by `kafka.consumer.ZookeeperConsumerConnector` (1.1.1): no leader epoch, retention as configured in the broker.
    `metadata` is a text stored with an offset, which the original leaves empty.
    """

    group: str
    offsets: Mapping[TopicPartition, int]
    metadata: Mapping[TopicPartition, str] = msgspec.field(default_factory=dict)
    api_key: ClassVar[int] = OFFSET_COMMIT

    def encode(self, version: int) -> bytes:
        encoding = encoding_of(OFFSET_COMMIT, version)
        head = [encoding.string(self.group)]
        if version >= 1:
            head += (INT32.pack(-1), encoding.string(""))  # generation_id, member_id
        if version >= 7:
            head.append(b"\0" if encoding is COMPACT else b"\xff\xff")  # group_instance_id: null
        if 2 <= version <= 4:
            head.append(INT64.pack(-1))  # retention_time_ms
        between = INT32.pack(-1) if version >= 6 else b""  # committed_leader_epoch
        if version == 1:
            between = INT64.pack(-1)  # commit_timestamp: now
        offsets = encoding.by_topic(
            (where, INT64.pack(offset) + between + encoding.string(self.metadata.get(where, "")) + encoding.tags)
            for where, offset in self.offsets.items()
        )
        return b"".join((*head, offsets, encoding.tags))

    def decode(self, version: int, body: memoryview) -> dict[TopicPartition, int]:
        """The error code of each partition."""
        with reading("OffsetCommit", version):
            reader = encoding_of(OFFSET_COMMIT, version).reader(body)
            if version >= 3:
                reader.int32()  # throttle_time_ms
            errors = {}
            for where in reader.partitions():
                errors[where] = reader.int16()
                reader.tags()
            reader.tags()
            reader.end()
            return errors
