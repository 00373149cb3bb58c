"""Who takes part in a group, and which faults happen when: all of it follows from the seed."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import NamedTuple

from tests.interop.evidence import Kind

QUIET = 8.0
"""Seconds from a fault to the next one, half of that to one and a half times."""


class What(Enum):
    KILL = "kill"
    SUSPEND = "suspend"
    TERMINATE = "terminate"
    KILL_LEADER = "kill ZooKeeper's leader"
    SUSPEND_LEADER = "suspend ZooKeeper's leader"
    KILL_BROKER = "kill broker"
    TERMINATE_BROKER = "terminate broker"


OF_MEMBERS = (What.KILL, What.SUSPEND, What.TERMINATE)
OF_ZOOKEEPER = (What.KILL_LEADER, What.SUSPEND_LEADER)
OF_BROKERS = (What.KILL_BROKER, What.TERMINATE_BROKER)

_WEIGHTS = {
    What.KILL: 5,
    What.SUSPEND: 5,
    What.TERMINATE: 4,
    What.KILL_LEADER: 2,
    What.SUSPEND_LEADER: 1,
    What.KILL_BROKER: 1,
    What.TERMINATE_BROKER: 1,
}
_LASTS = {
    What.KILL: (0.5, 9.0),
    What.TERMINATE: (0.5, 5.0),
    What.KILL_LEADER: (0.5, 6.0),
    What.SUSPEND_LEADER: (0.5, 5.0),
    What.KILL_BROKER: (6.5, 10.0),
    What.TERMINATE_BROKER: (1.0, 5.0),
}
"""Seconds until what was stopped is started or continued."""
_SUSPENSIONS = ((0.3, 3.0), (8.0, 13.0))
"""Clearly shorter than a session, or clearly longer."""
_RECOVERY = {OF_MEMBERS: 2.0, OF_ZOOKEEPER: 8.0, OF_BROKERS: 25.0}
"""Seconds after that in which nothing happens to the same member, or to any server of that kind: two ZooKeeper servers
must stay, and a broker's copies have to catch up."""


class Fault(NamedTuple):
    at: float
    what: What
    target: str
    """A member's name, or a broker's id; empty for ZooKeeper's leader, which is found when it happens."""
    lasts: float

    def __str__(self) -> str:
        return f"{self.at:6.1f} s: {self.what.value} {self.target} for {self.lasts:.1f} s"


def members(chance: Random, count: int, kinds: Sequence[Kind]) -> dict[str, Kind]:
    """Names -> kinds: two of ours, one or more of each other kind. The assignment follows the names."""
    drawn = [Kind.OURS, *kinds, *(chance.choice(kinds) for _ in range(count))][:count]
    chance.shuffle(drawn)
    return {f"{chr(ord('a') + number)}-{kind.value}": kind for number, kind in enumerate(drawn)}


def faults(chance: Random, seconds: float, names: Sequence[str], brokers: Sequence[int]) -> list[Fault]:
    """Each begins within `seconds`; those of different targets may be under way at the same time."""
    drawn: list[Fault] = []
    free: dict[str, float] = {}
    at = QUIET / 2
    while at < seconds:
        what = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        lasts = round(chance.uniform(*(chance.choice(_SUSPENSIONS) if what is What.SUSPEND else _LASTS[what])), 1)
        target = _target(chance, what, names, brokers)
        group = next(group for group in _RECOVERY if what in group)
        busy = target if what in OF_MEMBERS else str(group)
        if free.get(busy, 0.0) <= at:
            drawn.append(Fault(round(at, 1), what, target, lasts))
            free[busy] = at + lasts + _RECOVERY[group]
            at += chance.uniform(0.5, 1.5) * QUIET
        else:
            at += 0.5
    return drawn


def _target(chance: Random, what: What, names: Sequence[str], brokers: Sequence[int]) -> str:
    if what in OF_MEMBERS:
        return chance.choice(names)
    return str(chance.choice(brokers)) if what in OF_BROKERS else ""
