"""The sticky assignor: even shares, and few partitions move when a member joins or leaves.

Members cannot see the previous assignment, so stability has to follow from the group alone. Rendezvous hashing provides
it: every pair of thread and partition has a rank that does not depend on the other members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from kzconsumer.assignors import AssignmentContext, ConsumerThreadId, TopicPartition


def assign(context: AssignmentContext) -> dict[TopicPartition, ConsumerThreadId]:
    """Assign every partition of every subscribed topic to one of that topic's threads.

    Topics with the same threads are assigned together: of their n partitions, each of the k threads gets n div k or one
    more.
    """
    owners: dict[TopicPartition, ConsumerThreadId] = {}
    for threads, partitions in _topic_sets(context):
        owners |= _divide(threads, partitions)
    return owners


def _topic_sets(context: AssignmentContext) -> Iterator[tuple[tuple[ConsumerThreadId, ...], list[TopicPartition]]]:
    sets: dict[tuple[ConsumerThreadId, ...], list[TopicPartition]] = {}
    for topic, threads in context.threads.items():
        partitions = sets.setdefault(threads, [])
        partitions += [TopicPartition(topic, number) for number in context.partitions.get(topic, ())]
    yield from sets.items()


def _divide(
    threads: Sequence[ConsumerThreadId], partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, ConsumerThreadId]:
    """Take pairs in order of rank if the partition has no owner and the thread's share is not full."""
    share, larger = divmod(len(partitions), len(threads))
    room = dict.fromkeys(threads, share)
    owners: dict[TopicPartition, ConsumerThreadId] = {}
    for _, thread, partition in sorted((_rank(t, p), t, p) for t in threads for p in partitions):
        if partition in owners:
            continue
        if room[thread] == 0 and larger:
            larger -= 1  # this thread gets one of the larger shares
            room[thread] = -1
        elif room[thread] > 0:
            room[thread] -= 1
        else:
            continue
        owners[partition] = thread
    return owners


def _rank(thread: ConsumerThreadId, partition: TopicPartition) -> bytes:
    """The same on every machine, unlike Python's hash(), which differs between processes."""
    return blake2b(f"{thread}/{partition}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
