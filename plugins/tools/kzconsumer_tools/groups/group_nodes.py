"""The nodes of a group, decoded, and whether it has members; every unreadable or unexpected node becomes a finding."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import msgspec

from kzconsumer.display import plural, some
from kzconsumer.errors import GroupInUseError
from kzconsumer.lag.partition import Why
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.start_rules import resume
from kzconsumer.registry import claim_record, paths
from kzconsumer.registry.claim_record import (
    Blocked,
    BlockedBy,
    ClaimRecord,
    blocked_by,
    decode_claim_record,
    owning_member,
)
from kzconsumer.registry.group_records import Registration, decode_registration, streams_by_topic
from kzconsumer.registry.nodes import decode_offset, decode_topic, decode_topic_id
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import AclEntry, Create, Delete, Node, Operation
from kzconsumer_tools.node_changes import partition_of

OwnerKind = Literal["member", "unregistered", "other_session", "persistent"]
"""What an owner node names and who holds it: a member, with its own session; a thread that is not registered; a member,
but with another session; no session at all."""

FindingKind = Literal[
    "persistent_owner",
    "persistent_registration",
    "other_session_owner",
    "planned_range",
    "unknown_claim_record",
    "unknown_node",
    "unreadable_offset",
    "unreadable_registration",
    "unreadable_topic",
    "unregistered_owner",
    "unusable_pattern",
]

_HELD_BY: Mapping[BlockedBy, OwnerKind] = {
    BlockedBy.LIVE_MEMBER: "member",
    BlockedBy.UNREGISTERED: "unregistered",
    BlockedBy.PERSISTENT: "persistent",
}
_WRONG_OWNERS: Mapping[OwnerKind, tuple[FindingKind, str]] = {
    "unregistered": ("unregistered_owner", BlockedBy.UNREGISTERED.value),
    "other_session": ("other_session_owner", "held by another session than the member's, which has to expire"),
    "persistent": ("persistent_owner", BlockedBy.PERSISTENT.value),
}


class KnownTopic(msgspec.Struct, frozen=True):
    """A topic that exists. `partitions` ascend; `fault`: why they cannot be read from the topic's node.

    `incarnation`: None if brokers report another topic than those of that name that the group has consumed. `id`: in
    base64, empty if the topic has none. `hidden`: this user may not describe it, so whether it exists is not known.
    `identified` is False if it was read for no group: nothing says which topics of that name one has consumed.
    """

    partitions: tuple[int, ...]
    incarnation: int | None
    fault: str = ""
    id: str = ""
    hidden: bool = False
    identified: bool = True

    @property
    def described(self) -> bool:
        """Whether its partitions are known."""
        return not self.fault and not self.hidden


class GroupNodes(msgspec.Struct, frozen=True):
    """As read: registrations by consumer id, topics by name; owners, offsets and claims by path; the last run.

    `from_brokers`: the topics come from Metadata requests: the cluster is in KRaft mode, or migrates to it. `foreign`:
    names of the group's nodes that are neither the original consumer's nor ours, such as those of a Storm spout.
    `topics_known` is False if ZooKeeper has no node for topics: the cluster has left it, and has not been asked.
    """

    group: str
    registrations: Mapping[str, Node]
    owners: Mapping[str, Node]
    offsets: Mapping[str, Node]
    claims: Mapping[str, Node]
    all_topics: tuple[str, ...]
    topics: Mapping[str, KnownTopic]
    run: Node | None = None
    from_brokers: bool = False
    foreign: tuple[str, ...] = ()
    topics_known: bool = True


class NodeFinding(msgspec.Struct, frozen=True, order=True):
    """A node with a problem."""

    kind: FindingKind
    path: str
    reason: str


class PartitionOwner(msgspec.Struct, frozen=True):
    """The owner node's text, a thread `<consumer>-<n>`, and who holds the node. `consumer`: the registered member."""

    thread: str
    kind: OwnerKind
    consumer: str | None = None

    @property
    def whole(self) -> bool:
        """It names the member, not a thread: the member is a client without threads."""
        return self.thread == self.consumer


class GroupFacts(msgspec.Struct, frozen=True):
    """The decoded nodes. `streams`: consumer id -> topic -> number of streams; of a pattern, topics that exist.

    `offsets`: where a member begins, which is after the stored offset if another program moved that back behind what a
    replayable sink has committed. It has None for one that says that there is none, that is unreadable
    (`unreadable_offsets`), or that was stored for an earlier topic of that name (`earlier_offsets`).
    `unread_offsets`: why it is not known where a member begins; `offsets` has None for these, too.
    """

    members: Mapping[str, Registration]
    streams: Mapping[str, Mapping[str, int]]
    existing: frozenset[TopicPartition]
    owners: Mapping[TopicPartition, PartitionOwner]
    offsets: Mapping[TopicPartition, int | None]
    claimed: frozenset[TopicPartition]
    findings: tuple[NodeFinding, ...]
    unreadable_offsets: frozenset[TopicPartition]
    earlier_offsets: frozenset[TopicPartition]
    unreadable_topics: frozenset[str]
    topics_known: bool
    unread_offsets: Mapping[TopicPartition, Why] = {}

    def gone(self, partition: TopicPartition) -> bool:
        """Whether the cluster has no such partition. A topic that cannot be read proves nothing, nor does a cluster
        that has not been asked.
        """
        return self.topics_known and partition not in self.existing and partition.topic not in self.unreadable_topics

    @property
    def read(self) -> set[TopicPartition]:
        """The existing partitions of all topics that a member subscribes to, or that the group has nodes of.

        A group that has stopped has no subscription. Members of it read whole topics, so a partition without offset
        beside others with one is a partition that was not read yet.
        """
        topics = {topic for of_member in self.streams.values() for topic in of_member}
        topics.update(each.topic for each in (*self.owners, *self.offsets, *self.claimed))
        return {each for each in self.existing if each.topic in topics}


def facts(nodes: GroupNodes) -> GroupFacts:
    findings: list[NodeFinding] = []
    members = dict(_members(nodes, findings))
    return GroupFacts(
        members=members,
        streams=dict(_streams(nodes, members, findings)),
        existing=frozenset(_existing(nodes, findings)),
        owners=dict(_owners(nodes, findings)),
        offsets=dict(_offsets(nodes, findings)),
        claimed=frozenset(_claimed(nodes, findings)),
        findings=tuple(sorted(findings)),
        unreadable_offsets=frozenset(partition_of(each.path) for each in findings if each.kind == "unreadable_offset"),
        earlier_offsets=frozenset(
            each for each, _, _ in _by_partition(nodes.offsets, []) if is_of_earlier_topic(nodes, each)
        ),
        unreadable_topics=frozenset(name for name, topic in nodes.topics.items() if not topic.described),
        topics_known=nodes.topics_known,
    )


def topics_in(nodes: GroupNodes) -> set[str]:
    """Every topic that a member subscribes to or that the group has nodes of."""
    streams = dict(_streams(nodes, dict(_members(nodes, [])), []))
    leaves = (*nodes.owners, *nodes.offsets, *nodes.claims)
    return {topic for of_member in streams.values() for topic in of_member}.union(map(paths.topic_of, leaves))


def topic_of_node(node: Node) -> KnownTopic:
    try:
        return KnownTopic(decode_topic(node.data), node.stat.czxid, id=decode_topic_id(node.data))
    except ValueError as error:
        return KnownTopic((), node.stat.czxid, str(error))


def record_of(nodes: GroupNodes, partition: TopicPartition) -> ClaimRecord | None:
    """None if there is none, or only one of an unknown format."""
    claim = nodes.claims.get(GroupPaths(nodes.group).claim_record(partition))
    try:
        return decode_claim_record(claim.data) if claim is not None else None
    except ValueError:
        return None


def is_of_earlier_topic(nodes: GroupNodes, partition: TopicPartition) -> bool:
    """Whether the stored offset is of an earlier topic of that name: a member of ours does not use it.

    The rules are those of a claim (`registry.claim_transactions`). Of a topic whose identity is not known nothing is
    said, nor of a partition that does not exist.
    """
    node, topic = nodes.offsets.get(GroupPaths(nodes.group).offset(partition)), _identified(nodes, partition)
    if node is None or topic is None:
        return False
    if topic.incarnation is None:
        return True
    return claim_record.is_of_earlier_topic(node, record_of(nodes, partition), topic.incarnation)


def has_earlier_record(nodes: GroupNodes, partition: TopicPartition) -> bool:
    """Whether the claim record is of an earlier topic of that name, as the plan and the mark in it. See above."""
    record, topic = record_of(nodes, partition), _identified(nodes, partition)
    if record is None or topic is None:
        return False
    return topic.incarnation is None or record.incarnation != f"{topic.incarnation:#x}"


def _identified(nodes: GroupNodes, partition: TopicPartition) -> KnownTopic | None:
    """The partition's topic, if it is known which one of that name it is."""
    topic = nodes.topics.get(partition.topic)
    return topic if topic is not None and topic.identified and partition.partition in topic.partitions else None


def owner_of(node: Node) -> str:
    """An owner node's text; bytes that are not UTF-8 are replaced."""
    return node.data.decode("utf-8", "replace")


def _members(nodes: GroupNodes, findings: list[NodeFinding]) -> Iterator[tuple[str, Registration]]:
    for consumer, node in nodes.registrations.items():
        path = GroupPaths(nodes.group).member(consumer)
        if node.stat.ephemeral_owner == 0:
            findings.append(NodeFinding("persistent_registration", path, BlockedBy.PERSISTENT.value))
        try:
            yield consumer, decode_registration(node.data)
        except ValueError as error:
            findings.append(NodeFinding("unreadable_registration", path, str(error)))


def _streams(
    nodes: GroupNodes, members: Mapping[str, Registration], findings: list[NodeFinding]
) -> Iterator[tuple[str, Mapping[str, int]]]:
    for consumer, member in members.items():
        try:
            yield consumer, streams_by_topic(member, nodes.all_topics)
        except ValueError as error:
            findings.append(NodeFinding("unusable_pattern", GroupPaths(nodes.group).member(consumer), str(error)))


def _existing(nodes: GroupNodes, findings: list[NodeFinding]) -> Iterator[TopicPartition]:
    for name, topic in nodes.topics.items():
        yield from [TopicPartition(name, number) for number in topic.partitions]
        if topic.fault:
            findings.append(NodeFinding("unreadable_topic", paths.topic(name), topic.fault))


def _owners(nodes: GroupNodes, findings: list[NodeFinding]) -> Iterator[tuple[TopicPartition, PartitionOwner]]:
    for partition, path, node in _by_partition(nodes.owners, findings):
        text = owner_of(node)
        owner = PartitionOwner(text, _held_by(nodes, path, node), owning_member(text, nodes.registrations))
        if owner.kind in _WRONG_OWNERS:
            kind, reason = _WRONG_OWNERS[owner.kind]
            findings.append(NodeFinding(kind, path, f"{reason} (it names {owner.thread!r})"))
        yield partition, owner


def _held_by(nodes: GroupNodes, path: str, node: Node) -> OwnerKind:
    holder = node.stat.ephemeral_owner
    kind = _HELD_BY[blocked_by(Blocked(path, owner_of(node), holder), nodes.registrations)]
    consumer = owning_member(owner_of(node), nodes.registrations)
    if kind == "member" and consumer is not None:
        return "member" if nodes.registrations[consumer].stat.ephemeral_owner == holder else "other_session"
    return kind


def _offsets(nodes: GroupNodes, findings: list[NodeFinding]) -> Iterator[tuple[TopicPartition, int | None]]:
    for partition, path, node in _by_partition(nodes.offsets, findings):
        offset = None
        try:
            offset = decode_offset(node.data)
        except ValueError as error:
            findings.append(NodeFinding("unreadable_offset", path, str(error)))
        yield partition, None if is_of_earlier_topic(nodes, partition) else resume(offset, _mark(nodes, partition))
    for partition, _, _ in _by_partition(nodes.claims, []):
        mark = _mark(nodes, partition)
        if mark is not None and GroupPaths(nodes.group).offset(partition) not in nodes.offsets:
            yield partition, mark


def _mark(nodes: GroupNodes, partition: TopicPartition) -> int | None:
    """Up to where the destination of a replayable sink has the present topic: a member begins at no earlier offset."""
    record, topic = record_of(nodes, partition), nodes.topics.get(partition.topic)
    if record is None or topic is None or topic.incarnation is None or partition.partition not in topic.partitions:
        return None
    return record.committed_until if record.incarnation == f"{topic.incarnation:#x}" else None


def _claimed(nodes: GroupNodes, findings: list[NodeFinding]) -> Iterator[TopicPartition]:
    for partition, path, node in _by_partition(nodes.claims, findings):
        try:
            record = decode_claim_record(node.data)
        except ValueError as error:
            findings.append(NodeFinding("unknown_claim_record", path, str(error)))
        else:
            if (plan := record.plan) is not None and GroupPaths(nodes.group).owner(partition) not in nodes.owners:
                waiting = f"offsets {plan.first} to {plan.until} are planned and not committed"
                reason = f"{waiting}: the next owner with the destination {plan.fingerprint} writes them first"
                findings.append(NodeFinding("planned_range", path, reason))
        yield partition


def _by_partition(
    leaves: Mapping[str, Node], findings: list[NodeFinding]
) -> Iterator[tuple[TopicPartition, str, Node]]:
    for path, node in leaves.items():
        try:
            yield partition_of(path), path, node
        except ValueError as error:
            findings.append(NodeFinding("unknown_node", path, str(error)))


# It is checked that a group has no members before an operator changes what only then may be changed.
# `group_reader.apply_changes` proves the same in each of its transactions.

_SHOWN = 3


def members_present(nodes: GroupNodes) -> str | None:
    """Why the group must not be changed, as the rest of a sentence about it; None if it has no members.

    An ephemeral owner node counts even without a registration: its session may still store offsets. A persistent owner
    node blocks every member; `groups clean` removes it.
    """
    if nodes.registrations:
        return f"has {listed(nodes.registrations)}"
    owners = sorted({owner_of(node) for node in nodes.owners.values() if node.stat.ephemeral_owner})
    if owners:
        return f"has owner nodes of {', '.join(owners[:_SHOWN])}, not registered but alive: the session has to expire"
    if nodes.owners:
        return f"has owner nodes that no session holds ({min(nodes.owners)}): `kzconsumer groups clean` removes them"
    return None


def listed(members: Collection[str]) -> str:
    """The number of members, some of their ids, and what to do about them; there is at least one."""
    names = sorted(members)
    them = "them" if names[1:] else "it"
    return f"{plural(len(names), 'member')} ({some(names, _SHOWN)}): stop {them} first"


def require_no_members(nodes: GroupNodes) -> None:
    """Raises GroupInUseError if the group has members."""
    if (reason := members_present(nodes)) is not None:
        raise GroupInUseError(f"group {nodes.group} {reason}; nothing was changed")


def proof(containers: Mapping[str, tuple[AclEntry, ...] | None]) -> list[Operation]:
    """Operations that change nothing, but make a transaction fail if a node has children or was created meanwhile.

    `containers`: `ids` and topics' owner containers -> their ACL, which they keep; None if they did not exist. A server
    deletes no node that has children, and no other operation depends on them: creating or deleting children does not
    change a node's version.
    """
    operations: list[Operation] = []
    for path, acl in containers.items():
        make, remove = Create(path, b"", acl=acl or ()), Delete(path, -1)
        operations += [make, remove] if acl is None else [remove, make]
    return operations
