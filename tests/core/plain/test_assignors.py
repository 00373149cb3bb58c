"""The assignors, compared with the hashes and the assignments of the original."""

from __future__ import annotations

import pytest

from kzconsumer.assignors import AssignmentContext, assign_legacy, assign_range, assign_roundrobin, java_hash
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


def dealt(owners: dict[TopicPartition, ConsumerThreadId]) -> list[tuple[str, str]]:
    """Partition and thread as text, in the order of assignment."""
    return [(str(partition), str(thread)) for partition, thread in owners.items()]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        ("a", 97),
        ("t1-0", 3504288),
        ("t1-3", 3504291),
        ("my.topic-2-0", -1560146443),
        ("a-0", 94660),
        ("topic-10", -957341827),
        ("events-0", 278135932),
        ("[t1,0]", -1581082495),
        ("[my.topic-2,0]", 118905036),
        ("[events,0]", -670581339),
        ("[a,0]", 86974003),
        ("polygenelubricants", -(2**31)),
        ("\u00e9", 0xE9),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),  # two UTF-16 units
        ("\udc00", 0xDC00),
    ],
)
def test_java_hash(text: str, number: int) -> None:
    assert java_hash(text) == number


ONE_MEMBER = context(
    {"t1": ["g3_me-0", "g3_me-1", "g3_me-2"], "my.topic-2": ["g3_me-0", "g3_me-1"]}, {"t1": 4, "my.topic-2": 2}
)


def test_one_member_of_two_topics() -> None:
    """Observed with 1.1.1."""
    assert dealt(assign_roundrobin(ONE_MEMBER)) == [
        ("my.topic-2-0", "g3_me-0"),
        ("my.topic-2-1", "g3_me-1"),
        ("t1-0", "g3_me-2"),
        ("t1-1", "g3_me-0"),
        ("t1-2", "g3_me-1"),
        ("t1-3", "g3_me-2"),
    ]


def test_one_member_of_two_topics_legacy() -> None:
    assert dealt(assign_legacy(ONE_MEMBER)) == [
        ("t1-0", "g3_me-0"),
        ("t1-1", "g3_me-1"),
        ("t1-2", "g3_me-2"),
        ("t1-3", "g3_me-0"),
        ("my.topic-2-0", "g3_me-1"),
        ("my.topic-2-1", "g3_me-0"),  # thread 2 does not subscribe and is skipped
    ]


def test_partitions_are_ordered_by_the_hash_of_their_text() -> None:
    twelve = context({"a": ["me-0"]}, {"a": 12})
    assert [at.partition for at in assign_roundrobin(twelve)] == list(range(12))
    assert [at.partition for at in assign_legacy(twelve)] == [10, 11, *range(10)]


def test_the_ring_is_in_text_order_and_has_each_thread_once() -> None:
    """Thread ids sort as text, and a thread that two topics share has one place."""
    eleven = [f"me-{number}" for number in range(11)]
    found = assign_roundrobin(context({"a": eleven, "b": ["me-0"]}, {"a": 12}))
    assert [thread.thread for thread in found.values()] == [0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_a_skipped_thread_has_had_its_turn() -> None:
    """The ring continues with the thread after it and does not return to those it skipped."""
    found = assign_roundrobin(context({"a": ["c-0"], "b": ["a-0", "b-0", "c-0", "d-0"]}, {"a": 1, "b": 4}))
    assert dealt(found) == [("a-0", "c-0"), ("b-0", "d-0"), ("b-1", "a-0"), ("b-2", "b-0"), ("b-3", "c-0")]


def test_threads_of_a_topic_that_does_not_exist_have_a_place_in_the_ring_and_are_skipped() -> None:
    found = assign_roundrobin(context({"a": ["a-0", "c-0"], "later": ["b-0"]}, {"a": 3}))
    assert dealt(found) == [("a-0", "a-0"), ("a-1", "c-0"), ("a-2", "a-0")]


def test_equal_hashes_are_ordered_by_topic_name() -> None:
    """The original does not specify an order here."""
    assert java_hash("Aa-0") == java_hash("BB-0")
    tied = AssignmentContext(
        {"BB": (ConsumerThreadId("a", 0), ConsumerThreadId("b", 0)), "Aa": (ConsumerThreadId("a", 0),)},
        {"BB": (0, 1), "Aa": (0,)},
    )
    assert dealt(assign_roundrobin(tied)) == [("Aa-0", "a-0"), ("BB-0", "b-0"), ("BB-1", "a-0")]


def test_a_group_without_members() -> None:
    assert assign_roundrobin(AssignmentContext({}, {})) == {}
    assert assign_legacy(context({"later": ["me-0"]}, {})) == {}
