"""A large group in memory: what each member asks of ZooKeeper is bounded, and so is the time until all is owned.

`python -m tests.bench.scale --simulated` prints the figures of groups of any size. That no partition is held twice at
any time, and none is without owner after a phase, is checked there.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.bench.scale_simulated import phases

MEMBERS, TOPICS, PARTITIONS = 30, 3, 30
"""Partitions of each topic."""
SPREAD = 2.0


class Bound(NamedTuple):
    """Half as much again as was measured: the order of members, by random ids, changes the figures."""

    seconds: float
    requests: int
    """Of a member, by the median."""
    most: int
    """Of any member."""


BOUNDS = {
    # Each registration and topic is read once; the first members claim what later ones get.
    "start": Bound(SPREAD + 1.5, 145, 950),
    # Two looks, which read 32 nodes again, and as many owners of others.
    "a minute at rest": Bound(0.0, 180, 190),
    "1 restarted in turn": Bound(1.0, 40, 150),
    # Owner nodes that two looks have to find are read again in the second one.
    "a third killed": Bound(9.0, 65, 160),
    # Most members' next look, which is due by then.
    "no leader for 3 s": Bound(4.0, 110, 150),
}


@pytest.mark.long
def test_what_a_member_of_a_large_group_costs() -> None:
    found = {phase.name: phase for phase in phases(MEMBERS, TOPICS, PARTITIONS, SPREAD, restarts=1, seed=1)}
    assert found.keys() == BOUNDS.keys()
    for name, bound in BOUNDS.items():
        phase = found[name]
        assert phase.seconds <= bound.seconds, phase
        assert phase.requests.median <= bound.requests, phase
        assert phase.requests.max <= bound.most, phase
    # Of a list of members at each look: only the first member reads the owners of all partitions.
    assert found["a minute at rest"].kinds["children"] <= 5
