"""The progress of a claim: what test_offset_progress_property.py does not draw."""

from __future__ import annotations

import pytest

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Progress
from tests.support.chunks import progress


def handed(until: int, start: int = 0) -> Progress:
    claim = progress(start=start)
    claim.hand_over(until)
    return claim


def test_an_empty_mark_has_no_effect() -> None:
    claim = handed(6)
    claim.mark(0, 0)
    claim.mark(3, 3)
    assert claim.processed == 0
    claim.mark(0, 3)
    claim.mark(3, 6)
    assert claim.processed == 6


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
    assert not claim.mark(10, 12)
    assert claim.mark(12, 16)
    assert claim.mark(0, 10)
    assert not claim.mark(0, 16)
    assert claim.processed == 16
    assert claim.mark(17, 18)
    assert claim.mark(16, 20), "more than was done of it"
    assert claim.processed == 20


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
    assert after.replay is None
    assert after.open
    assert after.settled
