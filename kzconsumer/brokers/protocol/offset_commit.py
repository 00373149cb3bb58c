"""OffsetCommit: store a group's offsets with the brokers.

Owns no state. Only the group's coordinator answers. An offset is the next record to be read. Version 0 is another thing
than the later ones: with it the broker writes the offsets to ZooKeeper, and any broker does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from kzconsumer.brokers.protocol.primitives import COMPACT, INT32, INT64, PLAIN, reading
from kzconsumer.brokers.protocol.versions import OFFSET_COMMIT, is_flexible
from kzconsumer.model import TopicPartition


class OffsetCommitRequest(msgspec.Struct, frozen=True):
    """In the form of a consumer that is no member of a broker-coordinated group: generation -1, no member id.

    As `kafka.consumer.ZookeeperConsumerConnector` (1.1.1) commits: no leader epoch, kept for as long as the broker's
    settings say. `metadata` is a text beside an offset, which the original leaves empty.
    """

    group: str
    offsets: Mapping[TopicPartition, int]
    metadata: Mapping[TopicPartition, str] = msgspec.field(default_factory=dict)
    api_key: ClassVar[int] = OFFSET_COMMIT

    def encode(self, version: int) -> bytes:
        encoding = COMPACT if is_flexible(OFFSET_COMMIT, version) else PLAIN
        head = [encoding.string(self.group)]
        if version >= 1:
            head += (INT32.pack(-1), encoding.string(""))  # generation_id, member_id
        if version >= 7:
            head.append(b"\0" if encoding is COMPACT else b"\xff\xff")  # group_instance_id: null
        if 2 <= version <= 4:
            head.append(INT64.pack(-1))  # retention_time_ms
        between = b"".join(
            (
                INT32.pack(-1) if version >= 6 else b"",  # committed_leader_epoch
                INT64.pack(-1) if version == 1 else b"",  # commit_timestamp: now
            )
        )
        topics: dict[str, list[bytes]] = {}
        for where, offset in self.offsets.items():
            metadata = encoding.string(self.metadata.get(where, ""))
            topics.setdefault(where.topic, []).append(
                b"".join((INT32.pack(where.partition), INT64.pack(offset), between, metadata, encoding.tags))
            )
        head.append(encoding.array(len(topics)))
        for topic, partitions in topics.items():
            head += (encoding.string(topic), encoding.array(len(partitions)), *partitions, encoding.tags)
        head.append(encoding.tags)
        return b"".join(head)

    def decode(self, version: int, body: memoryview) -> dict[TopicPartition, int]:
        """The error code of each partition."""
        with reading("OffsetCommit", version):
            reader = (COMPACT if is_flexible(OFFSET_COMMIT, version) else PLAIN).reader(body)
            if version >= 3:
                reader.int32()  # throttle_time_ms
            errors = {}
            for _ in range(reader.count()):
                topic = reader.string()
                for _ in range(reader.count()):
                    where = TopicPartition(topic, reader.int32())
                    errors[where] = reader.int16()
                    reader.tags()
                reader.tags()
            reader.tags()
            reader.end()
            return errors
