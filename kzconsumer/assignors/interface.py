"""The interface of assignors: functions that assign the partitions of a group to the threads of its members.

Every member computes the assignment from its own snapshot of the group, so the same input must give the same output on
every machine: no clock, no randomness, no IO. Every partition goes to exactly one thread, which subscribes to its
topic. Entry points of the group `kzconsumer.assignors` name such a callable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from kzconsumer.model import ConsumerThreadId, TopicPartition


class AssignmentContext(msgspec.Struct, frozen=True):
    """The group as one member read it.

    `threads` maps each subscribed topic to its threads, `partitions` to its partition numbers (empty for a topic that
    does not exist). Both are sorted.
    """

    threads: Mapping[str, tuple[ConsumerThreadId, ...]]
    partitions: Mapping[str, tuple[int, ...]]


def subscribers(context: AssignmentContext) -> dict[str, frozenset[ConsumerThreadId]]:
    """Topic -> its threads, as a set. Topics with the same tuple of threads share one, as those of a list do."""
    sets: dict[int, frozenset[ConsumerThreadId]] = {}
    for threads in context.threads.values():
        if id(threads) not in sets:
            sets[id(threads)] = frozenset(threads)
    return {topic: sets[id(threads)] for topic, threads in context.threads.items()}


class Assignor(Protocol):
    def __call__(self, context: AssignmentContext) -> Mapping[TopicPartition, ConsumerThreadId]: ...
