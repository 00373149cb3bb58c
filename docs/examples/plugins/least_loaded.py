"""An assignor that gives each partition to the thread that has fewest, over all topics.

(`range` gives the remainder of every topic to the same threads.) Shows: a function that computes the same result in
every member.

    pip install ./docs/examples/plugins
    kzconsumer groups plan orders --set group.assignor=example-least-loaded    # what would move in a running group
    kzconsumer run group.toml --set group.assignor=example-least-loaded        # in every member of the group
"""

from __future__ import annotations

from collections import Counter

from kzconsumer.assignors import AssignmentContext, ConsumerThreadId, TopicPartition


def assign(context: AssignmentContext) -> dict[TopicPartition, ConsumerThreadId]:
    load = Counter[ConsumerThreadId]()
    owners = {}
    for topic in sorted(context.partitions):  # the topics of the context have no order of their own
        for number in context.partitions[topic]:
            # Of several with as few, the first: threads are sorted in the same way in every member.
            thread = min(context.threads[topic], key=load.__getitem__)
            owners[TopicPartition(topic, number)] = thread
            load[thread] += 1
    return owners
