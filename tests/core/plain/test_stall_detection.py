"""When a member without progress has no excuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from kzconsumer.offsets.progress import Position
from kzconsumer.sessions import Sessions
from kzconsumer.status.health import Health, StallDetection
from tests.support.chunks import LeaseInHand

BEHIND = Position(
    topic="t", partition=0, thread="m-0", fetched=10, consumed=10, processed=5, committed=5, high_watermark=20
)


def after_a_minute(*positions: Position, then: tuple[Position, ...] | None = None, lease: bool = True) -> float:
    stall = StallDetection()
    stall.seconds(1000.0, positions, lease)
    stall.seconds(1030.0, positions, lease)
    return stall.seconds(1060.0, positions if then is None else then, lease)


def test_a_member_that_is_behind_without_progress_is_stalled() -> None:
    assert after_a_minute(BEHIND) == 60
    done = msgspec.structs.replace(BEHIND, partition=1, processed=20)
    assert after_a_minute(BEHIND, done) == 60


@pytest.mark.parametrize(
    "excuse",
    [
        {"processed": 20},
        {"paused": True},
        {"led": False},
        {"high_watermark": None},
        {"end": 5},
        {"rate_limited": True, "fetched": 5, "consumed": 5},
        {"throttled": True, "fetched": 5, "consumed": 5},
    ],
)
def test_excuses(excuse: dict[str, object]) -> None:
    assert after_a_minute(msgspec.structs.replace(BEHIND, **excuse)) == 0


@pytest.mark.parametrize("consumed", [5, 10])
@pytest.mark.parametrize("forbidden", ["rate_limited", "throttled"])
def test_what_is_fetched_can_be_processed_though_nothing_more_may_be_fetched(forbidden: str, consumed: int) -> None:
    assert after_a_minute(msgspec.structs.replace(BEHIND, consumed=consumed, **{forbidden: True})) == 60


@pytest.mark.parametrize("advance", [{"fetched": 11}, {"consumed": 11}, {"processed": 6}])
def test_any_advance_counts(advance: dict[str, int]) -> None:
    assert after_a_minute(BEHIND, then=(msgspec.structs.replace(BEHIND, **advance),)) == 0


def test_a_lease_in_doubt_and_a_rebalance_are_excuses() -> None:
    assert after_a_minute(BEHIND, lease=False) == 0
    assert after_a_minute() == 0
    assert after_a_minute(BEHIND, then=()) == 0


class Running:
    """Sessions of a daemon whose position does not change."""

    waits_for = None

    def __init__(self, *positions: Position, dead_letters: int = 0, postponed: bool = False) -> None:
        self._positions = positions
        self.postponed = postponed
        self.rejects = SimpleNamespace(waiting=dead_letters)
        self.task_last_ran = 0.0

    def positions(self) -> tuple[Position, ...]:
        return self._positions


@pytest.mark.parametrize(
    ("task", "running", "reason"),
    [
        (True, Running(msgspec.structs.replace(BEHIND, paused=True)), None),
        (True, Running(BEHIND, dead_letters=1), None),
        (True, Running(BEHIND, postponed=True), None),
        (True, Running(BEHIND), "nothing has been fetched or processed for 61 s, though there is something to read"),
        (False, Running(BEHIND), "the task of the ZooKeeper session has not run for 61 s"),
    ],
)
def test_why_a_daemon_has_to_be_restarted(
    task: bool, running: Running, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = 1000.0
    monkeypatch.setattr("kzconsumer.status.health.now", lambda: time)
    health = Health(LeaseInHand(), 6.0, 60.0)
    assert health.fault() is None, "it has not joined"
    health.sessions = cast(Sessions, running)
    for phase in ("joining", ""):
        health.phase = phase
        for time in (1000.0, 1060.0, 1061.0):
            running.task_last_ran = time if task or time < 1061 else 1000.0
            found = health.fault()
            assert found == (reason if phase == "" and time == 1061.0 else None)
