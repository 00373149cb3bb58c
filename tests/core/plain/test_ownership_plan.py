"""What a member has to do, given its assignment and its claims; and what an assignor must not return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kzconsumer.assignors import AssignmentContext, Assignor, assign_range
from kzconsumer.errors import PluginError
from kzconsumer.group.assignment import assignment, compare, wanted_by
from kzconsumer.model import ConsumerThreadId, TopicPartition

ME, MINE, YOU = ConsumerThreadId("me", 0), ConsumerThreadId("me", 1), ConsumerThreadId("you", 0)
P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))
CONTEXT = AssignmentContext({"t": (ME, MINE, YOU)}, {"t": (0, 1, 2)})


def always(assignment: Mapping[TopicPartition, ConsumerThreadId]) -> Assignor:
    return lambda context: assignment


def test_keep_move_release_claim() -> None:
    plan = compare(wanted={P0: ME, P1: MINE, P3: ME}, held={P0: ME, P1: ME, P2: MINE})
    assert plan.keep == (P0,)
    assert plan.move == {P1: MINE}
    assert plan.release == (P2,)
    assert plan.claim == {P3: ME}
    assert not plan.empty


def test_nothing_to_do() -> None:
    plan = compare(wanted={P0: ME}, held={P0: ME})
    assert (plan.keep, plan.empty) == ((P0,), True)
    assert compare({}, {}).empty


def test_empty_assignments_and_empty_claims() -> None:
    assert compare({P0: ME}, {}).claim == {P0: ME}
    assert compare({}, {P0: ME}).release == (P0,)


def test_eager_releases_everything_if_anything_changes() -> None:
    plan = compare({P0: ME, P1: ME}, {P0: ME, P2: ME}, keep=False)
    assert (plan.keep, plan.move) == ((), {})
    assert (set(plan.release), plan.claim) == ({P0, P2}, {P0: ME, P1: ME})
    assert compare({P0: ME}, {P0: ME}, keep=False).empty


def test_a_members_share_of_the_assignment() -> None:
    assert wanted_by("me", assignment("range", assign_range, CONTEXT)) == {P0: ME, P1: MINE}
    assert wanted_by("you", assignment("range", assign_range, CONTEXT)) == {P2: YOU}
    assert wanted_by("stranger", assignment("range", assign_range, CONTEXT)) == {}


def test_an_assignor_that_raises() -> None:
    def broken(context: AssignmentContext) -> Mapping[TopicPartition, ConsumerThreadId]:
        raise ZeroDivisionError("no threads")

    with pytest.raises(PluginError) as caught:
        assignment("assignor mine", broken, CONTEXT)
    place = f"{__file__}, line {broken.__code__.co_firstlineno + 1}"
    assert str(caught.value) == f"assignor mine failed: ZeroDivisionError: no threads ({place})"


@pytest.mark.parametrize(
    ("assigned", "says"),
    [
        (None, "returned a NoneType, not a mapping"),
        ({("t", 0): ME}, r"maps \('t', 0\) to .*: not a TopicPartition to a ConsumerThreadId"),
        ({P0: "me-0"}, "maps .* to 'me-0': not a TopicPartition to a ConsumerThreadId"),
    ],
)
def test_an_assignor_that_returns_something_else(assigned: Any, says: str) -> None:
    with pytest.raises(PluginError, match=f"assignor mine {says}"):
        assignment("assignor mine", lambda _: assigned, CONTEXT)


def test_an_assignor_that_forgets_a_partition() -> None:
    with pytest.raises(PluginError, match=r"assignor mine left out t-2$"):
        assignment("assignor mine", always({P0: ME, P1: YOU}), CONTEXT)


def test_an_assignor_that_assigns_to_an_unknown_thread() -> None:
    stranger = ConsumerThreadId("stranger", 0)
    with pytest.raises(PluginError, match="t-2 to stranger-0"):
        assignment("assignor mine", always({P0: ME, P1: ME, P2: stranger}), CONTEXT)


def test_an_assignor_that_assigns_an_unsubscribed_topic() -> None:
    with pytest.raises(PluginError, match="other-0"):
        assignment("assignor mine", always({P0: ME, P1: ME, TopicPartition("other", 0): ME}), CONTEXT)


def test_an_assignor_that_invents_a_partition() -> None:
    """The right number of partitions but not the right ones: we would own a node without a partition and leave one
    unowned.
    """
    with pytest.raises(PluginError, match="left out t-2 and invented t-3"):
        assignment("assignor mine", always({P0: ME, P1: ME, P3: ME}), CONTEXT)


def test_a_topic_without_threads_is_not_assigned() -> None:
    context = AssignmentContext({"t": (ME,)}, {"t": (0,), "unread": (0, 1)})
    assert wanted_by("me", assignment("range", assign_range, context)) == {P0: ME}
