"""What the soak's verdict is based on: offsets that arrived, allowed redeliveries, and a member's resources."""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.soak.__main__ import Sample, grown, is_long_enough, judged, memory_grown
from tests.soak.ledger import Ledger
from tests.soak.process import Held


@pytest.mark.parametrize("order", list(permutations([(0, 10), (20, 30), (10, 20), (5, 12)])))
def test_ranges_grow_together_in_any_order(order: tuple[tuple[int, int], ...]) -> None:
    ledger = Ledger()
    for first, until in order:
        ledger.add(3, first, until)
    assert (ledger.distinct, ledger.twice) == (30, 7)
    assert ledger.missing({3: 30}) == 0
    assert ledger.missing({3: 32, 4: 5}) == 7


def test_an_offset_is_missing_until_it_arrives() -> None:
    ledger = Ledger()
    ledger.add(0, 0, 10)
    ledger.add(0, 12, 20)
    assert (ledger.missing({0: 11}), ledger.missing({0: 20}), ledger.missing({0: 10})) == (1, 2, 0)
    ledger.add(0, 10, 12)
    assert (ledger.missing({0: 20}), ledger.twice) == (0, 0)


def test_redelivery_is_allowed_after_a_kill_but_not_to_an_exactly_once_sink() -> None:
    assert judged("kill", 0, 40, exactly_once=False, harsh=True, batch=10) == []
    assert len(judged("kill", 0, 41, exactly_once=False, harsh=True, batch=10)) == 1
    assert len(judged("terminate", 0, 1, exactly_once=False, harsh=False, batch=10)) == 1
    assert len(judged("kill", 0, 1, exactly_once=True, harsh=True, batch=10)) == 1
    assert len(judged("kill", 1, 0, exactly_once=False, harsh=True, batch=10)) == 1


def samples(*, leak: float = 0.0, tasks: float = 0.0) -> list[Sample]:
    """Half an hour, every five seconds."""
    return [
        Sample(at, Held(200 + at % 7 + leak * at, 10 + int(at) % 3, 5, int(15 + tasks * at)))
        for at in map(float, range(0, 1800, 5))
    ]


def test_growth_is_reported_and_fluctuation_is_not() -> None:
    assert memory_grown(samples()) + grown(samples()) == []
    assert [output.split(" of ")[0] for output in memory_grown(samples(leak=0.05))] == ["memory"]
    assert [output.split(" of ")[0] for output in grown(samples(tasks=0.01))] == ["tasks"]


def test_three_minutes_are_enough_for_a_verdict() -> None:
    assert is_long_enough(samples()[:36])
    assert not is_long_enough(samples()[:35])
