"""ListGroups, DescribeGroups and ConsumerGroupDescribe: the groups that a broker coordinates, with their members.

The last one is for groups of the newer protocol (KIP-848, Kafka 4), which DescribeGroups does not know.
"""

from __future__ import annotations

import struct
from typing import ClassVar

import msgspec

from kzconsumer.brokers.protocol.error_codes import GROUP_ID_NOT_FOUND
from kzconsumer.brokers.protocol.primitives import PLAIN, Reader
from kzconsumer.brokers.protocol.versions import (
    CONSUMER_GROUP_DESCRIBE,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    encoding_of,
    response,
)
from kzconsumer.errors import ProtocolError
from kzconsumer.model import TopicPartition

_DEAD = "Dead"
"""The state of a group that does not exist, up to version 5 of DescribeGroups."""


class ListedGroup(msgspec.Struct, frozen=True):
    group: str
    protocol: str
    """Of consumers `consumer`; empty if the group never had members, as one whose application assigns partitions."""
    kind: str
    """`classic`, `consumer` (KIP-848), `share` or `streams`; empty before version 5 (Kafka 4)."""


class GroupListing(msgspec.Struct, frozen=True):
    error: int
    groups: tuple[ListedGroup, ...]


class ListGroupsRequest(msgspec.Struct, frozen=True):
    """All groups, in every state."""

    api_key: ClassVar[int] = LIST_GROUPS

    def encode(self, version: int) -> bytes:
        encoding = encoding_of(LIST_GROUPS, version)
        filters = encoding.array(0) * (version - 3) if version >= 4 else b""  # states_filter, types_filter
        return filters + encoding.tags

    def decode(self, version: int, body: memoryview) -> GroupListing:
        with response(LIST_GROUPS, version, body) as reader:
            if version >= 1:
                reader.int32()  # throttle_time_ms
            return GroupListing(reader.int16(), tuple(_listed(reader, version) for _ in range(reader.count())))


def _listed(reader: Reader, version: int) -> ListedGroup:
    group, protocol = reader.string(), reader.string()
    if version >= 4:
        reader.string()  # group_state
    kind = reader.string() if version >= 5 else ""
    reader.tags()
    return ListedGroup(group, protocol, kind)


class GroupMember(msgspec.Struct, frozen=True):
    """`topics`: subscribed to; `partitions`: assigned. Both are empty if the member's own text of them is malformed."""

    id: str
    client: str
    host: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]


class GroupState(msgspec.Struct, frozen=True):
    """`state`: `Stable`, `Empty`, `PreparingRebalance` and so on, as the broker writes it."""

    error: int
    state: str
    members: tuple[GroupMember, ...]

    @property
    def missing(self) -> bool:
        """No such group, or one of a protocol that was not asked about."""
        return self.state == _DEAD or self.error == GROUP_ID_NOT_FOUND


class DescribeGroupsRequest(msgspec.Struct, frozen=True):
    groups: tuple[str, ...]
    api_key: ClassVar[int] = DESCRIBE_GROUPS

    def encode(self, version: int) -> bytes:
        encoding = encoding_of(DESCRIBE_GROUPS, version)
        operations = b"\0" if version >= 3 else b""  # include_authorized_operations
        return b"".join(
            (encoding.array(len(self.groups)), *map(encoding.string, self.groups), operations, encoding.tags)
        )

    def decode(self, version: int, body: memoryview) -> dict[str, GroupState]:
        with response(DESCRIBE_GROUPS, version, body) as reader:
            if version >= 1:
                reader.int32()  # throttle_time_ms
            return dict(_described(reader, version) for _ in range(reader.count()))


def _described(reader: Reader, version: int) -> tuple[str, GroupState]:
    error, group, state = reader.int16(), reader.string(), reader.string()
    reader.string()  # protocol_type
    reader.string()  # protocol_data: the assignor
    members = tuple(_member(reader, version) for _ in range(reader.count()))
    if version >= 3:
        reader.int32()  # authorized_operations
    reader.tags()
    return group, GroupState(error, state, members)


def _member(reader: Reader, version: int) -> GroupMember:
    member = reader.string()
    if version >= 4:
        reader.nullable_string()  # group_instance_id
    client, host = reader.string(), reader.string()
    topics, partitions = _subscription(reader.data()), _assignment(reader.data())
    reader.tags()
    return GroupMember(member, client, host, topics, partitions)


def _subscription(data: bytes) -> tuple[str, ...]:
    """The topics of Kafka's ConsumerProtocolSubscription, of any version."""
    reader = PLAIN.reader(memoryview(data))
    try:
        reader.int16()  # version
        return tuple([reader.string() for _ in range(reader.count())])
    except (struct.error, UnicodeDecodeError, ProtocolError):
        return ()


def _assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of Kafka's ConsumerProtocolAssignment, of any version."""
    reader = PLAIN.reader(memoryview(data))
    try:
        reader.int16()  # version
        return tuple(reader.partitions())
    except (struct.error, UnicodeDecodeError, ProtocolError):
        return ()


class ConsumerGroupDescribeRequest(msgspec.Struct, frozen=True):
    groups: tuple[str, ...]
    api_key: ClassVar[int] = CONSUMER_GROUP_DESCRIBE

    def encode(self, version: int) -> bytes:
        encoding = encoding_of(CONSUMER_GROUP_DESCRIBE, version)
        operations = b"\0"  # include_authorized_operations
        return b"".join(
            (encoding.array(len(self.groups)), *map(encoding.string, self.groups), operations, encoding.tags)
        )

    def decode(self, version: int, body: memoryview) -> dict[str, GroupState]:
        with response(CONSUMER_GROUP_DESCRIBE, version, body) as reader:
            reader.int32()  # throttle_time_ms
            return dict(_newer_group(reader) for _ in range(reader.count()))


def _newer_group(reader: Reader) -> tuple[str, GroupState]:
    error = reader.int16()
    reader.nullable_string()  # error_message
    group, state = reader.string(), reader.string()
    reader.int32()  # group_epoch
    reader.int32()  # assignment_epoch
    reader.string()  # assignor_name
    members = tuple(_newer_member(reader) for _ in range(reader.count()))
    reader.int32()  # authorized_operations
    reader.tags()
    return group, GroupState(error, state, members)


def _newer_member(reader: Reader) -> GroupMember:
    member = reader.string()
    reader.nullable_string()  # instance_id
    reader.nullable_string()  # rack_id
    reader.int32()  # member_epoch
    client, host = reader.string(), reader.string()
    topics = tuple(reader.string() for _ in range(reader.count()))
    reader.nullable_string()  # subscribed_topic_regex
    present = _newer_assignment(reader)
    _newer_assignment(reader)  # target_assignment
    reader.tags()
    return GroupMember(member, client, host, topics, present)


def _newer_assignment(reader: Reader) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    for _ in range(reader.count()):
        reader.topic_id()
        topic = reader.string()
        found += [TopicPartition(topic, reader.int32()) for _ in range(reader.count())]
        reader.tags()
    reader.tags()
    return tuple(found)
