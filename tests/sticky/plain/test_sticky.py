"""The sticky assignor: shares as even as possible, and few partitions that move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.assignors import AssignmentContext, assign_range
from kzconsumer.group.assignment import GroupSnapshot
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.plugins import ASSIGNORS, load
from kzconsumer.registry.group_records import STATIC, Registration
from kzconsumer.registry.nodes import Topic
from kzconsumer.testing.assignor_contract import CONTEXTS
from kzconsumer_sticky.assignor import assign

Owners = Mapping[TopicPartition, ConsumerThreadId]
MEMBERS = st.integers(0, 2**32 - 1).map(lambda number: f"orders_host-1700000000000-{number:08x}")


def group(members: Sequence[str], partitions: int) -> AssignmentContext:
    """Members of one stream of one topic."""
    joined = {member: Registration(STATIC, {"orders": 1}, ours=True) for member in members}
    return GroupSnapshot(joined, (), {"orders": Topic(tuple(range(partitions)), 1)}).context()


def changed(before: Owners, after: Owners) -> set[TopicPartition]:
    return {partition for partition in before if before[partition] != after[partition]}


def test_it_is_found_by_its_name() -> None:
    assert load(ASSIGNORS, "sticky") is assign


def test_the_result_never_changes() -> None:
    """A different result is a change of the rules: members of two versions would compete. It needs another name."""
    found = assign(group(["a", "b", "c"], 8))
    assert "".join(thread.consumer for _, thread in sorted(found.items())) == "cabcbbca"


@given(CONTEXTS)
def test_topics_with_the_same_threads_are_shared_evenly(context: AssignmentContext) -> None:
    owners = assign(context)
    for threads in set(context.threads.values()):
        load = Counter(thread for at, thread in owners.items() if context.threads[at.topic] == threads)
        shares = [load[thread] for thread in threads]
        assert max(shares) - min(shares) <= 1


@given(st.lists(MEMBERS, min_size=2, max_size=12, unique=True), st.integers(8, 24))
def test_few_partitions_move_beyond_the_minimum(members: list[str], share: int) -> None:
    """On a join, the joiner's share must move; a leave moves the same partitions back."""
    *before, joiner = members
    without, within = assign(group(before, share * len(members))), assign(group(members, share * len(members)))
    moved = changed(without, within)
    assert {at for at, thread in within.items() if thread.consumer == joiner} <= moved
    assert len(moved) <= 2.5 * share


def test_few_partitions_move_and_far_fewer_than_with_range() -> None:
    """Over joins to groups of 3 to 12 members, each of which may be the one that joins."""
    moved: Counter[str] = Counter()
    for size in range(3, 13):
        members = [f"orders_host-1700000000000-{7_919 * n:08x}" for n in range(size + 1)]
        for joiner in members:
            staying = [member for member in members if member != joiner]
            for name, assignor in (("sticky", assign), ("range", assign_range)):
                moved[name] += len(changed(assignor(group(staying, 96)), assignor(group(members, 96))))
            moved["must"] += 96 // (size + 1)
    assert moved["sticky"] < 0.5 * moved["range"], moved
    assert moved["sticky"] < 1.6 * moved["must"], moved
