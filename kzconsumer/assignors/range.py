"""The range assignor: per topic, consecutive partitions to consecutive threads.

`kafka.consumer.RangeAssignor` (1.1.1): threads in text order, partitions ascending; with
q, r = divmod(partitions, threads) the first r threads get q + 1 and the others q.
"""

from __future__ import annotations

from kzconsumer.assignors.interface import AssignmentContext
from kzconsumer.model import ConsumerThreadId, TopicPartition


def assign(context: AssignmentContext) -> dict[TopicPartition, ConsumerThreadId]:
    """Every partition of every subscribed topic to one of that topic's threads."""
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
