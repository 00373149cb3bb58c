"""The stored offsets of a group with the data of their claim records, and which of two storages is effective."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.authority import Authority, Storage, WithBrokers
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_tools.groups.nodes import GroupNodes
from kzconsumer_tools.offsets.changes import offset_in
from kzconsumer_tools.offsets.origin import record_of
from kzconsumer_tools.paths import partition_of, partition_of_0_7


class StoredOffset(msgspec.Struct, frozen=True):
    """`stored` is where a member starts: the offset in `zookeeper` or `brokers`, by the group's storage; None if there
    is none, it is unreadable, or (`brokers`) was not read. `written`: time of the node's last change, ISO 8601 in UTC,
    None without a node. `epoch` (None without a claim record) counts resets; `plan` is a range in flight to a
    replayable sink, as [first, until]."""

    topic: str
    partition: int
    stored: int | None
    zookeeper: int | None
    brokers: int | None
    written: datetime | None
    epoch: int | None
    plan: tuple[int, int] | None


class OffsetOf07(msgspec.Struct, frozen=True):
    """An offset left by a consumer of Kafka 0.7; it is neither used nor written."""

    topic: str
    broker: int
    partition: int
    """Its number on that broker."""
    stored: int | None
    """None if it cannot be read."""


class GroupOffsets(msgspec.Struct, frozen=True):
    group: str
    storage: Storage
    partitions: tuple[StoredOffset, ...]
    left_by_0_7: tuple[OffsetOf07, ...] = ()


def stored_offsets(nodes: GroupNodes) -> dict[TopicPartition, bytes]:
    """The content of each partition's offset node, in order; nodes that belong to no partition are left out."""
    found = {}
    for path, node in nodes.offsets.items():
        try:
            found[partition_of(path)] = node.data
        except ValueError:
            continue  # reported by `groups doctor`
    return dict(sorted(found.items()))


def offsets_of_0_7(nodes: GroupNodes) -> dict[str, bytes]:
    """The content of each offset node in the format of Kafka 0.7, by path in order."""
    found = {}
    for path, node in nodes.offsets.items():
        try:
            found[partition_of_0_7(path)] = path, node.data
        except ValueError:
            continue
    return dict(found[each] for each in sorted(found))


def effective_offsets(
    nodes: GroupNodes,
    zookeeper: Mapping[TopicPartition, int | None],
    brokers: Mapping[TopicPartition, WithBrokers],
    storage: Storage,
) -> dict[TopicPartition, int | None]:
    """Where a member starts, for every partition with an offset in either storage."""
    found = {}
    for partition in sorted(zookeeper.keys() | brokers.keys()):
        record = record_of(nodes, partition)
        authority = Authority.seen(storage, record.fingerprint if record is not None else "")
        at = authority.begin(
            zookeeper.get(partition), brokers.get(partition), record.epoch if record is not None else 0
        )
        found[partition] = at
    return found


def group_offsets(
    nodes: GroupNodes, storage: Storage = "zookeeper", brokers: Mapping[TopicPartition, WithBrokers] | None = None
) -> GroupOffsets:
    zookeeper = {each: offset_in(data) for each, data in stored_offsets(nodes).items()}
    effective = effective_offsets(nodes, zookeeper, brokers or {}, storage)
    return GroupOffsets(
        nodes.group,
        storage,
        tuple(
            _stored(nodes, each, at, zookeeper.get(each), (brokers or {}).get(each)) for each, at in effective.items()
        ),
        tuple(OffsetOf07(*partition_of_0_7(path), offset_in(data)) for path, data in offsets_of_0_7(nodes).items()),
    )


def _stored(
    nodes: GroupNodes, partition: TopicPartition, stored: int | None, zookeeper: int | None, brokers: WithBrokers | None
) -> StoredOffset:
    record = record_of(nodes, partition)
    node = nodes.offsets.get(GroupPaths(nodes.group).offset(partition))
    written = datetime.fromtimestamp(node.stat.mtime / 1000, UTC) if node is not None else None
    return StoredOffset(
        topic=partition.topic,
        partition=partition.partition,
        stored=stored,
        zookeeper=zookeeper,
        brokers=brokers.offset if brokers is not None else None,
        written=written,
        epoch=record.epoch if record is not None else None,
        plan=(record.plan.first, record.plan.until) if record is not None and record.plan is not None else None,
    )
