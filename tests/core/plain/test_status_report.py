"""The totals over all partitions."""

from __future__ import annotations

from typing import Any

import msgspec

from kzconsumer.status.report import point
from kzconsumer.status.track import PartitionStatus

KNOWN = PartitionStatus(
    topic="t", partition=0, owner="m-0", leader=1, offsets={"processed": 5}, end=20, lag={"processed": 15},
    lag_seconds={"processed": 4.0}, rate=2.0, eta=7.5, paused=False, standing=0.0, hindrance=None, stalled=False,
    judgement="OK", complete=1.0,
)  # fmt: skip


def changed(**fields: Any) -> PartitionStatus:
    return msgspec.structs.replace(KNOWN, **fields)


def test_totals() -> None:
    found = point(7.0, [KNOWN, changed(lag={"processed": 1}, lag_seconds={"processed": 9.0}, rate=0.5, stalled=True)])
    assert (found.owned, found.stalled, found.lag, found.lag_seconds, found.rate) == (2, 1, 16, 9.0, 2.5)


def test_a_total_is_unknown_if_one_part_is() -> None:
    found = point(7.0, [KNOWN, changed(lag={"fetched": 1}, lag_seconds={}, rate=None)])
    assert (found.owned, found.lag, found.lag_seconds, found.rate) == (2, None, None, None)


def test_totals_without_partitions() -> None:
    found = point(7.0, [])
    assert (found.owned, found.lag, found.lag_seconds, found.rate) == (0, 0, 0.0, 0)
