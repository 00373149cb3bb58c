"""Groups in the brokers: FindCoordinator, OffsetFetch, OffsetCommit, ListGroups, and two requests for their members.

An offset is the next to be read. Any broker from 0.8.2 on knows FindCoordinator (as ConsumerMetadata there); the first
one in a cluster makes the brokers create the offsets topic, until then the error is COORDINATOR_NOT_AVAILABLE. Version
0 of OffsetFetch and OffsetCommit differs: any broker accepts it, and uses the offsets in ZooKeeper.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import ClassVar, Final

import msgspec

from kzconsumer.brokers.protocol.error_codes import GROUP_ID_NOT_FOUND
from kzconsumer.brokers.protocol.primitives import COMPACT, INT8, INT32, INT64, PLAIN, Reader
from kzconsumer.brokers.protocol.versions import (
    CONSUMER_GROUP_DESCRIBE,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    encoding_of,
    response,
)
from kzconsumer.errors import ProtocolError
from kzconsumer.model import Broker, TopicPartition

_GROUP: Final = 0
"""Type of the key; 1 asks for the coordinator of a transactional id."""


class Coordinator(msgspec.Struct, frozen=True):
    error: int
    broker: Broker
    """Id -1 with an error."""
    message: str | None
    """The broker's text for the error; None, "" or "NONE" without one."""


class FindCoordinatorRequest(msgspec.Struct, frozen=True):
    group: str
    api_key: ClassVar[int] = FIND_COORDINATOR

    def encode(self, version: int) -> bytes:
        encoding = encoding_of(FIND_COORDINATOR, version)
        group = encoding.string(self.group)
        if version == 0:
            return group
        key_type = INT8.pack(_GROUP)
        if version < 4:
            return group + key_type + encoding.tags
        return key_type + encoding.array(1) + group + encoding.tags

    def decode(self, version: int, body: memoryview) -> Coordinator:
        with response(FIND_COORDINATOR, version, body) as reader:
            if version >= 1:
                reader.int32()  # throttle_time_ms
            if version >= 4:
                found = dict(_of_key(reader) for _ in range(reader.count()))
                if self.group not in found:
                    raise ProtocolError(f"no coordinator of group {self.group!r} in it")
                return found[self.group]
            error = reader.int16()
            message = reader.nullable_string() if version >= 1 else None
            return Coordinator(error, _broker(reader), message)


def _of_key(reader: Reader) -> tuple[str, Coordinator]:
    key = reader.string()
    broker = _broker(reader)
    coordinator = Coordinator(reader.int16(), broker, reader.nullable_string())
    reader.tags()
    return key, coordinator


def _broker(reader: Reader) -> Broker:
    return Broker(reader.int32(), reader.string(), reader.int32())


class CoordinatorOffset(msgspec.Struct, frozen=True):
    error: int
    """Of a partition that has no offset: NONE, but UNKNOWN_TOPIC_OR_PARTITION in version 0, and always from 0.8.2."""
    offset: int
    """-1 if there is none."""
    metadata: str = ""
    leader_epoch: int = -1
    """Of the last record before `offset`; -1 before version 5 (Kafka 2.1), and if who stored it did not say."""


class StoredOffsets(msgspec.Struct, frozen=True):
    error: int
    """Of the whole request; 0 before version 2, where each partition has it."""
    offsets: dict[TopicPartition, CoordinatorOffset]


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
        with response(OFFSET_FETCH, version, body) as reader:
            if version >= 3:
                reader.int32()  # throttle_time_ms
            offsets = {where: _stored(reader, version) for where in reader.partitions()}
            return StoredOffsets(reader.int16() if version >= 2 else 0, offsets)


def _stored(reader: Reader, version: int) -> CoordinatorOffset:
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 5 else -1
    metadata = reader.nullable_string() or ""
    error = reader.int16()
    reader.tags()
    return CoordinatorOffset(error, offset, metadata, leader_epoch)


class OffsetCommitRequest(msgspec.Struct, frozen=True):
    """The commit of a consumer outside of a broker-coordinated group: generation -1, no member id.

    As by `kafka.consumer.ZookeeperConsumerConnector` (1.1.1): retention as configured in the broker. `metadata` is a
    text stored with an offset, `leader_epochs` has the epoch of the last record before it (version 6 on): the original
    leaves out both.
    """

    group: str
    offsets: Mapping[TopicPartition, int]
    metadata: Mapping[TopicPartition, str] = {}
    leader_epochs: Mapping[TopicPartition, int] = {}
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
        offsets = encoding.by_topic(
            (
                where,
                INT64.pack(offset)
                + self._after_offset(where, version)
                + encoding.string(self.metadata.get(where, ""))
                + encoding.tags,
            )
            for where, offset in self.offsets.items()
        )
        return b"".join((*head, offsets, encoding.tags))

    def _after_offset(self, where: TopicPartition, version: int) -> bytes:
        if version >= 6:
            return INT32.pack(self.leader_epochs.get(where, -1))
        return INT64.pack(-1) if version == 1 else b""  # commit_timestamp: now

    def decode(self, version: int, body: memoryview) -> dict[TopicPartition, int]:
        """The error code of each partition."""
        with response(OFFSET_COMMIT, version, body) as reader:
            if version >= 3:
                reader.int32()  # throttle_time_ms
            errors = {}
            for where in reader.partitions():
                errors[where] = reader.int16()
                reader.tags()
            return errors


# The groups that a broker coordinates, with their members. ConsumerGroupDescribe is for groups of the newer protocol
# (KIP-848, Kafka 4), which DescribeGroups does not know.

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


class CoordinatedMember(msgspec.Struct, frozen=True):
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
    members: tuple[CoordinatedMember, ...]

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


def _member(reader: Reader, version: int) -> CoordinatedMember:
    member = reader.string()
    if version >= 4:
        reader.nullable_string()  # group_instance_id
    client, host = reader.string(), reader.string()
    topics, partitions = _subscription(reader.data()), _assignment(reader.data())
    reader.tags()
    return CoordinatedMember(member, client, host, topics, partitions)


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


def _newer_member(reader: Reader) -> CoordinatedMember:
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
    return CoordinatedMember(member, client, host, topics, present)


def _newer_assignment(reader: Reader) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    for _ in range(reader.count()):
        reader.topic_id()
        topic = reader.string()
        found += [TopicPartition(topic, reader.int32()) for _ in range(reader.count())]
        reader.tags()
    reader.tags()
    return tuple(found)
