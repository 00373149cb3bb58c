"""The stored offsets of a group, which of two storages counts, and which log they refer to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

import msgspec

from kzconsumer.display import plural, some
from kzconsumer.errors import NotDoneError
from kzconsumer.lag.partition import Reason, Why
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.start_rules import Authority, Storage, WithBrokers
from kzconsumer.registry.claim_record import ClaimRecord
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_tools.groups.group_lag import position_of
from kzconsumer_tools.groups.group_nodes import (
    GroupFacts,
    GroupNodes,
    KnownTopic,
    facts,
    is_of_earlier_topic,
    record_of,
)
from kzconsumer_tools.node_changes import partition_of, partition_of_0_7
from kzconsumer_tools.offsets.offset_changes import offset_in

# Which log a stored offset refers to.
#
# A number alone does not say: the topic may have been deleted and created again, or its log cut off and grown again.

EARLIER = "earlier"


class OffsetOrigin(msgspec.Struct, frozen=True):
    """`topic`: the id of the offset's topic, else its incarnation in hexadecimal, or "earlier" if only that is known;
    empty: unknown. `leader_epoch`: of the last record before the offset; -1: unknown."""

    topic: str = ""
    leader_epoch: int = -1

    def differs(self, present: KnownTopic) -> bool:
        """Whether the offset is of another topic than the present one of that name."""
        if not self.topic:
            return False
        known = (present.id, f"{present.incarnation:#x}" if present.incarnation is not None else "")
        return self.topic not in known


UNKNOWN = OffsetOrigin()


def origin_of(nodes: GroupNodes, partition: TopicPartition) -> OffsetOrigin:
    """Of a group's stored offset in ZooKeeper. The rules are those of a claim (`registry.claim_transactions`)."""
    node = nodes.offsets.get(GroupPaths(nodes.group).offset(partition))
    offset = offset_in(node.data) if node is not None else None
    if node is None or offset is None:
        return UNKNOWN
    record, topic = record_of(nodes, partition), nodes.topics.get(partition.topic)
    if topic is None:
        return OffsetOrigin(record.incarnation) if record is not None else UNKNOWN
    present = topic.incarnation
    if record is not None and present is not None and record.incarnation == f"{present:#x}":
        return OffsetOrigin(topic.id or record.incarnation, record.leader_epoch_before(offset))
    if present is None or is_of_earlier_topic(nodes, partition):
        return OffsetOrigin(record.incarnation if record is not None else EARLIER)
    return OffsetOrigin(topic.id or f"{present:#x}")


def require_present_topics(
    origins: Mapping[TopicPartition, OffsetOrigin], topics: Mapping[str, KnownTopic], way_out: str
) -> None:
    """Raises NotDoneError if offsets are of other topics than those that have the names now."""
    others = sorted(
        each for each, origin in origins.items() if each.topic in topics and origin.differs(topics[each.topic])
    )
    if others:
        raise NotDoneError(
            f"{plural(len(others), 'offset')} ({some(map(str, others))}) of another topic than the present one of that "
            f"name: it was deleted and created again, or this is another cluster; {way_out} (nothing was changed)"
        )


class StoredOffset(msgspec.Struct, frozen=True):
    """`stored` is where a member starts: the offset in `zookeeper` or `brokers`, by the group's storage. Each is None
    if there is none, or none that is known or counts; `why`, `why_zookeeper` and `why_brokers` are the reasons.
    With the storage "zookeeper" brokers are not asked: both fields of theirs are None.
    `written`: time of the node's last change, ISO 8601 in UTC, None without a node. `epoch` (None without a claim
    record) counts resets; `plan` is a range in flight to a replayable sink, as [first, until]."""

    topic: str
    partition: int
    stored: int | None
    why: Reason | None
    zookeeper: int | None
    why_zookeeper: Reason | None
    brokers: int | None
    why_brokers: Reason | None
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
    """Where a member starts, for every partition with an offset in either storage; `zookeeper`: those that a member
    uses (`GroupFacts.offsets`)."""
    found = {}
    for partition in sorted(zookeeper.keys() | brokers.keys()):
        record = record_of(nodes, partition)
        authority = Authority.seen(storage, record.fingerprint if record is not None else "")
        epoch = record.epoch + _begins_anew(record, nodes.topics.get(partition.topic)) if record is not None else 0
        found[partition] = authority.begin(zookeeper.get(partition), brokers.get(partition), epoch)
    return found


def _begins_anew(record: ClaimRecord, topic: KnownTopic | None) -> bool:
    """Whether the next claim begins a reset epoch, since the topic was created again."""
    return topic is not None and topic.identified and record.incarnation != f"{topic.incarnation or 0:#x}"


def counting(nodes: GroupNodes, storage: Storage, brokers: Mapping[TopicPartition, WithBrokers | Why]) -> GroupFacts:
    """The facts with the effective offsets. `brokers`: what the brokers have, or why that is not known."""
    known = facts(nodes)
    read = {each: at for each, at in brokers.items() if not isinstance(at, Why)}
    offsets = effective_offsets(nodes, known.offsets, read, storage)
    unread = {
        each: why
        for each, why in brokers.items()
        if isinstance(why, Why) and (known.offsets.get(each) is None or not _decides_alone(nodes, each, storage))
    }
    return msgspec.structs.replace(known, offsets=offsets | dict.fromkeys(unread, None), unread_offsets=unread)


def _decides_alone(nodes: GroupNodes, partition: TopicPartition, storage: Storage) -> bool:
    """Whether an offset in ZooKeeper counts whatever the brokers have."""
    record = record_of(nodes, partition)
    authority = Authority.seen(storage, record.fingerprint if record is not None else "")
    return authority in (Authority.ZOOKEEPER, Authority.ZOOKEEPER_FIRST)


def group_offsets(
    nodes: GroupNodes,
    storage: Storage = "zookeeper",
    brokers: Mapping[TopicPartition, WithBrokers | Why] = MappingProxyType({}),
) -> GroupOffsets:
    known = counting(nodes, storage, brokers)
    return GroupOffsets(
        nodes.group,
        storage,
        tuple(_stored(nodes, known, each, storage, brokers.get(each)) for each in sorted(known.offsets)),
        tuple(OffsetOf07(*partition_of_0_7(path), offset_in(data)) for path, data in offsets_of_0_7(nodes).items()),
    )


def _stored(
    nodes: GroupNodes,
    known: GroupFacts,
    partition: TopicPartition,
    storage: Storage,
    brokers: WithBrokers | Why | None,
) -> StoredOffset:
    record = record_of(nodes, partition)
    node = nodes.offsets.get(GroupPaths(nodes.group).offset(partition))
    written = datetime.fromtimestamp(node.stat.mtime / 1000, UTC) if node is not None else None
    position = position_of(known, partition)
    zookeeper = offset_in(node.data) if node is not None else None
    unreadable: Reason = "offset unreadable" if partition in known.unreadable_offsets else "never committed"
    without: Reason | None = "never committed" if storage != "zookeeper" else None
    return StoredOffset(
        topic=partition.topic,
        partition=partition.partition,
        stored=position if isinstance(position, int) else None,
        why=position.reason if isinstance(position, Why) else None,
        zookeeper=zookeeper,
        why_zookeeper=unreadable if zookeeper is None else None,
        brokers=brokers.offset if isinstance(brokers, WithBrokers) else None,
        why_brokers=brokers.reason if isinstance(brokers, Why) else without if brokers is None else None,
        written=written,
        epoch=record.epoch if record is not None else None,
        plan=(record.plan.first, record.plan.until) if record is not None and record.plan is not None else None,
    )
