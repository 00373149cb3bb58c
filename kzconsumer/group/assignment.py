"""The group as read for one rebalance, its assignment, and what a member has to change for it.

A change is to keep, to move between its own threads, to release, to claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kzconsumer.assignors import AssignmentContext, Assignor, subscribers
from kzconsumer.errors import PLUGIN_FAULTS, PluginError, raised
from kzconsumer.model import ConsumerThreadId, TopicPartition, thread_order
from kzconsumer.registry.group_records import Registration, streams_by_topic
from kzconsumer.registry.nodes import Topic


class AssignmentChange(msgspec.Struct, frozen=True):
    """`move` and `claim` have the thread that each partition goes to."""

    keep: tuple[TopicPartition, ...]
    move: Mapping[TopicPartition, ConsumerThreadId]
    release: tuple[TopicPartition, ...]
    claim: Mapping[TopicPartition, ConsumerThreadId]

    @property
    def empty(self) -> bool:
        return not (self.move or self.release or self.claim)


def assignment(
    plugin: str, assignor: Assignor, context: AssignmentContext
) -> Mapping[TopicPartition, ConsumerThreadId]:
    """The assignment of the whole group, as every member computes it; `plugin` names the assignor in errors.

    Raises PluginError if the assignor breaks its contract: with a wrong assignment two owners would fight for ever.
    """
    try:
        assigned = assignor(context)
    except PLUGIN_FAULTS as error:
        raise PluginError(f"{plugin} failed: {raised(error)}") from error
    if not isinstance(assigned, Mapping):
        raise PluginError(f"{plugin} returned a {type(assigned).__name__}, not a mapping")
    # ZooKeeper does not record which assignor a member uses. If two members compute different assignments, both claim a
    # partition; one of them finds the owner node of the other and waits for it, for ever. So all that can be checked
    # here is that our own assignor keeps its contract. A claim that stays blocked is reported (`Notices.blocked`), and
    # so are partitions of others that have another owner than is assigned, or none (`Misplaced`).
    subscribed = subscribers(context)
    numbers = {topic: frozenset(context.partitions.get(topic, ())) for topic in context.threads}
    invented = set()
    for partition, thread in assigned.items():
        if not isinstance(partition, TopicPartition) or not isinstance(thread, ConsumerThreadId):
            pair = f"{partition!r} to {thread!r}"
            raise PluginError(f"{plugin} maps {pair}: not a TopicPartition to a ConsumerThreadId")
        if thread not in subscribed.get(partition.topic, ()):
            raise PluginError(f"{plugin} gave {partition} to {thread}, which does not subscribe to it")
        if partition.partition not in numbers[partition.topic]:
            invented.add(partition)
    if not invented and len(assigned) == sum(map(len, numbers.values())):
        return assigned
    expected = {TopicPartition(topic, n) for topic in context.threads for n in context.partitions.get(topic, ())}
    wrong = {"left out": expected - assigned.keys(), "invented": invented}
    if faults := [f"{what} {', '.join(map(str, sorted(which)))}" for what, which in wrong.items() if which]:
        raise PluginError(f"{plugin} {' and '.join(faults)}")
    return assigned


def wanted_by(
    consumer: str, assigned: Mapping[TopicPartition, ConsumerThreadId]
) -> dict[TopicPartition, ConsumerThreadId]:
    """The partitions of one member."""
    return {partition: thread for partition, thread in assigned.items() if thread.consumer == consumer}


def compare(
    wanted: Mapping[TopicPartition, ConsumerThreadId],
    held: Mapping[TopicPartition, ConsumerThreadId],
    *,
    keep: bool = True,
) -> AssignmentChange:
    """The change from what is held to what is wanted.

    With `keep=False` any change releases and claims everything, as in the original consumer
    (`ZookeeperConsumerConnector.rebalance`, 0.8.2 to 1.1.1).
    """
    if not keep and wanted != held:
        return AssignmentChange(keep=(), move={}, release=tuple(held), claim=wanted)
    return AssignmentChange(
        keep=tuple(partition for partition, thread in held.items() if wanted.get(partition) == thread),
        move={p: thread for p, thread in wanted.items() if p in held and held[p] != thread},
        release=tuple(partition for partition in held if partition not in wanted),
        claim={partition: thread for partition, thread in wanted.items() if partition not in held},
    )


class GroupSnapshot(msgspec.Struct, frozen=True):
    """Members by consumer id, and the topics that exist among those they subscribe to."""

    members: Mapping[str, Registration]
    all_topics: tuple[str, ...]
    topics: Mapping[str, Topic]

    def context(self) -> AssignmentContext:
        """The input of every member's assignor. Raises ValueError for an invalid pattern."""
        asking: dict[str, list[tuple[str, int]]] = {}
        for consumer, registration in self.members.items():
            for topic, streams in streams_by_topic(registration, self.all_topics).items():
                asking.setdefault(topic, []).append((consumer, streams))
        # A list has the same threads on all its topics: they are made once, not streams times topics.
        threads = {members: _threads(members) for members in {tuple(members) for members in asking.values()}}
        return AssignmentContext(
            threads={topic: threads[tuple(members)] for topic, members in sorted(asking.items())},
            partitions={
                topic: self.topics[topic].partitions if topic in self.topics else () for topic in sorted(asking)
            },
        )


def _threads(asking: Iterable[tuple[str, int]]) -> tuple[ConsumerThreadId, ...]:
    made = (ConsumerThreadId(consumer, number) for consumer, streams in asking for number in range(streams))
    return tuple(sorted(made, key=thread_order))
