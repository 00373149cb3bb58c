"""DescribeConfigs, ListPartitionReassignments and DescribeQuorum: what brokers tell of topics and controllers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from kzconsumer.brokers.protocol.primitives import INT32, Reader
from kzconsumer.brokers.protocol.versions import (
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    LIST_PARTITION_REASSIGNMENTS,
    encoding_of,
    response,
)
from kzconsumer.model import TopicPartition

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
