"""In whatever order work ends: processed is the contiguous prefix, and never more than was delivered."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import DrawFn

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Progress

Range = tuple[int, int]


@st.composite
def work(draw: DrawFn) -> tuple[int, list[Range], list[int]]:
    """Where a claim starts, the ranges that tile it, and the order in which their work ends."""
    start = draw(st.integers(0, 2**40))
    sizes = draw(st.lists(st.integers(1, 50), min_size=1, max_size=30))
    ends = [start + sum(sizes[: n + 1]) for n in range(len(sizes))]
    ranges = list(zip([start, *ends[:-1]], ends, strict=True))
    return start, ranges, draw(st.permutations(range(len(ranges))))


def prefix(start: int, ranges: list[Range], done: set[int]) -> int:
    """What `processed` must be, computed naively."""
    for number, (_, until) in enumerate(ranges):
        if number not in done:
            return start
        start = until
    return start


@given(work(), st.data())
def test_any_order_of_marks(drawn: tuple[int, list[Range], list[int]], data: st.DataObject) -> None:
    start, ranges, order = drawn
    claim = Progress(TopicPartition("t", 0), start)
    done = set[int]()
    handed = 0
    before = start
    for number in order:
        # A range is delivered before its work can end, and ranges are delivered in order.
        for _, until in ranges[handed : number + 1]:
            claim.hand_over(until)
        handed = max(handed, number + 1)
        claim.mark(*ranges[number])
        if data.draw(st.booleans()):
            claim.mark(*ranges[number])  # a second time: no difference
        done.add(number)
        assert claim.processed == prefix(start, ranges, done)
        assert before <= claim.processed <= claim.consumed == ranges[handed - 1][1]
        before = claim.processed
    assert claim.processed == ranges[-1][1]
    assert claim.settled


@given(work(), st.data())
def test_settled_is_reported_once_the_last_work_ends(
    drawn: tuple[int, list[Range], list[int]], data: st.DataObject
) -> None:
    start, ranges, order = drawn
    claim = Progress(TopicPartition("t", 0), start)
    claim.hand_over(ranges[-1][1])
    output = list[int]()
    ended = data.draw(st.integers(0, len(order) - 1))
    for number in order[:ended]:
        claim.mark(*ranges[number])
    claim.close(lambda: output.append(claim.processed))
    for number in order[ended:]:
        assert not output
        claim.mark(*ranges[number])
    assert output == [ranges[-1][1]]


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
    @rule(size=st.integers(1, 40))
    def hand_out(self, size: int) -> None:
        """A record with the hole before it, or a batch: their ranges tile either way."""
        first = self.progress.consumed
        self.progress.hand_over(first + size)
        self.handed.append((first, first + size))

    @precondition(lambda self: self.unacknowledged)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        first, until = data.draw(st.sampled_from(self.unacknowledged))
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

    @precondition(lambda self: self.progress.open)
    @rule()
    def revoke(self) -> None:
        """The partition is revoked: delivered records may still be acknowledged."""
        self.settled = False
        self.progress.close(self._settle)
        assert self.settled == (self.expected == self.progress.consumed)

    def _settle(self) -> None:
        self.settled = True

    @precondition(lambda self: not self.progress.open)
    @rule()
    def come_back_after_a_revocation(self) -> None:
        """Committed for the last time, then released, then claimed again."""
        assert self.settled == (self.expected == self.progress.consumed)
        self.commit()
        self._lose_and_claim(self.stored)

    @rule()
    def come_back_after_a_loss(self) -> None:
        self._lose_and_claim(self.stored)

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
    def what_is_kept_is_ranges_apart(self) -> None:
        """Memory: at most one range per gap in the acknowledgements."""
        beyond = sorted(at for at in self.done if at >= self.expected)
        runs = [at for at in beyond if at - 1 not in self.done]
        assert [first for first, _ in self.progress.done_beyond] == runs
        assert len(runs) <= len(self.unacknowledged)


TestOneLog = OneLog.TestCase


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=200), st.randoms(use_true_random=False))
def test_a_batch_costs_one_range_however_many_rows_it_has(sizes: list[int], chance: random.Random) -> None:
    claim = Progress(TopicPartition("t", 0), 0)
    ends = list(itertools.accumulate(sizes))
    claim.hand_over(ends[-1])
    ranges = list(zip([0, *ends[:-1]], ends, strict=True))
    rest = ranges[1:]
    chance.shuffle(rest)
    for number, (first, until) in enumerate(rest, 1):
        claim.mark(first, until)
        assert len(claim.done_beyond) <= number
    assert [first for first, _ in claim.done_beyond] == [ranges[0][1]][: len(rest)]
    assert claim.processed == 0
    claim.mark(*ranges[0])
    assert (claim.processed, claim.done_beyond) == (ends[-1], [])
