"""What an assignor is: a pure function from the group as read to who owns what.

Every member computes this alone from its own snapshot and nobody publishes the result, so the same input must give the
same output on every machine: no clock, no randomness, no IO. Every partition goes to exactly one thread, and only to a
thread that subscribes to its topic. Entry points of the group `kzconsumer.assignors` name a callable of this shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from kzconsumer.model import ConsumerThreadId, TopicPartition


class AssignmentContext(msgspec.Struct, frozen=True):
    """The group as one member read it.

    `threads` maps each topic that anybody subscribes to, to the threads on it; `partitions` maps the same topics to
    their partition numbers (empty for a topic that does not exist). Both are sorted.
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
