"""How much is asked for, and when: of a broker with a quota, and of all brokers by a member with a rate limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.fetcher.throttle import FEWEST_BYTES, PATIENT, SHOWN, RateLimit, Throttle
from tests.support.schedules import schedules

MB = 1 << 20


def test_a_broker_that_holds_responses_back_is_asked_for_what_takes_a_second() -> None:
    """As before 2.0: the answer comes late, and nothing is to be waited for after it."""
    throttle = Throttle(50 * MB)
    for _ in range(3):
        throttle.timed_out(throttle.patience(30.0), 0)
    assert throttle.most < 20_000
    assert throttle.patience(30.0) == 120.0
    assert throttle.answered(100.0, 10.0, 10_000, 50 * MB, muted=False)
    assert throttle.most == FEWEST_BYTES
    assert (throttle.wait(100.0), throttle.patience(30.0), throttle.patience(5.0)) == (0.0, 30.0, 20.0)
    assert not throttle.answered(101.0, 0.5, 1000, 2000, muted=False), "it throttled already"
    assert throttle.throttling(101.0 + SHOWN - 0.1)
    assert not throttle.throttling(101.0 + SHOWN)


def test_more_is_asked_for_once_a_full_response_is_not_throttled() -> None:
    throttle = Throttle(MB)
    throttle.answered(0.0, 4.0, 400_000, MB, muted=True)
    assert throttle.wait(1.0) == 3.0
    assert throttle.most == 100_000
    throttle.answered(4.0, 0.0, 10, MB, muted=True)
    assert throttle.most == 100_000, "it was not limited by that"
    for _ in range(20):
        throttle.answered(5.0, 0.0, throttle.most, MB, muted=True)
    assert throttle.most == MB


def test_an_empty_answer_was_too_large_for_the_quota() -> None:
    """A megabyte at 10 kB/s exceeds the quota over ten seconds tenfold: 90 s."""
    throttle = Throttle(50 * MB)
    throttle.answered(0.0, 90.0, 0, 1_000_000, muted=True)
    assert throttle.most == 50_000
    for _ in range(10):
        throttle.answered(90.0, 0.1, 0, 50_000, muted=True)
    assert throttle.most == FEWEST_BYTES


def test_an_empty_answer_that_fits_in_a_moment_is_asked_for_again() -> None:
    """Brokers from 2.0 on leave a response empty if it exceeds the quota only just. Small ones are mostly headers."""
    throttle = Throttle(MB)
    throttle.answered(0.0, 10.0, 100_000, MB, muted=True)
    assert throttle.most == 10_000
    for _ in range(PATIENT):
        throttle.answered(10.0, 0.3, 0, 10_000, muted=True)
        assert throttle.most == 10_000
    throttle.answered(11.0, 0.3, 0, 10_000, muted=True)
    assert throttle.most < 5000, "others with the same quota take what this one needs"
    throttle.answered(12.0, 0.0, 4000, 4000, muted=True)
    before = throttle.most
    throttle.answered(12.0, 0.3, 0, before, muted=True)
    assert throttle.most == before


def test_a_line_that_is_too_slow() -> None:
    """Half of what came in time comes in half of the time: no more is asked for, until it comes much sooner."""
    throttle = Throttle(50 * MB)
    throttle.timed_out(30.0, 8 * MB)
    assert (throttle.most, throttle.patience(30.0)) == (4 * MB, 60.0)
    throttle.answered(100.0, 0.0, 4 * MB, 4 * MB, muted=True, slow=True)
    assert (throttle.most, throttle.patience(30.0)) == (4 * MB, 60.0)
    throttle.answered(100.0, 0.0, 4 * MB, 4 * MB, muted=True)
    assert (throttle.most, throttle.patience(30.0)) == (5 * MB, 30.0)
    for _ in range(9):
        throttle.timed_out(throttle.patience(30.0), 10)
    assert (throttle.most, throttle.patience(30.0)) == (FEWEST_BYTES, 120.0)


def test_without_a_limit_nothing_waits() -> None:
    limit = RateLimit(None)
    limit.spend(5.0, 1 << 40)
    assert limit.wait(5.0) == 0.0


@given(schedules(st.tuples(st.floats(0, 3), st.sampled_from([None, 10, 1000]), st.integers(0, 5000)), 20))
def test_another_rate_applies_from_its_change_on(steps: list[tuple[float, int | None, int]]) -> None:
    """Against the sum of what may be fetched: one second's allowance, and the rate for the time since the change."""
    limit, time, rate, owed = RateLimit(1000), 10.0, 1000, -1000.0
    for passed, changed, size in steps:
        time, owed = time + passed, max(owed - passed * rate, -rate)
        if changed is not None:
            limit.change(changed)
            rate, owed = changed, -changed
        limit.spend(time, size)
        owed += size
        assert limit.wait(time) == pytest.approx(max(owed, 0.0) / rate, abs=1e-6)
