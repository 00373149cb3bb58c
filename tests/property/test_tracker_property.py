"""Whatever the order in which work ends: processed is the contiguous prefix, and never more than was handed over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.tracker import OffsetTracker

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
    """What `processed` has to be: the slow way."""
    for number, (_, until) in enumerate(ranges):
        if number not in done:
            return start
        start = until
    return start


@given(work(), st.data())
def test_any_order_of_marks(drawn: tuple[int, list[Range], list[int]], data: st.DataObject) -> None:
    start, ranges, order = drawn
    claim = OffsetTracker(TopicPartition("t", 0), start)
    done = set[int]()
    handed = 0
    before = start
    for number in order:
        # A range is handed over before its work can end, and ranges are handed over in order.
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
def test_settled_is_told_once_the_last_work_ends(
    drawn: tuple[int, list[Range], list[int]], data: st.DataObject
) -> None:
    start, ranges, order = drawn
    claim = OffsetTracker(TopicPartition("t", 0), start)
    claim.hand_over(ranges[-1][1])
    told = list[int]()
    ended = data.draw(st.integers(0, len(order) - 1))
    for number in order[:ended]:
        claim.mark(*ranges[number])
    claim.close(lambda: told.append(claim.processed))
    for number in order[ended:]:
        assert not told
        claim.mark(*ranges[number])
    assert told == [ranges[-1][1]]
