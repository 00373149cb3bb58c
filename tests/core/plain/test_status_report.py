"""The totals over all partitions."""

from __future__ import annotations

from typing import Any

import msgspec

from kzconsumer.lag.partition import Measured, PartitionFacts, PartitionLag, Why, partition_lag
from kzconsumer.status.partition_health import PartitionStatus
from kzconsumer.status.report import point

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
