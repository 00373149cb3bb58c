"""The group as read just now: who is a member with which threads, and which partitions there are.

Pure and frozen; one per rebalance attempt. Built by the rebalancer from what the registries read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kzconsumer.assignors.interface import AssignmentContext
from kzconsumer.model import ConsumerThreadId, thread_order
from kzconsumer.registry.nodes import Topic
from kzconsumer.registry.registration import Registration, streams_by_topic


class GroupSnapshot(msgspec.Struct, frozen=True):
    """Members by consumer id, and the topics that exist among those they subscribe to."""

    members: Mapping[str, Registration]
    all_topics: tuple[str, ...]
    topics: Mapping[str, Topic]

    def context(self) -> AssignmentContext:
        """What every member's assignor computes from. Raises ValueError for a wildcard nobody can expand."""
        asking: dict[str, list[tuple[str, int]]] = {}
        for consumer, registration in self.members.items():
            for topic, streams in streams_by_topic(registration, self.all_topics).items():
                asking.setdefault(topic, []).append((consumer, streams))
        # A list has the same threads on all its topics: made once, or each would cost streams times topics.
        threads = {who: _threads(who) for who in {tuple(who) for who in asking.values()}}
        return AssignmentContext(
            threads={topic: threads[tuple(who)] for topic, who in sorted(asking.items())},
            partitions={
                topic: self.topics[topic].partitions if topic in self.topics else () for topic in sorted(asking)
            },
        )


def _threads(asking: Iterable[tuple[str, int]]) -> tuple[ConsumerThreadId, ...]:
    made = (ConsumerThreadId(consumer, number) for consumer, streams in asking for number in range(streams))
    return tuple(sorted(made, key=thread_order))
