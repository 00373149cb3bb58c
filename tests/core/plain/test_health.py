"""The status line: what a member consumes and how far behind it is."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from kzconsumer.offsets.position import Position
from kzconsumer.sessions import Sessions
from kzconsumer.status.health import Health
from tests.support.chunks import LeaseInHand

BEHIND = Position(
    topic="t", partition=0, thread="m-0", fetched=10, consumed=10, processed=5, committed=5, high_watermark=1_020
)
PAUSED = msgspec.structs.replace(BEHIND, partition=1, paused=True)
UNKNOWN = msgspec.structs.replace(BEHIND, partition=2, high_watermark=None)


class Owning:
    """Sessions with these partitions."""

    def __init__(self, positions: tuple[Position, ...]) -> None:
        self._positions = positions

    def positions(self) -> tuple[Position, ...]:
        return self._positions


@pytest.mark.parametrize(
    ("positions", "status"),
    [
        ((), "in the group, no partitions"),
        ((BEHIND,), "consuming 1 partition, 1,015 records behind"),
        ((BEHIND, PAUSED), "consuming 2 partitions, 1,015 records behind, 1 paused"),
        ((BEHIND, UNKNOWN), "consuming 2 partitions, 1,015 records behind"),
        ((PAUSED,), "consuming 1 partition, lag unknown, 1 paused"),
    ],
)
def test_paused_partitions_are_not_behind(positions: tuple[Position, ...], status: str) -> None:
    """They are not fetched, so the ends of their logs are unknown."""
    health = Health(LeaseInHand(), 6.0, 60.0)
    health.phase, health.sessions = "", cast(Sessions, Owning(positions))
    assert health.status() == status
