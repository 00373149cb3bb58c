"""Metadata: where the brokers listen, which partitions topics have and who leads them.

From version 4 (0.11) on the request says that a missing topic is not to be created; older brokers with
`auto.create.topics.enable` create every topic that is named.
"""

from __future__ import annotations

import struct
from typing import ClassVar

import msgspec

from kzconsumer.brokers.protocol.primitives import Reader
from kzconsumer.brokers.protocol.versions import METADATA, encoding_of, response
from kzconsumer.model import Broker

_PARTITION, _PARTITION_WITH_EPOCH = struct.Struct(">hii"), struct.Struct(">hiii")


class PartitionMetadata(msgspec.Struct, frozen=True):
    error: int
    leader: int
    """Broker id; -1 for none."""
    leader_epoch: int
    """-1 before version 7 (Kafka 2.1)."""
    replicas: tuple[int, ...] = ()
    """The preferred leader first; these and the in-sync ones if they were asked for."""
    isr: tuple[int, ...] = ()


class TopicMetadata(msgspec.Struct, frozen=True):
    error: int
    partitions: dict[int, PartitionMetadata]
    id: str = ""
    """In base64; empty before version 10, and if brokers have given it none (Kafka 2.8)."""


class MetadataResponse(msgspec.Struct, frozen=True):
    brokers: dict[int, Broker]
    topics: dict[str, TopicMetadata]
    cluster_id: str | None = None
    """None before version 2 (Kafka 0.10.1)."""
    racks: dict[int, str] = {}
    """Of those brokers that have one."""


class MetadataRequest(msgspec.Struct, frozen=True):
    """`topics` None asks for all topics, an empty tuple for the brokers only. `replicas`: also read these."""

    topics: tuple[str, ...] | None
    replicas: bool = False
    api_key: ClassVar[int] = METADATA

    def encode(self, version: int) -> bytes:
        code = encoding_of(METADATA, version)
        # Version 0 has no null: there the empty list means all topics, and `decode` drops what was not asked for.
        if self.topics is None:
            parts = [code.array(0 if version == 0 else -1)]
        else:
            no_id = bytes(16 if version >= 10 else 0)
            parts = [code.array(len(self.topics)), *(no_id + code.string(each) + code.tags for each in self.topics)]
        if version >= 4:
            parts.append(b"\0")  # allow_auto_topic_creation
        if version >= 8:
            parts.append(b"\0\0")  # include_cluster_authorized_operations, include_topic_authorized_operations
        parts.append(code.tags)
        return b"".join(parts)

    def decode(self, version: int, body: memoryview) -> MetadataResponse:
        with response(METADATA, version, body) as reader:
            if version >= 3:
                reader.int32()  # throttle_time_ms
            found = [_broker(reader, version) for _ in range(reader.count())]
            brokers = {broker.id: broker for broker, _ in found}
            racks = {broker.id: rack for broker, rack in found if rack is not None}
            cluster_id = reader.nullable_string() if version >= 2 else None
            if version >= 1:
                reader.int32()  # controller_id
            topics = dict(_topic(reader, version, self.replicas) for _ in range(reader.count()))
            if version >= 8:
                reader.int32()  # cluster_authorized_operations
            return MetadataResponse(brokers, {} if self.topics == () else topics, cluster_id, racks)


def _broker(reader: Reader, version: int) -> tuple[Broker, str | None]:
    broker = Broker(reader.int32(), reader.string(), reader.int32())
    rack = reader.nullable_string() if version >= 1 else None
    reader.tags()
    return broker, rack


def _topic(reader: Reader, version: int, replicas: bool) -> tuple[str, TopicMetadata]:
    error = reader.int16()
    name = reader.string()
    topic_id = reader.topic_id() if version >= 10 else ""
    if version >= 1:
        reader.int8()  # is_internal
    partitions = dict(_partition(reader, version, replicas) for _ in range(reader.count()))
    if version >= 8:
        reader.int32()  # topic_authorized_operations
    reader.tags()
    return name, TopicMetadata(error, partitions, topic_id)


def _partition(reader: Reader, version: int, wanted: bool) -> tuple[int, PartitionMetadata]:
    if version >= 7:
        error, partition, leader, leader_epoch = reader.fields(_PARTITION_WITH_EPOCH)
    else:
        (error, partition, leader), leader_epoch = reader.fields(_PARTITION), -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    if wanted:
        replicas, isr = reader.int32s(), reader.int32s()
    else:
        reader.skip_int32s()
        reader.skip_int32s()
    if version >= 5:
        reader.skip_int32s()  # offline_replicas
    reader.tags()
    return partition, PartitionMetadata(error, leader, leader_epoch, replicas, isr)
