"""The interface of assignors, and the core's own: range and round-robin.

An assignor is a function that maps the partitions of a group to its threads. Entry points of the group
`kzconsumer.assignors` name such a function. Every member computes the assignment from its own snapshot of the group, so
the function must return the same result on every machine: no clock, no randomness, no IO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from kzconsumer.model import ConsumerThreadId, TopicPartition, thread_order, utf16_order

__all__ = [
    "AssignmentContext",
    "Assignor",
    "ConsumerThreadId",
    "TopicPartition",
    "assign_legacy",
    "assign_range",
    "assign_roundrobin",
    "subscribers",
]


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


def assign_range(context: AssignmentContext) -> dict[TopicPartition, ConsumerThreadId]:
    """Per topic, consecutive partitions to consecutive threads that subscribe to it.

    `kafka.consumer.RangeAssignor` (1.1.1): threads in text order, partitions ascending; with q, r = divmod(partitions,
    threads) the first r threads get q + 1 and the others q.
    """
    owners = {}
    for topic, threads in context.threads.items():
        partitions = context.partitions.get(topic, ())
        share, extra = divmod(len(partitions), len(threads))
        first = 0
        for index, thread in enumerate(threads if share else threads[:extra]):
            until = first + share + (index < extra)
            for partition in partitions[first:until]:
                owners[TopicPartition(topic, partition)] = thread
            first = until
    return owners


# The two round-robin assignors: all partitions, ordered by a hash, assigned in turn to all threads.
# `kafka.consumer.RoundRobinAssignor` skips threads that do not subscribe to the topic, from 0.10.2 on (earlier versions
# require that all threads subscribe to all topics, and have none to skip). The hashed text changed in 1.0: older and
# newer members compute different assignments and cannot share a group.


def assign_roundrobin(context: AssignmentContext) -> dict[TopicPartition, ConsumerThreadId]:
    """Compatible with members of 1.0.0 and newer: ordered by the hash of `topic-partition`."""
    return _deal(context, str)


def assign_legacy(context: AssignmentContext) -> dict[TopicPartition, ConsumerThreadId]:
    """Compatible with members up to 0.11.x: ordered by the hash of `[topic,partition]`."""
    return _deal(context, lambda partition: f"[{partition.topic},{partition.partition}]")


def _deal(context: AssignmentContext, text: Callable[[TopicPartition], str]) -> dict[TopicPartition, ConsumerThreadId]:
    """Assign each partition, by ascending hash, to the next subscribed thread of the ring.

    Partitions with equal hashes (of the topics `Aa` and `BB`, for example) are ordered by topic name and number. The
    original leaves them in the unspecified order of a Scala hash map (1.1.1: `AaAa`, `BBBB`, `AaBB`, `BBAa`). This is
    the only case in which an original member may compute another assignment.
    """
    subscribed = subscribers(context)
    all_threads: set[ConsumerThreadId] = set().union(*set(subscribed.values()))
    ring = sorted(all_threads, key=thread_order)
    partitions = sorted(TopicPartition(topic, n) for topic in subscribed for n in context.partitions.get(topic, ()))
    partitions.sort(key=lambda partition: java_hash(text(partition)))
    owners = {}
    place = 0
    for partition in partitions:
        while ring[place] not in subscribed[partition.topic]:
            place = (place + 1) % len(ring)
        owners[partition] = ring[place]
        place = (place + 1) % len(ring)
    return owners


def java_hash(text: str) -> int:
    """`java.lang.String.hashCode`: s[0]*31^(n-1) + ... + s[n-1] over UTF-16 units, a signed 32-bit number."""
    units = memoryview(utf16_order(text))
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
