"""Which partitions each member would own if members joined: the assignor's result, not whether claims succeed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec

from kzconsumer.assignors.interface import AssignmentContext, Assignor
from kzconsumer.group.assignment import assignment
from kzconsumer.group.snapshot import GroupSnapshot
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.registration import Registration

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
        members=_members(present.members, joined.members, owners, now, then),
        partitions=partitions,
        idle_streams=tuple(str(each) for each in _threads(context) if each not in busy),
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


def _members(
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


def _threads(context: AssignmentContext) -> list[ConsumerThreadId]:
    return sorted({thread for threads in context.threads.values() for thread in threads})


def _consumer(thread: str) -> str:
    return thread.rpartition("-")[0]
