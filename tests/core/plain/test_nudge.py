"""When original members of a group are nudged, and how often."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import pytest

from kzconsumer.group.reconcile_rules import LOOK_INTERVAL, PATIENCE, Nudge, OriginalMemberNudges, needs_looking
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.group_records import STATIC, Registration

OURS = Registration(pattern=STATIC, subscription={"t": 1}, ours=True)
THEIRS = Registration(pattern=STATIC, subscription={"t": 1}, ours=False)
MEMBERS = {"a": OURS, "b": OURS, "m": THEIRS, "n": THEIRS}
AT = [TopicPartition("t", number) for number in range(4)]
ASSIGNMENT = {at: ConsumerThreadId(consumer, 0) for at, consumer in zip(AT, "abmn", strict=True)}


def look_until(
    nudges: OriginalMemberNudges, end: float, owned: Collection[TopicPartition], start: float = 0.0
) -> list[float]:
    """The times of `start <= now < end` at which it nudges, observed every LOOK_INTERVAL seconds."""
    found = []
    now = start
    while now < end:
        if nudges.look(now, MEMBERS, ASSIGNMENT, owned):
            found.append(now)
        now += LOOK_INTERVAL
    return found


def test_a_partition_of_an_original_without_owner_for_long() -> None:
    nudges = OriginalMemberNudges("a")
    assert nudges.look(100.0, MEMBERS, ASSIGNMENT, AT[:2]) is None
    assert nudges.look(100.0 + PATIENCE - 0.1, MEMBERS, ASSIGNMENT, AT[:2]) is None
    assert nudges.look(100.0 + PATIENCE, MEMBERS, ASSIGNMENT, AT[:2]) == Nudge(1, {AT[2]: "m", AT[3]: "n"})


def test_only_the_first_of_ours_nudges() -> None:
    assert look_until(OriginalMemberNudges("b"), 100.0, []) == []
    assert look_until(OriginalMemberNudges("a"), 15.0, []) == [PATIENCE]


def test_a_member_that_becomes_the_first_has_kept_the_time() -> None:
    nudges = OriginalMemberNudges("b")
    assert look_until(nudges, PATIENCE, AT[:2]) == []
    left = {name: member for name, member in MEMBERS.items() if name != "a"}
    assignment = {at: thread for at, thread in ASSIGNMENT.items() if thread.consumer != "a"}
    assert nudges.look(PATIENCE, left, assignment, AT[:2]) is not None


def test_a_member_whose_own_registration_was_deleted_does_not_nudge() -> None:
    nudges = OriginalMemberNudges("a")
    for now in (0.0, PATIENCE):
        assert nudges.look(now, {"m": THEIRS, "n": THEIRS}, ASSIGNMENT, []) is None


@pytest.mark.parametrize("owned", [AT, AT[2:]], ids=["all", "all of theirs"])
def test_nothing_to_do(owned: list[TopicPartition]) -> None:
    """A partition of ours without owner is ours to claim: nudging does not help."""
    assert look_until(OriginalMemberNudges("a"), 100.0, owned) == []


def test_an_owner_in_between_restarts_the_time() -> None:
    nudges = OriginalMemberNudges("a")
    assert look_until(nudges, 9.0, AT[:3]) == []
    assert nudges.look(9.0, MEMBERS, ASSIGNMENT, AT) is None
    assert look_until(nudges, 30.0, AT[:3], start=9.5) == [9.5 + PATIENCE]


def test_another_member_that_should_own_it_gets_its_own_time() -> None:
    nudges = OriginalMemberNudges("a")
    assert look_until(nudges, 9.0, AT[:3]) == []
    moved = {**ASSIGNMENT, AT[3]: ConsumerThreadId("m", 0)}
    assert nudges.look(10.0, MEMBERS, moved, AT[:3]) is None
    assert nudges.look(10.0 + PATIENCE, MEMBERS, moved, AT[:3]) == Nudge(1, {AT[3]: "m"})


def test_pauses_double_up_to_ten_minutes_and_are_reset_after_success() -> None:
    nudges = OriginalMemberNudges("a")
    made = look_until(nudges, 4000.0, AT[:3])
    pauses = [after - before for before, after in pairwise(made)]
    assert pauses[:6] == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0]
    assert set(pauses[5:]) == {600.0}
    assert nudges.look(4000.0, MEMBERS, ASSIGNMENT, AT) is None
    again = look_until(nudges, 5000.0, AT[:3], start=4600.0)
    assert again[:2] == [4600.0 + PATIENCE, 4600.0 + PATIENCE + 30.0]
    assert all(nudges.look(5000.0 + 600.0 * ten_minutes, MEMBERS, ASSIGNMENT, AT[:3]) for ten_minutes in range(1, 1100))


def test_never_twice_within_the_pause_even_after_success() -> None:
    nudges = OriginalMemberNudges("a")
    (made,) = look_until(nudges, 11.0, AT[:3])
    assert nudges.look(12.0, MEMBERS, ASSIGNMENT, AT) is None
    assert look_until(nudges, 60.0, AT[:3], start=12.5)[0] >= made + 30.0


def test_only_originals_get_stuck() -> None:
    assert needs_looking(MEMBERS)
    assert not needs_looking({"a": OURS})
