"""What is derived from observations of one partition."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kzconsumer.offsets.position import Position
from kzconsumer.status.track import MOST, LogGrowth, PartitionStatus, Track, hindrance

BEHIND = Position(
    topic="t", partition=0, thread="m-0", fetched=10, consumed=10, processed=5, committed=4, high_watermark=20, leader=1
)


def changed(**fields: Any) -> Position:
    return msgspec.structs.replace(BEHIND, **fields)


def status_after(*looks: tuple[float, Position], at: float, lease: bool = True) -> PartitionStatus:
    track = Track(looks[0][1], looks[0][0])
    for time, position in looks:
        track.look(position, time, end=None, committed=True)
    return track.status(looks[-1][1], at, lease, 60.0)


def test_lags_of_the_four_offsets() -> None:
    status = status_after((0.0, BEHIND), at=1.0)
    assert status.offsets == {"fetched": 10, "consumed": 10, "processed": 5, "committed": 4}
    assert status.lag == {"fetched": 10, "consumed": 10, "processed": 15, "committed": 16}


def test_unknown_values_are_left_out() -> None:
    status = status_after((0.0, changed(fetched=None, committed=None, high_watermark=None)), at=1.0)
    assert status.offsets == {"consumed": 10, "processed": 5}
    assert (status.lag, status.lag_seconds, status.end) == ({}, {}, None)
    assert (status.rate, status.eta, status.judgement) == (None, None, None)
    assert (status.stalled, status.hindrance) == (False, None)


def test_lag_in_seconds_is_known_once_the_log_end_was_observed() -> None:
    looks = [(10.0 * n, changed(high_watermark=10 * n, processed=25, committed=5, fetched=40)) for n in range(1, 5)]
    status = status_after(*looks, at=40.0)
    assert status.lag_seconds == {"fetched": 0.0, "processed": pytest.approx(15.0), "consumed": pytest.approx(30.0)}
    assert "committed" not in status.lag_seconds, "written before the first observation: the time is unknown"


def test_rate_and_time_left() -> None:
    grows = [(float(n), changed(processed=10 * n, high_watermark=100 + 5 * n)) for n in range(3)]
    status = status_after(*grows, at=2.0)
    assert status.rate == 10
    assert status.eta == pytest.approx((110 - 20) / 5)
    never = [(float(n), changed(processed=n, high_watermark=100 + n)) for n in range(3)]
    assert status_after(*never, at=2.0).eta is None
    assert status_after((0.0, changed(processed=20)), (1.0, changed(processed=20)), at=1.0).eta == 0


def test_a_partition_behind_without_progress_is_stalled() -> None:
    assert not status_after((0.0, BEHIND), at=59.0).stalled
    status = status_after((0.0, BEHIND), at=60.0)
    assert (status.stalled, status.standing, status.hindrance) == (True, 60.0, "sink slow")
    assert not status_after((0.0, BEHIND), (50.0, changed(processed=6)), at=61.0).stalled
    assert not status_after((0.0, changed(processed=20)), at=1000.0).stalled
    assert not status_after((0.0, changed(end=5)), at=1000.0).stalled
    # Counted from when it got something to consume.
    done, more = changed(processed=20), changed(processed=20, high_watermark=21)
    assert not status_after((0.0, done), (995.0, done), (999.0, more), at=1000.0).stalled


@pytest.mark.parametrize(
    ("fields", "lease", "reason"),
    [
        ({}, False, "session doubtful"),
        ({"failed": True}, True, "failed"),
        ({"paused": True}, True, "paused"),
        ({"led": False}, True, "no leader"),
        ({}, True, "sink slow"),
        ({"consumed": 5, "queue_full": True}, True, "queue full"),
        ({"consumed": 5}, True, "collecting"),
        ({"consumed": 5, "fetched": 5}, True, "no records received"),
    ],
)
def test_the_reason_is_reported(fields: dict[str, Any], lease: bool, reason: str) -> None:
    assert hindrance(changed(**fields), lease) == reason


def test_a_partition_without_leader_from_the_start_is_stalled() -> None:
    status = status_after((0.0, changed(high_watermark=None, led=False)), at=60.0)
    assert (status.stalled, status.hindrance, status.lag) == (True, "no leader", {})


def test_the_lag_of_a_paused_partition_comes_from_the_broker() -> None:
    paused = changed(paused=True)
    track = Track(paused, 0.0)
    track.look(paused, 0.0, end=500, committed=False)
    assert track.status(paused, 1.0, True, 60.0).lag["processed"] == 495


def test_an_idle_log_has_grown_only_since_the_last_observation() -> None:
    growth = LogGrowth()
    for end, at in ((10, 0.0), (10, 50.0), (20, 60.0)):
        growth.saw(end, at)
    assert growth.reached(15) == 55
    assert growth.reached(10) == 50
    assert growth.reached(9) is None


def test_the_history_reaches_back_and_is_bounded() -> None:
    growth = LogGrowth()
    for second in range(100_000):
        growth.saw(second * 10, float(second))
    assert len(growth._seen) <= MOST
    for offset in (0, 12_345, 500_005, 999_985):
        assert growth.reached(offset) == pytest.approx(offset / 10, abs=1e-6)
    assert growth.reached(999_990) is None, "to come"
    growth.saw(5, 100_000.0)
    assert growth.reached(3) is None, "another log"
