"""The two round-robin assignors: every topic's partitions, shuffled by a hash, dealt out to one ring of all threads.

`kafka.consumer.RoundRobinAssignor`: 0.10.2 and later skip the threads that do not subscribe to a topic (earlier ones
refused to run unless all threads subscribed to all topics). The hashed text changed in 1.0: members from the two eras
compute different assignments and cannot share a group.
"""

from __future__ import annotations

from collections.abc import Callable

from kzconsumer.assignors.interface import AssignmentContext, subscribers
from kzconsumer.model import ConsumerThreadId, TopicPartition, thread_order, utf16_order


def assign(context: AssignmentContext) -> dict[TopicPartition, ConsumerThreadId]:
    """As members of 1.0.0 and later compute it: by the hash of `topic-partition`."""
    return _deal(context, str)


def assign_legacy(context: AssignmentContext) -> dict[TopicPartition, ConsumerThreadId]:
    """As members up to 0.11.x compute it: by the hash of `[topic,partition]`."""
    return _deal(context, lambda partition: f"[{partition.topic},{partition.partition}]")


def _deal(context: AssignmentContext, text: Callable[[TopicPartition], str]) -> dict[TopicPartition, ConsumerThreadId]:
    """Each partition, by ascending hash, to the next subscribed thread of the ring.

    Partitions whose hashes are equal (of the topics `Aa` and `BB`, for example) go by topic name and number here. The
    original leaves them in the order of a Scala hash map, which nothing specifies (with 1.1.1 it was `AaAa`, `BBBB`,
    `AaBB`, `BBAa`): the only place where an original member may compute something else.
    """
    subscribed = subscribers(context)
    threads: set[ConsumerThreadId] = set().union(*set(subscribed.values()))
    ring = sorted(threads, key=thread_order)
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
