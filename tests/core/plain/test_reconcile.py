"""Differences count only if they last, and unowned partitions are reported once."""

from __future__ import annotations

from kzconsumer.group.reconcile_rules import BACKOFF, Difference, Differences, Misplaced, Unowned, What
from kzconsumer.model import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
STRAY, UNFETCHED = Difference(What.STRAY, P0), Difference(What.UNFETCHED, P0)


def test_a_difference_counts_if_it_is_still_there_after_a_back_off() -> None:
    differences = Differences()
    assert not differences.confirmed(10.0, [STRAY])
    assert differences.unconfirmed
    assert not differences.confirmed(10.0 + BACKOFF / 2, [STRAY])
    assert differences.confirmed(10.0 + BACKOFF, [STRAY, UNFETCHED]) == [STRAY]
    assert differences.confirmed(10.0 + 2 * BACKOFF, [UNFETCHED]) == [UNFETCHED]
    assert not differences.unconfirmed


def test_a_difference_that_was_gone_in_between_starts_again() -> None:
    differences = Differences()
    differences.confirmed(0.0, [STRAY])
    differences.confirmed(BACKOFF, [])
    assert not differences.unconfirmed
    assert not differences.confirmed(2 * BACKOFF, [STRAY])


def test_a_repaired_difference_starts_again() -> None:
    differences = Differences()
    differences.confirmed(0.0, [STRAY])
    assert differences.confirmed(BACKOFF, [STRAY])
    assert not differences.confirmed(BACKOFF, [STRAY])
    assert differences.confirmed(2 * BACKOFF, [STRAY])


def test_unowned_for_longer_than_the_patience_is_reported_once() -> None:
    unowned = Unowned(5.0)
    assert unowned.look(0.0, [P0, P1], {P1}) == ([], [])
    assert unowned.look(4.9, [P0, P1], {P1}) == ([], [])
    assert unowned.look(5.0, [P0, P1], {P1}) == ([P0], [])
    assert unowned.look(6.0, [P0, P1], set()) == ([], [])
    assert unowned.look(11.0, [P0, P1], {P0}) == ([P1], [P0])


def test_unowned_time_restarts_and_a_deleted_topic_is_forgotten() -> None:
    unowned = Unowned(5.0)
    unowned.look(0.0, [P0], set())
    unowned.look(4.0, [P0], {P0})
    assert unowned.look(6.0, [P0], set()) == ([], [])
    assert unowned.look(11.0, [P0], set()) == ([P0], [])
    assert unowned.look(12.0, [], set()) == ([], [P0])


def test_a_partition_is_misplaced_if_looks_that_are_apart_see_the_same_owner() -> None:
    found = Misplaced(60.0)
    found.look(0.0, [P0, P1], {P0: "x-0", P1: ""})
    found.look(59.0, [P0], {P0: "x-0"})
    assert not found.lasting
    found.look(60.0, [P0], {P0: "x-0"})
    assert found.lasting == {P0: "x-0"}
    found.look(90.0, [P0], {P0: "y-0"})
    assert not found.lasting, "another owner by now"
    found.look(90.0, [P1], {P1: ""})
    assert found.lasting == {P1: ""}, "read again much later"
    found.look(95.0, [P1], {})
    found.look(150.0, [P0], {P0: "y-0"})
    assert found.lasting == {P0: "y-0"}
    found.forget()
    found.look(151.0, [P0], {P0: "y-0"})
    assert not found.lasting


def test_texts() -> None:
    assert str(STRAY) == "t-0: an owner node of our session without a claim"
    assert str(Difference(What.ASSIGNMENT)) == "the group's assignment is a different one"
