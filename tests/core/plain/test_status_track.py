"""What is derived from observations of one partition."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kzconsumer.lag.partition import FRESH, Measured, Reason, Why
from kzconsumer.offsets.progress import Position
from kzconsumer.status.partition_health import ListedLog, PartitionStatus, Track, hindrance

BEHIND = Position(
    topic="t", partition=0, thread="m-0", fetched=10, consumed=10, processed=5, committed=4, high_watermark=20, leader=1
)


def changed(**fields: Any) -> Position:
    return msgspec.structs.replace(BEHIND, **fields)


def read(position: Position, time: float) -> Position:
    """A broker has returned its high watermark at that time."""
    return msgspec.structs.replace(position, high_watermark_at=time)


def status_after(*looks: tuple[float, Position], at: float, lease: bool = True) -> PartitionStatus:
    """Each look reads the high watermark, and so does the status."""
    track = Track(looks[0][1], looks[0][0])
    for time, position in looks:
        track.look(read(position, time), time, asked=None, committed=True)
    return track.status(read(looks[-1][1], at), at, at, lease, 60.0)


def test_lags_of_the_four_offsets() -> None:
    status = status_after((0.0, BEHIND), at=1.0)
    assert status.offsets == {"fetched": 10, "consumed": 10, "processed": 5, "committed": 4}
    assert status.lag == {"fetched": 10, "consumed": 10, "processed": 15, "committed": 16}


def test_unknown_values_are_left_out() -> None:
    status = status_after((0.0, changed(fetched=None, committed=None, high_watermark=None)), at=1.0)
    assert status.offsets == {"consumed": 10, "processed": 5}
    assert (status.lag, status.lag_seconds, status.end) == ({}, {}, None)
    assert (status.rate, status.eta, status.judgement) == (None, None, None)
    assert (status.stalled, status.progress.why) == (False, Why("not read yet"))


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


@pytest.mark.parametrize("led", [True, False])
@pytest.mark.parametrize("said", ["no leader", "brokers unreachable", "broker error", "not permitted"])
def test_the_reason_is_that_of_the_unknown_lag(said: Reason, led: bool) -> None:
    """A member waits for an answer of the former leader for half a minute; others say by then that it is gone."""
    assert hindrance(changed(consumed=5, fetched=5, led=led), True, Why(said)) == said
    assert hindrance(changed(), True, Why(said)) == "sink slow", "which does not wait for the broker"


def test_a_partition_without_leader_from_the_start_is_stalled() -> None:
    status = status_after((0.0, changed(high_watermark=None, led=False)), at=60.0)
    assert (status.stalled, status.hindrance, status.lag) == (True, "no leader", {})


def test_the_lag_of_a_paused_partition_comes_from_the_broker() -> None:
    paused = changed(paused=True)
    track = Track(paused, 0.0)
    track.look(read(paused, 0.0), 7.0, asked=ListedLog(Measured(0, 6.0), Measured(500, 6.0)), committed=False)
    status = track.status(read(paused, 0.0), 8.0, 8.0, True, 60.0)
    assert (status.lag["processed"], status.progress.age) == (495, 0.0)
    track.look(read(paused, 9.0), 12.0, asked=None, committed=False)
    assert track.status(read(paused, 9.0), 12.0, 12.0, True, 60.0).lag["processed"] == 15, "the newest counts"


def test_a_caught_up_partition_that_is_cut_off_is_unknown_and_then_stalled() -> None:
    done = read(changed(fetched=20, consumed=20, processed=20, committed=20), 0.0)
    track, cut = Track(done, 0.0), Why("brokers unreachable", 0.0)
    found = {}
    for second in range(0, 101, 5):
        track.look(done, float(second), asked=cut if second > 5 else None, committed=True)
        found[second] = track.status(done, float(second), float(second), True, 60.0)
    known, unknown, stalled = found[int(FRESH)], found[int(FRESH) + 5], found[80]
    assert (known.lag["processed"], known.lag_seconds["processed"], known.judgement) == (0, 0.0, "OK")
    assert (unknown.lag, unknown.lag_seconds, unknown.eta, unknown.judgement) == ({}, {}, None, None)
    assert (unknown.progress.why, unknown.standing, unknown.end) == (cut, 5.0, 20)
    assert (unknown.stalled, stalled.stalled, stalled.hindrance) == (False, True, "brokers unreachable")
