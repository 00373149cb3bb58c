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
