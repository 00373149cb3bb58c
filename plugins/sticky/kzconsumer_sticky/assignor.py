"""The sticky assignor: even shares, and few partitions change hands when a member comes or goes.

Pure, owns no state, remembers nothing: members cannot see who owned what, so nearness to the last assignment has to
follow from the group alone. Rendezvous hashing gives that: every pair of thread and partition has a rank that does not
depend on who else is there. Called by every member's rebalancer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from kzconsumer.assignors.interface import AssignmentContext
from kzconsumer.model import ConsumerThreadId, TopicPartition


def assign(context: AssignmentContext) -> dict[TopicPartition, ConsumerThreadId]:
    """Every partition of every subscribed topic to one of that topic's threads.

    Topics with the same threads are divided together: of n partitions of such a set, each of its k threads gets n div k
    or one more.
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
    """Take pairs by rank, as long as their partition has no owner and their thread's share is not full."""
    share, larger = divmod(len(partitions), len(threads))
    room = dict.fromkeys(threads, share)
    owners: dict[TopicPartition, ConsumerThreadId] = {}
    for _, thread, partition in sorted((_rank(t, p), t, p) for t in threads for p in partitions):
        if partition in owners:
            continue
        if room[thread] == 0 and larger:
            larger -= 1  # one of the threads whose share is one more than the others'
            room[thread] = -1
        elif room[thread] > 0:
            room[thread] -= 1
        else:
            continue
        owners[partition] = thread
    return owners


def _rank(thread: ConsumerThreadId, partition: TopicPartition) -> bytes:
    """The same on every machine; Python's own hash() differs from process to process."""
    return blake2b(f"{thread}/{partition}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
