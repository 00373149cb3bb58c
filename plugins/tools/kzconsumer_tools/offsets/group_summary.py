"""One group in a list of all: its members, its lag and its last commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

import msgspec

from kzconsumer.lag.partition import Reason


class GroupSummary(msgspec.Struct, frozen=True):
    """One group. `ours`, `original`, `unreadable`: members by kind. `topics`: with owner or offset nodes; `owned`:
    number of owner nodes; `last_commit`: when an offset was last stored; `lag` and what follows as in `GroupLag`.

    `not_read`: why the group cannot be read; then nothing else is known of it.
    """

    group: str
    ours: int = 0
    original: int = 0
    unreadable: int = 0
    topics: tuple[str, ...] = ()
    owned: int = 0
    last_commit: datetime | None = None
    lag: int | None = None
    lag_at_least: int = 0
    unknown: Mapping[Reason, int] = {}
    seconds: float | None = None
    seconds_at_least: float | None = None
    unknown_seconds: Mapping[Reason, int] = {}
    lost: int | None = None
    gone: int = 0
    partitions: int = 0
    not_read: str = ""

    @property
    def members(self) -> int:
        return self.ours + self.original + self.unreadable


def worst_first(groups: Collection[GroupSummary]) -> list[GroupSummary]:
    """What cannot be read, then by the age of the next record, then by lag."""
    return sorted(
        groups, key=lambda each: (not each.not_read, -(each.seconds_at_least or 0.0), -each.lag_at_least, each.group)
    )
