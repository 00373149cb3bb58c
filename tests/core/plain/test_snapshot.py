"""From the members' registrations to the input of an assignor."""

from __future__ import annotations

import time

import pytest

from kzconsumer.assignors import Assignor
from kzconsumer.assignors import assign_range as range_assign
from kzconsumer.assignors import assign_roundrobin as roundrobin_assign
from kzconsumer.group.assignment import GroupSnapshot, assignment
from kzconsumer.model import MOST_STREAMS, ConsumerThreadId
from kzconsumer.registry.group_records import STATIC, Registration, needs_all_topics, subscribed_topics
from kzconsumer.registry.nodes import Topic
from kzconsumer.settings.value_readers import WHITE_LIST

STATIC_MEMBER = Registration(STATIC, {"orders": 2, "later": 1}, ours=True)
WILDCARD = Registration(WHITE_LIST, {"or.*": 1}, ours=False)
TOPICS = {"orders": Topic((0, 1, 2), 42), "ores": Topic((0,), 43)}
ALL_TOPICS = ("orders", "ores", "payments")


def thread(text: str) -> ConsumerThreadId:
    return ConsumerThreadId.parse(text)


def test_threads_and_partitions_of_every_subscribed_topic() -> None:
    members = {"b": STATIC_MEMBER, "a": WILDCARD}
    context = GroupSnapshot(members, ALL_TOPICS, TOPICS).context()
    assert context.threads == {
        "later": (thread("b-0"),),
        "orders": (thread("a-0"), thread("b-0"), thread("b-1")),
        "ores": (thread("a-0"),),
    }
    assert context.partitions == {"later": (), "orders": (0, 1, 2), "ores": (0,)}
    assert list(context.threads) == sorted(context.threads)


def test_threads_are_in_text_order() -> None:
    member = Registration(STATIC, {"t": 11}, ours=True)
    threads = GroupSnapshot({"me": member}, (), {}).context().threads["t"]
    assert [each.thread for each in threads] == [0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_order_of_reading_does_not_matter() -> None:
    members = {"a": WILDCARD, "b": STATIC_MEMBER, "c": STATIC_MEMBER}
    backwards = dict(reversed(members.items()))
    assert (
        GroupSnapshot(members, ALL_TOPICS, TOPICS).context() == GroupSnapshot(backwards, ALL_TOPICS, TOPICS).context()
    )


def test_a_member_without_a_topic() -> None:
    """The registration that wakes original members changes no member's assignment."""
    idle = Registration(STATIC, {}, ours=True)
    alone = GroupSnapshot({"a": STATIC_MEMBER}, (), TOPICS).context()
    assert GroupSnapshot({"a": STATIC_MEMBER, "z": idle}, (), TOPICS).context() == alone


def test_subscribed_topics() -> None:
    assert subscribed_topics({"a": WILDCARD, "b": STATIC_MEMBER}, ALL_TOPICS) == ["later", "orders", "ores"]
    assert subscribed_topics({}, ALL_TOPICS) == []


def test_only_wildcards_need_all_topics() -> None:
    assert not needs_all_topics({"b": STATIC_MEMBER})
    assert needs_all_topics({"b": STATIC_MEMBER, "a": WILDCARD})


def test_a_pattern_that_no_member_can_expand() -> None:
    broken = Registration(WHITE_LIST, {"(": 1}, ours=False)
    with pytest.raises(ValueError, match="not a regular expression"):
        subscribed_topics({"a": broken}, ALL_TOPICS)


@pytest.mark.parametrize("assign", [range_assign, roundrobin_assign])
def test_a_list_with_the_most_streams_and_many_topics(assign: Assignor) -> None:
    """One member that any program may register, with 10 million pairs of topic and thread: others must not wait."""
    topics = {f"t{n}": Topic((0, 1, 2), n) for n in range(2000)}
    absurd = Registration(WHITE_LIST, {".*": MOST_STREAMS}, ours=False)
    members = {
        "a": Registration(STATIC, {"t1": 2}, ours=True),
        "b": absurd,
        "c": Registration(WHITE_LIST, {"t.": 1}, ours=True),
    }
    began = time.process_time()
    context = GroupSnapshot(members, tuple(topics), topics).context()
    owners = assignment("any", assign, context)
    assert time.process_time() - began < 3.0  # 18 s if each pair is built
    assert len(context.threads["t1"]) == MOST_STREAMS + 3
    assert len(owners) == 6000
