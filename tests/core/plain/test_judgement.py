"""Burrow's evaluation rules: windows worked out by hand, and properties that hold for every window."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.status.partition_health import WINDOW, Commit, judge

offsets = st.integers(0, 50)
steps = st.floats(0.5, 10.0)


@st.composite
def windows(draw: st.DrawFn, least: int = 1) -> list[Commit]:
    count = draw(st.integers(least, WINDOW))
    at, commits = 0.0, []
    for _ in range(count):
        at += draw(steps)
        commits.append(Commit(at, draw(offsets), draw(st.one_of(st.none(), st.integers(0, 50)))))
    return commits


@given(windows(), st.floats(0, 1000))
def test_nothing_is_wrong_without_lag(commits: list[Commit], later: float) -> None:
    assert judge(commits, 0, commits[-1].at + later) == "OK"


@given(windows(), st.floats(0, 1000))
def test_an_unknown_lag_is_not_judged(commits: list[Commit], later: float) -> None:
    assert judge(commits, None, commits[-1].at + later) is None
    assert judge([], 5, later) is None


@pytest.mark.parametrize(
    ("window", "lag", "now", "judgement"),
    [
        # Offset and lag of a commit every 10 s, from 0 s on.
        ([(7, 5)], 5, 900, "OK"),
        ([(1, 5), (2, 5), (3, 5)], 5, 20, "WARN"),
        ([(1, 5), (2, 5), (3, 6)], 6, 20, "WARN"),
        ([(1, 5), (1, 5), (2, 5)], 5, 20, "WARN"),
        ([(1, None), (2, None)], 6, 10, "WARN"),
        ([(1, 5), (2, 4), (3, 6)], 6, 20, "OK"),
        ([(1, 5), (2, None), (3, 4)], 4, 20, "OK"),
        ([(1, 5), (2, 0), (3, 6)], 6, 20, "OK"),
        ([(3, 5), (3, 6), (3, 7)], 7, 20, "STALL"),
        ([(3, 5), (3, 5)], 5, 10, "STALL"),
        ([(3, 7), (3, 6)], 6, 10, "STALL"),
        ([(3, 5), (3, 0)], 6, 10, "OK"),
        ([(5, 1), (4, 2), (9, 1)], 1, 20, "OK"),  # it went back, and has recovered
        ([(5, 1), (4, 2), (5, 2)], 2, 20, "WARN"),
        ([(5, 1), (3, 3), (4, 2)], 2, 20, "REWIND"),
        ([(5, 0), (0, 9), (3, 6)], 6, 20, "REWIND"),
        ([(3, 5), (7, 1), (4, 4)], 4, 20, "REWIND"),  # above the first one
        ([(5, 1), (5, 2), (4, 3)], 3, 20, "REWIND"),
        ([(5, 1), (4, 0), (9, 1)], 1, 20, "OK"),
        ([(1, 5), (2, 5), (3, 5)], 5, 40, "WARN"),
        ([(1, 5), (2, 5), (3, 5)], 5, 41, "STOP"),
        ([(1, 5), (2, 0), (3, 5)], 5, 41, "STOP"),
        ([(5, 1), (4, 1)], 1, 21, "STOP"),
        ([(1, 5), (2, 5), (3, 5)], 0, 41, "OK"),
    ],
)
def test_windows_as_burrow_judges_them(
    window: list[tuple[int, int | None]], lag: int, now: float, judgement: str
) -> None:
    commits = [Commit(10.0 * number, *each) for number, each in enumerate(window)]
    assert judge(commits, lag, now) == judge(deque(commits), lag, now) == judgement


@given(windows(least=2), st.integers(1, 50))
def test_a_lag_that_was_recently_zero_is_no_fault_of_a_consumer_that_advances(commits: list[Commit], lag: int) -> None:
    commits[len(commits) // 2] = commits[len(commits) // 2]._replace(lag=0)
    ahead = [commit._replace(offset=commit.offset + 50 * n) for n, commit in enumerate(commits)]
    assert judge(ahead, lag, ahead[-1].at) == "OK"


@given(windows(), st.integers(1, 50), st.floats(0, 1000), st.lists(st.integers(0, 100)), st.floats(0, 500))
def test_a_consumer_that_was_recently_at_the_end_has_not_stopped(
    commits: list[Commit], lag: int, later: float, ends: list[int], alone: float
) -> None:
    """A record that comes after a long silence is no reason for STOP; but for that it is the same without `ends`."""
    now, last = commits[-1].at + later, commits[-1]
    without = judge(commits, lag, now, alone=alone)
    found = judge(commits, lag, now, ends, alone)
    if any(end <= last.offset for end in ends):
        assert found != "STOP"
        assert found == without or without == "STOP"
    else:
        assert found == without


@pytest.mark.parametrize(("now", "judgement"), [(450, "OK"), (451, "STOP")])
def test_a_single_commit_is_judged_by_the_span_given(now: float, judgement: str) -> None:
    assert judge([Commit(0, 7, 5)], 5, now, [12], alone=450) == judgement
    assert judge([Commit(0, 7, 5)], 5, now, [12]) == "OK"


@given(windows(), st.one_of(st.none(), st.integers(0, 50)), st.floats(0, 1000), st.floats(-1e6, 1e6))
def test_only_time_differences_matter(commits: list[Commit], lag: int | None, later: float, shift: float) -> None:
    whole = [commit._replace(at=float(round(commit.at))) for commit in commits]
    shifted = [commit._replace(at=commit.at + round(shift)) for commit in whole]
    then = whole[-1].at + round(later)
    assert judge(whole, lag, then) == judge(shifted, lag, then + round(shift))
