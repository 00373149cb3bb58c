"""What brokers say of topics, brokers and controllers: Metadata, DescribeConfigs, reassignments, DescribeQuorum."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from kzconsumer.brokers.protocol.primitives import INT32, Reader
from kzconsumer.brokers.protocol.versions import (
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    LIST_PARTITION_REASSIGNMENTS,
    METADATA,
    encoding_of,
    response,
)
from kzconsumer.model import Broker, TopicPartition

_TOPIC: Final = 2
_OF_TOPIC: Final = 1
"""The source of a setting that is the topic's own (`DescribeConfigsResponse.ConfigSource`)."""
_TIMEOUT_MS: Final = 5000
_QUORUM: Final = TopicPartition("__cluster_metadata", 0)
"""The log whose leader is the active controller (KIP-500)."""


class TopicConfig(msgspec.Struct, frozen=True):
    """`settings`: the topic's own; the value of a sensitive one is empty."""

    error: int
    settings: Mapping[str, str]


class DescribeConfigsRequest(msgspec.Struct, frozen=True):
    """Of topics."""

    topics: tuple[str, ...]
    api_key: ClassVar[int] = DESCRIBE_CONFIGS

    def encode(self, version: int) -> bytes:
        code = encoding_of(DESCRIBE_CONFIGS, version)
        kind, every_key = bytes([_TOPIC]), code.array(-1)
        resources = [kind + code.string(topic) + every_key + code.tags for topic in self.topics]
        # include_synonyms, include_documentation
        return b"".join((code.array(len(resources)), *resources, b"\0\0", code.tags))

    def decode(self, version: int, body: memoryview) -> dict[str, TopicConfig]:
        with response(DESCRIBE_CONFIGS, version, body) as reader:
            reader.int32()  # throttle_time_ms
            return dict(_configured(reader) for _ in range(reader.count()))


def _configured(reader: Reader) -> tuple[str, TopicConfig]:
    error = reader.int16()
    reader.nullable_string()  # error_message
    reader.int8()  # resource_type
    topic = reader.string()
    entries = [_setting(reader) for _ in range(reader.count())]
    reader.tags()
    return topic, TopicConfig(error, {name: value for name, value, source in entries if source == _OF_TOPIC})


def _setting(reader: Reader) -> tuple[str, str, int]:
    name, value = reader.string(), reader.nullable_string() or ""
    reader.int8()  # read_only
    source = reader.int8()
    reader.int8()  # is_sensitive
    for _ in range(reader.count()):  # synonyms
        reader.string()
        reader.nullable_string()
        reader.int8()
        reader.tags()
    reader.int8()  # config_type
    reader.nullable_string()  # documentation
    reader.tags()
    return name, value, source


class Moving(msgspec.Struct, frozen=True):
    """The replicas that a reassignment adds and removes."""

    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Reassignments(msgspec.Struct, frozen=True):
    error: int
    partitions: Mapping[TopicPartition, Moving]


class ListPartitionReassignmentsRequest(msgspec.Struct, frozen=True):
    """Of all topics."""

    api_key: ClassVar[int] = LIST_PARTITION_REASSIGNMENTS

    def encode(self, version: int) -> bytes:
        code = encoding_of(LIST_PARTITION_REASSIGNMENTS, version)
        return INT32.pack(_TIMEOUT_MS) + code.array(-1) + code.tags

    def decode(self, version: int, body: memoryview) -> Reassignments:
        with response(LIST_PARTITION_REASSIGNMENTS, version, body) as reader:
            reader.int32()  # throttle_time_ms
            error = reader.int16()
            reader.nullable_string()  # error_message
            found = {}
            for partition in reader.partitions():
                reader.skip_int32s()  # replicas
                found[partition] = Moving(reader.int32s(), reader.int32s())
                reader.tags()
            return Reassignments(error, found)


class ActiveController(msgspec.Struct, frozen=True):
    """`node` is -1 if there is none, or none is known."""

    error: int
    node: int
    epoch: int


class DescribeQuorumRequest(msgspec.Struct, frozen=True):
    """Known by brokers in KRaft mode alone."""

    api_key: ClassVar[int] = DESCRIBE_QUORUM

    def encode(self, version: int) -> bytes:
        code = encoding_of(DESCRIBE_QUORUM, version)
        return code.by_topic([(_QUORUM, code.tags)]) + code.tags

    def decode(self, version: int, body: memoryview) -> ActiveController:
        with response(DESCRIBE_QUORUM, version, body) as reader:
            error = reader.int16()
            found = ActiveController(error, -1, -1)
            for partition in reader.partitions():
                of_partition, node, epoch = reader.int16(), reader.int32(), reader.int32()
                if partition == _QUORUM:
                    found = ActiveController(error or of_partition, node, epoch)
                reader.int64()  # high_watermark
                for _ in range(2):  # current_voters, observers
                    for _ in range(reader.count()):
                        reader.int32()
                        reader.int64()
                        reader.tags()
                reader.tags()
            return found


# Metadata: where the brokers listen, which partitions topics have and who leads them. From version 4 (0.11) on the
# request says that a missing topic is not to be created; older brokers with `auto.create.topics.enable` create every
# topic that is named.

WITH_CLUSTER_ID: Final = 2
"""The first version of Metadata that says of which cluster a broker is (0.10.1)."""

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
    """None before WITH_CLUSTER_ID."""
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
            racks = {broker.id: rack for broker, rack in found if rack is not None}
            cluster_id = reader.nullable_string() if version >= WITH_CLUSTER_ID else None
            brokers = {each.id: msgspec.structs.replace(each, cluster=cluster_id or "") for each, _ in found}
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
