"""Bytes per second: a fetch is paid for by waiting afterwards, and idle time saves up for at most a second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.fetcher.throttle import RateLimit


def test_without_a_limit_nothing_waits() -> None:
    limit = RateLimit(None)
    limit.spend(5.0, 1 << 40)
    assert limit.wait(5.0) == 0.0


def test_one_second_is_available_at_once_and_then_the_rate_applies() -> None:
    limit = RateLimit(1000)
    limit.spend(100.0, 1000)
    assert limit.wait(100.0) == 0.0
    limit.spend(100.0, 500)
    assert limit.wait(100.0) == 0.5
    assert limit.wait(100.4) == 100.5 - 100.4
    assert limit.wait(101.0) == 0.0


def test_exceeding_the_limit_delays_the_next_fetch() -> None:
    limit = RateLimit(1000)
    limit.spend(10.0, 6000)
    assert limit.wait(10.0) == 5.0
    limit.spend(15.0, 1000)
    assert limit.wait(15.0) == 1.0


def test_idle_time_does_not_add_up() -> None:
    limit = RateLimit(1000)
    limit.spend(10.0, 1000)
    limit.spend(1000.0, 3000)
    assert limit.wait(1000.0) == 2.0


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from([None, 10, 1000]), st.integers(0, 5000)), max_size=20))
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
