"""What a member has to do, from what it should own and what it holds; and what an assignor may not do."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kzconsumer.assignors.interface import AssignmentContext, Assignor
from kzconsumer.assignors.range import assign
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


def test_from_nothing_and_to_nothing() -> None:
    assert compare({P0: ME}, {}).claim == {P0: ME}
    assert compare({}, {P0: ME}).release == (P0,)


def test_eager_gives_back_everything_where_anything_changes() -> None:
    plan = compare({P0: ME, P1: ME}, {P0: ME, P2: ME}, keep=False)
    assert (plan.keep, plan.move) == ((), {})
    assert (set(plan.release), plan.claim) == ({P0, P2}, {P0: ME, P1: ME})
    assert compare({P0: ME}, {P0: ME}, keep=False).empty


def test_a_members_part_of_the_assignment() -> None:
    assert wanted_by("me", assignment("range", assign, CONTEXT)) == {P0: ME, P1: MINE}
    assert wanted_by("you", assignment("range", assign, CONTEXT)) == {P2: YOU}
    assert wanted_by("nobody", assignment("range", assign, CONTEXT)) == {}


def test_an_assignor_that_raises() -> None:
    def broken(context: AssignmentContext) -> Mapping[TopicPartition, ConsumerThreadId]:
        raise ZeroDivisionError("no threads")

    with pytest.raises(PluginError, match="assignor mine failed: ZeroDivisionError: no threads"):
        assignment("mine", broken, CONTEXT)


def test_an_assignor_that_forgets_a_partition() -> None:
    with pytest.raises(PluginError, match="left out or invented t-2"):
        assignment("mine", always({P0: ME, P1: YOU}), CONTEXT)


def test_an_assignor_that_gives_to_a_stranger() -> None:
    stranger = ConsumerThreadId("stranger", 0)
    with pytest.raises(PluginError, match="t-2 to stranger-0"):
        assignment("mine", always({P0: ME, P1: ME, P2: stranger}), CONTEXT)


def test_an_assignor_that_gives_a_topic_nobody_asked_for() -> None:
    with pytest.raises(PluginError, match="other-0"):
        assignment("mine", always({P0: ME, P1: ME, TopicPartition("other", 0): ME}), CONTEXT)


def test_an_assignor_that_invents_a_partition() -> None:
    """As many as there are, but not those: we would own a node that stands for nothing, and leave one without owner."""
    with pytest.raises(PluginError, match="t-2, t-3"):
        assignment("mine", always({P0: ME, P1: ME, P3: ME}), CONTEXT)


def test_a_topic_without_threads_is_nobodys() -> None:
    context = AssignmentContext({"t": (ME,)}, {"t": (0,), "unread": (0, 1)})
    assert wanted_by("me", assignment("range", assign, context)) == {P0: ME}
