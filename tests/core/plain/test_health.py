"""The status line: what a member consumes and how far behind it is."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from kzconsumer.lag.partition import Why
from kzconsumer.lag.totals import total
from kzconsumer.offsets.progress import Position
from kzconsumer.sessions import Sessions
from kzconsumer.status.health import Health
from tests.core.plain.test_status_report import PROGRESS, unknown
from tests.support.chunks import LeaseInHand

OWNED = Position(
    topic="t", partition=0, thread="m-0", fetched=10, consumed=10, processed=5, committed=5, high_watermark=20
)
PAUSED = msgspec.structs.replace(OWNED, partition=1, paused=True)


class Owning:
    """Sessions with these partitions."""

    def __init__(self, positions: tuple[Position, ...]) -> None:
        self._positions = positions

    waits_for = None
    stays_out = ""

    def positions(self) -> tuple[Position, ...]:
        return self._positions


@pytest.mark.parametrize(
    ("positions", "known", "status"),
    [
        ((), 0, "in the group, no partitions"),
        ((OWNED,), 1, "consuming 1 partition, 15 records behind"),
        ((OWNED, PAUSED), 2, "consuming 2 partitions, 30 records behind, 1 paused"),
        ((OWNED, OWNED), 1, "consuming 2 partitions, at least 15 records behind (1 unknown: no leader)"),
        ((PAUSED,), 0, "consuming 1 partition, lag unknown (no leader), 1 paused"),
    ],
)
def test_what_it_consumes_and_how_far_behind_it_is(positions: tuple[Position, ...], known: int, status: str) -> None:
    """`known`: of how many partitions the lag is."""
    health = Health(LeaseInHand(), 6.0, 60.0)
    health.phase, health.sessions = "", cast(Sessions, Owning(positions))
    rows = [PROGRESS] * known + [unknown(Why("no leader"))] * (len(positions) - known)
    health.total = lambda: total(rows)
    assert health.status() == status
