"""The group as read for one rebalance: members with their threads, and partitions."""

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
