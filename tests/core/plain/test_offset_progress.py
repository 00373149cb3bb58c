"""The progress of a claim: in whatever order work ends, the contiguous prefix of what was handed out is processed."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Progress
from tests.support.chunks import progress

Range = tuple[int, int]
SOME = 4
"""Ranges that are handed out before a claim ends, so that their work can end in any order."""


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


def test_both_progresses_of_a_claim_drop_their_records_when_they_are_closed() -> None:
    dropped: list[Progress] = []
    former = handed(9)
    former.when_closed(dropped.append)
    claim = former.elsewhere(5)
    former.close()
    claim.close()
    assert dropped == [former, claim]


def test_nothing_counts_behind_the_restart_of_a_claim_that_ends() -> None:
    claim = handed(9)
    claim.mark(0, 9)
    claim.close(lambda: None)
    claim.restart(5)
    claim.hand_over(9)
    assert not claim.mark(5, 9)
    assert (claim.consumed, claim.processed, claim.lost) == (5, 5, False)


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


class OneLog(RuleBasedStateMachine):
    """A log and its successive owners, as a member sees them.

    Each claim has a progress that begins where the previous one's commit ended, or at a seek. Offsets are counted one
    by one here, naively.
    """

    @initialize(start=st.integers(0, 1000))
    def begin(self, start: int) -> None:
        self.stored = start
        self._claim(start)
        self.late: list[tuple[Progress, Range]] = []  # delivered by a claim that is lost

    def _claim(self, start: int) -> None:
        self.progress = Progress(TopicPartition("t", 0), start)
        self.start = start
        self.handed: list[Range] = []
        self.done = set[int]()

    @property
    def unacknowledged(self) -> list[Range]:
        return [(first, until) for first, until in self.handed if not self.done.issuperset(range(first, until))]

    @property
    def expected(self) -> int:
        at = self.start
        while at in self.done:
            at += 1
        return at

    @precondition(lambda self: self.progress.open)
    @rule(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6))
    def hand_out(self, sizes: list[int]) -> None:
        """Records with the holes before them, or batches: their ranges tile either way."""
        for size in sizes:
            first = self.progress.consumed
            self.progress.hand_over(first + size)
            self.handed.append((first, first + size))

    @precondition(lambda self: self.unacknowledged)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        for first, until in data.draw(st.lists(st.sampled_from(self.unacknowledged), min_size=1, unique=True)):
            assert self.progress.mark(first, until)
            self.done.update(range(first, until))

    @precondition(lambda self: self.done)
    @rule(data=st.data())
    def acknowledge_again(self, data: st.DataObject) -> None:
        first, until = data.draw(st.sampled_from([each for each in self.handed if self.done.issuperset(range(*each))]))
        assert not self.progress.mark(first, until)

    @rule(ahead=st.integers(0, 50), size=st.integers(1, 50))
    def acknowledge_what_was_never_handed_out(self, ahead: int, size: int) -> None:
        at = self.progress.consumed + ahead
        assert not self.progress.mark(at, at + size)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def acknowledge_too_late(self, data: st.DataObject) -> None:
        progress, (first, until) = data.draw(st.sampled_from(self.late))
        before = progress.processed
        assert not progress.mark(first, until)
        assert progress.processed == before

    @rule()
    def commit(self) -> None:
        assert self.progress.processed >= self.stored
        self.stored = self.progress.processed

    @precondition(lambda self: self.progress.open and len(self.handed) > SOME)
    @rule()
    def revoke(self) -> None:
        """The partition is revoked: delivered records may still be acknowledged."""
        self.settled = False
        self.progress.close(self._settle)

    def _settle(self) -> None:
        self.settled = True

    @precondition(lambda self: not self.progress.open)
    @rule()
    def come_back_after_a_revocation(self) -> None:
        """Committed for the last time, then released, then claimed again."""
        self.commit()
        self._lose_and_claim(self.stored)

    @precondition(lambda self: len(self.handed) > SOME)
    @rule()
    def come_back_after_a_loss(self) -> None:
        self._lose_and_claim(self.stored)

    @precondition(lambda self: len(self.handed) > SOME)
    @rule(offset=st.integers(0, 1000))
    def seek(self, offset: int) -> None:
        self.stored = offset
        self._lose_and_claim(offset)

    def _lose_and_claim(self, at: int) -> None:
        self.late += [(self.progress, each) for each in self.unacknowledged]
        self.progress.close()
        self._claim(at)

    @invariant()
    def processed_is_the_contiguous_prefix(self) -> None:
        assert self.progress.processed == self.expected
        assert self.stored <= self.progress.processed <= self.progress.consumed
        assert all(self.stored <= first for first, _ in self.unacknowledged)

    @invariant()
    def a_release_is_told_when_the_work_in_hand_ends(self) -> None:
        assert self.progress.open or self.settled == (self.expected == self.progress.consumed)

    @invariant()
    def what_is_kept_is_ranges_apart(self) -> None:
        """Memory: at most one range per gap in the acknowledgements."""
        beyond = sorted(at for at in self.done if at >= self.expected)
        runs = [at for at in beyond if at - 1 not in self.done]
        assert [first for first, _ in self.progress.done_beyond] == runs
        assert len(runs) <= len(self.unacknowledged)


TestOneLog = OneLog.TestCase
