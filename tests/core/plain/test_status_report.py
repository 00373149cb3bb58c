"""The totals over all partitions, and the status line: what a member consumes and how far behind it is."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from kzconsumer.lag.partition import Measured, PartitionFacts, PartitionLag, Why, partition_lag
from kzconsumer.lag.totals import total
from kzconsumer.offsets.progress import Position
from kzconsumer.sessions import Sessions
from kzconsumer.status.health import Health
from kzconsumer.status.partition_health import PartitionStatus
from kzconsumer.status.report import point
from tests.support.chunks import LeaseInHand

PROGRESS = partition_lag(
    PartitionFacts(topic="t", partition=0, position=5, end=Measured(20, 9.0), written=5_000), now=9.0, wall=9.0
)
KNOWN = PartitionStatus(
    topic="t", partition=0, owner="m-0", leader=1, offsets={"processed": 5}, end=20, state="behind", progress=PROGRESS,
    lag={"processed": 15},
    lag_seconds={"processed": 4.0}, rate=2.0, eta=7.5, paused=False, standing=0.0, hindrance=None, stalled=False,
    judgement="OK", complete=1.0,
)  # fmt: skip


def unknown(why: Why) -> PartitionLag:
    return partition_lag(PartitionFacts(topic="t", partition=0, position=5, silent=why), 9.0, 9.0)


def changed(**fields: Any) -> PartitionStatus:
    return msgspec.structs.replace(KNOWN, **fields)


def test_totals() -> None:
    other = msgspec.structs.replace(PROGRESS, lag=1, at_least=1, seconds=9.0)
    found = point(7.0, [KNOWN, changed(progress=other, rate=0.5, stalled=True)])
    assert (found.owned, found.stalled, found.lag, found.lag_seconds, found.rate) == (2, 1, 16, 9.0, 2.5)


def test_a_total_is_unknown_if_one_part_is() -> None:
    found = point(7.0, [KNOWN, changed(progress=unknown(Why("no leader")), rate=None)])
    assert (found.owned, found.lag, found.lag_seconds, found.rate) == (2, None, None, None)
    assert (found.at_least, found.unknown) == (15, 1)


def test_totals_without_partitions() -> None:
    found = point(7.0, [])
    assert (found.owned, found.lag, found.lag_seconds, found.rate) == (0, 0, 0.0, 0)


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
