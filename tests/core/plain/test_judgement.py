"""Burrow's evaluation rules, as properties that hold for every window."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.status.judgement import WINDOW, Commit, judge

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


@given(windows(least=2), st.integers(1, 50), st.floats(0, 1000))
def test_stop_is_silence_longer_than_the_window(commits: list[Commit], lag: int, later: float) -> None:
    now = commits[-1].at + later
    assert (judge(commits, lag, now) == "STOP") == (now - commits[-1].at > commits[-1].at - commits[0].at)


@given(windows(least=2), st.integers(1, 50))
def test_a_lag_that_was_recently_zero_is_not_a_fault(commits: list[Commit], lag: int) -> None:
    commits[len(commits) // 2] = commits[len(commits) // 2]._replace(lag=0)
    assert judge(commits, lag, commits[-1].at) == "OK"


@given(windows(least=2), st.integers(1, 50))
def test_rewind_stall_and_warn_are_distinguished(commits: list[Commit], lag: int) -> None:
    commits = [commit._replace(lag=commit.lag or 1) for commit in commits]
    went = [after.offset - before.offset for before, after in pairwise(commits)]
    shrank = any(after.lag < before.lag for before, after in pairwise(commits))  # type: ignore[operator]
    found = judge(commits, lag, commits[-1].at)
    if any(step < 0 for step in went):
        assert found == "REWIND"
    elif not any(went):
        assert found == "STALL"
    else:
        assert found == ("OK" if shrank else "WARN")


@given(windows(), st.one_of(st.none(), st.integers(0, 50)), st.floats(0, 1000), st.floats(-1e6, 1e6))
def test_only_time_differences_matter(commits: list[Commit], lag: int | None, later: float, shift: float) -> None:
    whole = [commit._replace(at=float(round(commit.at))) for commit in commits]
    shifted = [commit._replace(at=commit.at + round(shift)) for commit in whole]
    then = whole[-1].at + round(later)
    assert judge(whole, lag, then) == judge(shifted, lag, then + round(shift))
