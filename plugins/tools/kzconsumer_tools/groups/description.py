"""A group as ZooKeeper has it: its members, its partitions and its problems; the fields of the JSON (docs/groups.md).

Ownership is what the owner nodes say, not what an assignor computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from kzconsumer.lag.findings import Verdict
from kzconsumer.model import ConsumerThreadId
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.registration import has_wildcard
from kzconsumer.zookeeper.operations import Node
from kzconsumer_tools.groups.diagnosis import Examined, Problem
from kzconsumer_tools.groups.nodes import GroupFacts, GroupNodes, OwnerKind, topics_in


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
    """`owner` is the owner node's text, `stored` the offset of the next record to be read; None if there is none.

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
    """Those that a member subscribes to, and those that the group has nodes of."""
    subscribed = {topic for topics in known.streams.values() for topic in topics}
    wanted = {partition for partition in known.existing if partition.topic in subscribed}
    for partition in sorted(wanted.union(known.owners, known.offsets, known.claimed)):
        owner = known.owners.get(partition)
        node = nodes.owners.get(GroupPaths(nodes.group).owner(partition))
        yield DescribedPartition(
            topic=partition.topic,
            partition=partition.partition,
            exists=partition in known.existing,
            subscribed=partition.topic in subscribed,
            owner=owner.thread if owner else None,
            owner_kind=owner.kind if owner else None,
            owned_since=_time(node) if node is not None else None,
            stored=known.offsets.get(partition),
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
