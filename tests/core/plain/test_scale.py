"""A large group in memory: what each member asks of ZooKeeper is bounded, and so is the time until all is owned.

`python -m tests.bench.scale --simulated` prints the figures of groups of any size. That no partition is held twice at
any time, and none is without owner after a phase, is checked there.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.bench.scale_simulated import phases
from tests.support.extent import extent

MEMBERS, TOPICS, PARTITIONS = extent((100, 5, 100), (300, 10, 300))
"""Partitions of each topic."""
SPREAD = 2.0
SHARE = TOPICS * PARTITIONS / MEMBERS
"""Partitions of a member."""


class Bound(NamedTuple):
    """Half as much again as was measured."""

    seconds: float
    requests: float
    """Of a member, by the median."""
    most: float
    """Of any member."""


BOUNDS = {
    # Each registration and topic is read once; the first members claim what later ones get.
    "start": Bound(SPREAD + 1.5, MEMBERS + TOPICS + 15 * SHARE, MEMBERS + TOPICS + 80 * SHARE),
    # Two or three looks, which read 32 nodes again, and as many owners of others.
    "a minute at rest": Bound(0.0, 3 * (64 + 2 * TOPICS + 8), 3 * (64 + 2 * TOPICS + 8)),
    "1 restarted in turn": Bound(1.5, 2 * (10 + 8 * SHARE), MEMBERS + TOPICS + 20 * SHARE),
    "a third killed": Bound(9.0, 64 + 20 * SHARE, MEMBERS + TOPICS + 40 * SHARE),
    # A member whose session the former leader denied may have to join again.
    "no leader for 3 s": Bound(4.0, 16, MEMBERS + 3 * TOPICS + 40 * SHARE),
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
