"""Which rebalances are kept individually and which are only counted."""

from __future__ import annotations

from typing import Any

from kzconsumer.counters import TIMELINE, Rebalance, RebalanceCounters, kind_of


def rebalance(outcome: Any = "done", reason: str = "members", **numbers: int) -> Rebalance:
    return Rebalance(0.0, 0.1, (reason,), outcome, 1, **numbers)


def test_the_timeline_has_changes_and_the_first_of_failures() -> None:
    counters = RebalanceCounters()
    first, nothing = rebalance(reason="start"), rebalance()
    blocked, again = rebalance("blocked", blocked=1), rebalance("blocked", "retry", blocked=1)
    claimed, torn = rebalance(claimed=1), rebalance("interrupted")
    for each in (first, nothing, blocked, again, again, claimed, nothing, torn, torn, blocked):
        counters.add(each)
    assert list(counters.timeline) == [first, blocked, claimed, torn, blocked]
    assert sum(counters.counts.values()) == counters.seconds.count == 10
    assert counters.counts["retry", "blocked"] == 2


def test_bounded() -> None:
    counters = RebalanceCounters()
    for number in range(TIMELINE * 2):
        counters.add(rebalance(reason=f"owner of topic-{number}", claimed=1))
    assert len(counters.timeline) == TIMELINE
    assert dict(counters.counts) == {("owner", "done"): TIMELINE * 2}


def test_the_number_of_kinds_is_bounded() -> None:
    output = ["start", "retry", "members", "topic orders", "topics", "brokers", "owner of t-1", "lost t-1", "reconcile"]
    assert [kind_of(each) for each in output] == [
        "start", "retry", "members", "topic", "topics", "brokers", "owner", "lost", "reconcile",
    ]  # fmt: skip
