"""Metadata: where the brokers listen, which partitions topics have and who leads them.

From version 4 (0.11) on the request says that a missing topic is not to be created; older brokers with
`auto.create.topics.enable` create every topic that is named.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from kzconsumer.brokers.protocol.primitives import INT32, Reader, string
from kzconsumer.brokers.protocol.versions import METADATA, response
from kzconsumer.model import Broker


class PartitionMetadata(msgspec.Struct, frozen=True):
    error: int
    leader: int
    """Broker id; -1 for none."""
    leader_epoch: int
    """-1 before version 7 (Kafka 2.1)."""


class TopicMetadata(msgspec.Struct, frozen=True):
    error: int
    partitions: dict[int, PartitionMetadata]


class MetadataResponse(msgspec.Struct, frozen=True):
    brokers: dict[int, Broker]
    topics: dict[str, TopicMetadata]


class MetadataRequest(msgspec.Struct, frozen=True):
    """`topics` None asks for all topics, an empty tuple for the brokers only."""

    topics: tuple[str, ...] | None
    api_key: ClassVar[int] = METADATA

    def encode(self, version: int) -> bytes:
        # Version 0 has no null: there the empty list means all topics, and `decode` drops what was not asked for.
        if self.topics is None:
            parts = [INT32.pack(0 if version == 0 else -1)]
        else:
            parts = [INT32.pack(len(self.topics)), *map(string, self.topics)]
        if version >= 4:
            parts.append(b"\0")  # allow_auto_topic_creation
        if version >= 8:
            parts.append(b"\0\0")  # include_cluster_authorized_operations, include_topic_authorized_operations
        return b"".join(parts)

    def decode(self, version: int, body: memoryview) -> MetadataResponse:
        with response(METADATA, version, body) as reader:
            if version >= 3:
                reader.int32()  # throttle_time_ms
            brokers = dict(_broker(reader, version) for _ in range(reader.count()))
            if version >= 2:
                reader.nullable_string()  # cluster_id
            if version >= 1:
                reader.int32()  # controller_id
            topics = dict(_topic(reader, version) for _ in range(reader.count()))
            if version >= 8:
                reader.int32()  # cluster_authorized_operations
            return MetadataResponse(brokers, {} if self.topics == () else topics)


def _broker(reader: Reader, version: int) -> tuple[int, Broker]:
    broker = Broker(reader.int32(), reader.string(), reader.int32())
    if version >= 1:
        reader.nullable_string()  # rack
    return broker.id, broker


def _topic(reader: Reader, version: int) -> tuple[str, TopicMetadata]:
    error = reader.int16()
    name = reader.string()
    if version >= 1:
        reader.int8()  # is_internal
    partitions = dict(_partition(reader, version) for _ in range(reader.count()))
    if version >= 8:
        reader.int32()  # topic_authorized_operations
    return name, TopicMetadata(error, partitions)


def _partition(reader: Reader, version: int) -> tuple[int, PartitionMetadata]:
    error = reader.int16()
    partition = reader.int32()
    leader = reader.int32()
    leader_epoch = reader.int32() if version >= 7 else -1
    reader.skip_int32s()  # replica_nodes
    reader.skip_int32s()  # isr_nodes
    if version >= 5:
        reader.skip_int32s()  # offline_replicas
    return partition, PartitionMetadata(error, leader, leader_epoch)
