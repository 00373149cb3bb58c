"""The range assignor, compared with observed assignments of the original."""

from __future__ import annotations

import pytest

from kzconsumer.assignors import AssignmentContext, assign_range
from kzconsumer.model import ConsumerThreadId, TopicPartition


def context(threads: dict[str, list[str]], partitions: dict[str, int]) -> AssignmentContext:
    return AssignmentContext(
        threads={topic: tuple(sorted(map(ConsumerThreadId.parse, ids))) for topic, ids in sorted(threads.items())},
        partitions={topic: tuple(range(partitions.get(topic, 0))) for topic in sorted(threads)},
    )


def owners(threads: dict[str, list[str]], partitions: dict[str, int]) -> dict[str, list[int]]:
    """Thread -> partitions, over all topics."""
    found: dict[str, list[int]] = {}
    for partition, thread in assign_range(context(threads, partitions)).items():
        found.setdefault(str(thread), []).append(partition.partition)
    return found


def test_four_partitions_on_three_streams() -> None:
    """Observed with 1.1.1."""
    assert owners({"t1": ["me-0", "me-1", "me-2"]}, {"t1": 4}) == {"me-0": [0, 1], "me-1": [2], "me-2": [3]}


def test_two_members_of_one_thread() -> None:
    """Observed with 1.1.1."""
    assert owners({"t1": ["b_x-0", "a_x-0"]}, {"t1": 4}) == {"a_x-0": [0, 1], "b_x-0": [2, 3]}


def test_more_threads_than_partitions() -> None:
    assert owners({"t": ["me-0", "me-1", "me-2"]}, {"t": 2}) == {"me-0": [0], "me-1": [1]}


def test_threads_in_text_order() -> None:
    found = owners({"t": [f"me-{number}" for number in range(11)]}, {"t": 12})
    assert found["me-0"] == [0, 1]
    assert found["me-1"] == [2]
    assert found["me-10"] == [3]
    assert found["me-2"] == [4]


def test_topics_are_divided_independently() -> None:
    assignment = assign_range(context({"a": ["me-0", "you-0"], "b": ["you-0"]}, {"a": 2, "b": 2}))
    me, you = ConsumerThreadId("me", 0), ConsumerThreadId("you", 0)
    assert assignment == {
        TopicPartition("a", 0): me,
        TopicPartition("a", 1): you,
        TopicPartition("b", 0): you,
        TopicPartition("b", 1): you,
    }


def test_a_topic_that_does_not_exist_yet_has_no_owners() -> None:
    assert owners({"later": ["me-0"]}, {}) == {}


def test_partition_numbers_may_have_gaps() -> None:
    """Kafka never creates such a topic, but the assignment follows what is in ZooKeeper."""
    threads = (ConsumerThreadId("me", 0), ConsumerThreadId("me", 1))
    assignment = assign_range(AssignmentContext({"t": threads}, {"t": (3, 5, 9)}))
    assert [(at.partition, thread.thread) for at, thread in assignment.items()] == [(3, 0), (5, 0), (9, 1)]


@pytest.mark.parametrize("streams", range(1, 9))
@pytest.mark.parametrize("partitions", range(10))
def test_every_partition_once_and_shares_differ_by_one(streams: int, partitions: int) -> None:
    ids = [f"m{number}-0" for number in range(streams)]
    found = owners({"t": ids}, {"t": partitions})
    assert sorted(number for share in found.values() for number in share) == list(range(partitions))
    shares = [len(found.get(name, [])) for name in ids]
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)  # the first threads get the extra ones
