"""The progress of a claim: the contiguous processed prefix, and the end of the claim."""

from __future__ import annotations

import pytest

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Progress
from tests.support.chunks import progress


def handed(until: int, start: int = 0) -> Progress:
    claim = progress(start=start)
    claim.hand_over(until)
    return claim


def test_it_begins_where_the_claim_begins() -> None:
    claim = progress(start=7)
    assert (claim.consumed, claim.processed, claim.open, claim.settled) == (7, 7, True, True)


def test_delivered_records_are_not_yet_processed() -> None:
    claim = handed(5)
    assert (claim.consumed, claim.processed, claim.settled) == (5, 0, False)


def test_marks_in_order() -> None:
    claim = handed(10)
    claim.mark(0, 4)
    assert claim.processed == 4
    claim.mark(4, 10)
    assert (claim.processed, claim.settled) == (10, True)


def test_a_mark_ahead_waits_for_the_records_before_it() -> None:
    claim = handed(12)
    claim.mark(8, 12)
    claim.mark(4, 8)
    assert claim.processed == 0
    claim.mark(0, 4)
    assert claim.processed == 12


def test_an_empty_mark_has_no_effect() -> None:
    claim = handed(6)
    claim.mark(0, 0)
    claim.mark(3, 3)
    assert claim.processed == 0
    claim.mark(0, 3)
    claim.mark(3, 6)
    assert claim.processed == 6


def test_the_longer_of_two_marks_with_the_same_beginning() -> None:
    claim = handed(9)
    claim.mark(3, 9)
    claim.mark(3, 5)
    claim.mark(0, 3)
    assert claim.processed == 9


def test_the_delivered_position_never_goes_back() -> None:
    claim = handed(9)
    claim.hand_over(4)
    assert claim.consumed == 9


def test_restart_sets_both_positions() -> None:
    claim = progress()
    claim.restart(100)
    assert (claim.consumed, claim.processed) == (100, 100)
    claim.hand_over(110)
    claim.mark(100, 110)
    assert claim.processed == 110


def test_restart_while_something_is_in_hand_is_a_bug() -> None:
    claim = handed(3)
    with pytest.raises(AssertionError):
        claim.restart(0)


def test_closing_reports_when_work_in_hand_is_done() -> None:
    claim, output = handed(6), list[int]()
    claim.close(lambda: output.append(claim.processed))
    assert (claim.open, output) == (False, [])
    claim.mark(0, 4)
    assert not output
    claim.mark(4, 6)
    assert output == [6]


def test_closing_reports_at_once_if_nothing_is_in_hand() -> None:
    claim, output = progress(), list[bool]()
    claim.close(lambda: output.append(claim.open))
    assert output == [False]


def test_a_lost_claim_takes_no_marks() -> None:
    claim = handed(2)
    claim.close()
    assert not claim.mark(0, 2)
    assert (claim.processed, claim.open) == (0, False)


def test_undelivered_records_cannot_be_marked() -> None:
    claim = handed(5)
    assert not claim.mark(7, 9)
    assert claim.mark(3, 9)
    assert claim.mark(0, 3)
    assert claim.processed == 5
    claim.hand_over(9)
    assert claim.processed == 5


def test_a_mark_returns_whether_it_changed_anything() -> None:
    claim = handed(20)
    assert claim.mark(10, 14)
    assert not claim.mark(11, 13)
    assert claim.mark(12, 16)
    assert claim.mark(0, 10)
    assert not claim.mark(0, 16)
    assert claim.processed == 16


def test_a_loss_reaches_the_worker_and_is_not_waited_for() -> None:
    claim, output = handed(6), list[str]()
    claim.when_lost(lambda: output.append("give up"))
    claim.close(lambda: output.append("settled"))
    assert not claim.lost
    claim.close()
    assert (claim.lost, output) == (True, ["give up", "settled"])


def test_a_late_listener_is_notified_of_the_loss_at_once() -> None:
    claim, output = progress(), list[bool]()
    claim.when_lost(lambda: output.append(claim.lost))
    claim.when_lost(None)
    claim.close()
    assert not output
    claim.when_lost(lambda: output.append(claim.lost))
    assert output == [True]


def test_repr_is_one_line() -> None:
    assert repr(handed(3)) == "<Progress orders-0 consumed 3 processed 0 open>"


def test_a_tracker_goes_on_as_another_one() -> None:
    old = Progress(TopicPartition("orders", 4), 3, incarnation=7, epoch=2)
    old.hand_over(9)
    old.mark(3, 8)
    old.written = 3, 8
    new = old.going_on()
    assert (new.topic_partition, new.incarnation, new.epoch) == (("orders", 4), 7, 2)
    assert (new.consumed, new.processed, new.written, new.replay) == (8, 8, (3, 8), None)


def test_what_goes_on_knows_what_the_claim_knew() -> None:
    before = Progress(TopicPartition("t", 1), 5, incarnation=2, epoch=3, leader_epoch=3)
    before.leader_epochs.extend(5, [(5, 4)], 9, 5)
    before.hand_over(9)
    before.mark(5, 7)
    before.mark(8, 9)
    before.written = (5, 7)
    after = before.going_on()
    assert (after.topic_partition, after.incarnation, after.epoch) == (before.topic_partition, 2, 3)
    assert (after.consumed, after.processed, after.leader_epochs.before(7), after.written) == (7, 7, 4, (5, 7))
    assert after.open
    assert after.settled
