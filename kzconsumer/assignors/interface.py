"""The interface of assignors: a function that maps the partitions of a group to its threads.

Entry points of the group `kzconsumer.assignors` name such a function. Every member computes the assignment from its own
snapshot of the group, so the function must return the same result on every machine: no clock, no randomness, no IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from kzconsumer.model import ConsumerThreadId, TopicPartition


class AssignmentContext(msgspec.Struct, frozen=True):
    """The group as one member read it.

    `threads` maps each subscribed topic to the threads that subscribe to it, `partitions` the same topics to their
    partition numbers (empty if the topic does not exist). Threads and numbers are sorted; the topics are not.
    """

    threads: Mapping[str, tuple[ConsumerThreadId, ...]]
    partitions: Mapping[str, tuple[int, ...]]


def subscribers(context: AssignmentContext) -> dict[str, frozenset[ConsumerThreadId]]:
    """The threads of each topic as a set. Topics with the same tuple of threads share one set."""
    sets: dict[int, frozenset[ConsumerThreadId]] = {}
    for threads in context.threads.values():
        if id(threads) not in sets:
            sets[id(threads)] = frozenset(threads)
    return {topic: sets[id(threads)] for topic, threads in context.threads.items()}


class Assignor(Protocol):
    """Assigns every partition of the subscribed topics to one thread, which must subscribe to the topic."""

    def __call__(self, context: AssignmentContext) -> Mapping[TopicPartition, ConsumerThreadId]: ...
