"""The two round-robin assignors: all partitions, ordered by a hash, assigned in turn to all threads.

`kafka.consumer.RoundRobinAssignor` skips threads that do not subscribe to the topic, from 0.10.2 on (earlier versions
require that all threads subscribe to all topics, and have none to skip). The hashed text changed in 1.0: older and
newer members compute different assignments and cannot share a group.
"""

from __future__ import annotations

from collections.abc import Callable

from kzconsumer.assignors.interface import AssignmentContext, subscribers
from kzconsumer.model import ConsumerThreadId, TopicPartition, thread_order, utf16_order


def assign(context: AssignmentContext) -> dict[TopicPartition, ConsumerThreadId]:
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
