"""A group as ZooKeeper has it, the fields of the JSON (docs/groups.md), and as it would be if members joined.

Ownership is what the owner nodes say, not what an assignor computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from kzconsumer.assignors import AssignmentContext, Assignor
from kzconsumer.group.assignment import GroupSnapshot, assignment
from kzconsumer.lag.partition import Reason, Why
from kzconsumer.lag.totals import Verdict
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.group_records import Registration, has_wildcard
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Node
from kzconsumer_tools.groups.advice import Examined, Problem
from kzconsumer_tools.groups.group_lag import position_of
from kzconsumer_tools.groups.group_nodes import GroupFacts, GroupNodes, OwnerKind, topics_in


class DescribedMember(msgspec.Struct, frozen=True):
    """`ours` is false for an original member; `streams` is its greatest number of streams of one topic. `since`: time
    of the registration; `session`: its ZooKeeper session as the server's log has it, None if no session holds it."""

    consumer: str
    ours: bool
    pattern: str
    subscription: Mapping[str, int]
    streams: int
    owns: int
    since: datetime
    session: str | None


class DescribedPartition(msgspec.Struct, frozen=True):
    """`owner` is the owner node's text, `stored` the offset of the next record to be read; `why` says why there is
    none, or none that is known.

    `exists`: the cluster has the partition; `subscribed`: a member with a readable registration subscribes to it;
    `owned_since`: the time of the claim, None without owner.
    """

    topic: str
    partition: int
    exists: bool
    subscribed: bool
    owner: str | None
    owner_kind: OwnerKind | None
    owned_since: datetime | None
    stored: int | None
    why: Reason | None

    @property
    def unowned(self) -> bool:
        return self.exists and self.subscribed and self.owner is None


class IdleStream(msgspec.Struct, frozen=True):
    """A stream without partitions: of one topic for a static subscription, else (None) of all that match."""

    thread: str
    topic: str | None


class GroupDescription(msgspec.Struct, frozen=True):
    """`unowned`: number of subscribed partitions without owner; `missing_topics`: subscribed to, or with nodes left.

    `health`, `findings` and `not_asked` are those of `groups doctor`, from one look.
    """

    group: str
    health: Verdict
    members: tuple[DescribedMember, ...]
    partitions: tuple[DescribedPartition, ...]
    unowned: int
    idle_streams: tuple[IdleStream, ...]
    missing_topics: tuple[str, ...]
    findings: tuple[Problem, ...]
    not_asked: tuple[str, ...]


def describe(nodes: GroupNodes, known: GroupFacts, examined: Examined) -> GroupDescription:
    """Describe the group; `known` are the facts of the nodes, or has other offsets if those are effective."""
    partitions = tuple(described_partitions(nodes, known))
    return GroupDescription(
        group=nodes.group,
        health=examined.health,
        members=_members(nodes, known),
        partitions=partitions,
        unowned=sum(each.unowned for each in partitions),
        idle_streams=tuple(_idle_streams(known)),
        missing_topics=tuple(sorted(topics_in(nodes).difference(nodes.topics))),
        findings=examined.findings,
        not_asked=examined.not_asked,
    )


def _members(nodes: GroupNodes, known: GroupFacts) -> tuple[DescribedMember, ...]:
    owns = Counter(owner.consumer for owner in known.owners.values())
    return tuple(
        DescribedMember(
            consumer=consumer,
            ours=member.ours,
            pattern=member.pattern,
            subscription=member.subscription,
            streams=max(member.subscription.values(), default=0),
            owns=owns[consumer],
            since=_time(nodes.registrations[consumer]),
            session=_session(nodes.registrations[consumer]),
        )
        for consumer, member in sorted(known.members.items())
    )


def _time(created: Node) -> datetime:
    return datetime.fromtimestamp(created.stat.ctime / 1000, UTC)


def _session(node: Node) -> str | None:
    """Unsigned hexadecimal, as ZooKeeper writes it."""
    return f"0x{node.stat.ephemeral_owner % (1 << 64):x}" if node.stat.ephemeral_owner else None


def described_partitions(nodes: GroupNodes, known: GroupFacts) -> Iterator[DescribedPartition]:
    """Those that the group reads, and those that it has nodes of."""
    subscribed = {topic for topics in known.streams.values() for topic in topics}
    for partition in sorted(known.read.union(known.owners, known.offsets, known.claimed)):
        owner = known.owners.get(partition)
        node = nodes.owners.get(GroupPaths(nodes.group).owner(partition))
        position = position_of(known, partition)
        yield DescribedPartition(
            topic=partition.topic,
            partition=partition.partition,
            exists=not known.gone(partition),
            subscribed=partition.topic in subscribed,
            owner=owner.thread if owner else None,
            owner_kind=owner.kind if owner else None,
            owned_since=_time(node) if node is not None else None,
            stored=position if isinstance(position, int) else None,
            why=position.reason if isinstance(position, Why) else None,
        )


def _idle_streams(known: GroupFacts) -> Iterator[IdleStream]:
    """The same streams that a member of ours logs as idle; a missing topic leaves no stream idle."""
    topics = {partition.topic for partition in known.existing}
    busy = {(partition.topic, owner.thread) for partition, owner in known.owners.items()}
    threads = {thread for _, thread in busy}
    for consumer, member in sorted(known.members.items()):
        if consumer in threads:
            continue  # its owner nodes do not name threads
        if has_wildcard(member):
            for thread in _threads(consumer, next(iter(member.subscription.values()))):
                if thread not in threads:
                    yield IdleStream(thread, None)
        else:
            for topic in sorted(topics.intersection(member.subscription)):
                for thread in _threads(consumer, member.subscription[topic]):
                    if (topic, thread) not in busy:
                        yield IdleStream(thread, topic)


def _threads(consumer: str, streams: int) -> list[str]:
    return [str(ConsumerThreadId(consumer, number)) for number in range(streams)]


# The preview: which partitions each member would own if members joined. It is the assignor's result, not whether claims
# succeed.

Change = Literal["stays", "stream", "moves", "claimed"]
"""Compared with the present owner: the same stream, another stream of the same member, another member; or no owner."""


class PreviewedMember(msgspec.Struct, frozen=True):
    """A member and its number of partitions: owned in ZooKeeper, assigned `now`, and assigned `then`, with all joined.

    `streams` is its greatest number of streams of one topic; `ours` is false for an original member.
    """

    consumer: str
    joins: bool
    ours: bool
    streams: int
    owns: int
    now: int
    then: int


class PreviewedPartition(msgspec.Struct, frozen=True):
    """Threads `<consumer>-<n>`: of the owner node, of the assignment now, of the assignment then.

    `owner` is None without an owner node, `now` if no present member subscribes to the topic.
    """

    topic: str
    partition: int
    owner: str | None
    now: str | None
    then: str
    change: Change


class AssignmentPreview(msgspec.Struct, frozen=True):
    """`as_assigned`: every present owner is the one that the assignor computes for the present members."""

    group: str
    assignor: str
    as_assigned: bool
    changes: Mapping[Change, int]
    members: tuple[PreviewedMember, ...]
    partitions: tuple[PreviewedPartition, ...]
    idle_streams: tuple[str, ...]
    missing_topics: tuple[str, ...]


def preview(
    group: str,
    assignor_name: str,
    assignor: Assignor,
    present: GroupSnapshot,
    joined: GroupSnapshot,
    owners: Mapping[TopicPartition, str],
) -> AssignmentPreview:
    """Compare the group `present` with `joined`, which has the members that would join too.

    Raises PluginError if the assignor breaks its contract, ValueError for a pattern that cannot be expanded.
    """
    plugin = f"assignor {assignor_name}"
    now = assignment(plugin, assignor, present.context())
    context = joined.context()
    then = assignment(plugin, assignor, context)
    partitions = tuple(
        _partition(each, owners.get(each), now.get(each), thread) for each, thread in sorted(then.items())
    )
    changes = Counter(each.change for each in partitions)
    busy = set(then.values())
    return AssignmentPreview(
        group=group,
        assignor=assignor_name,
        as_assigned=all(each.owner == each.now for each in partitions),
        changes={change: changes[change] for change in ("stays", "stream", "moves", "claimed")},
        members=_previewed_members(present.members, joined.members, owners, now, then),
        partitions=partitions,
        idle_streams=tuple(str(each) for each in _previewed_threads(context) if each not in busy),
        missing_topics=tuple(topic for topic in context.threads if topic not in joined.topics),
    )


def _partition(
    partition: TopicPartition, owner: str | None, now: ConsumerThreadId | None, then: ConsumerThreadId
) -> PreviewedPartition:
    change: Change
    if owner is None:
        change = "claimed"
    elif owner == str(then):
        change = "stays"
    else:
        change = "stream" if _consumer(owner) == then.consumer else "moves"
    return PreviewedPartition(*partition, owner, str(now) if now else None, str(then), change)


def _previewed_members(
    present: Mapping[str, Registration],
    joined: Mapping[str, Registration],
    owners: Mapping[TopicPartition, str],
    now: Mapping[TopicPartition, ConsumerThreadId],
    then: Mapping[TopicPartition, ConsumerThreadId],
) -> tuple[PreviewedMember, ...]:
    """Present members first, each part by id."""
    owned = Counter(map(_consumer, owners.values()))
    before = Counter(thread.consumer for thread in now.values())
    after = Counter(thread.consumer for thread in then.values())
    rows = [
        PreviewedMember(
            consumer=consumer,
            joins=registration is not present.get(consumer),
            ours=registration.ours,
            streams=max(registration.subscription.values(), default=0),
            owns=owned[consumer],
            now=before[consumer],
            then=after[consumer],
        )
        for consumer, registration in joined.items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.joins, row.consumer)))


def _previewed_threads(context: AssignmentContext) -> list[ConsumerThreadId]:
    return sorted({thread for threads in context.threads.values() for thread in threads})


def _consumer(thread: str) -> str:
    return thread.rpartition("-")[0]
