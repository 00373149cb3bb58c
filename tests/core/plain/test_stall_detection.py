"""When a member without progress has no excuse."""

from __future__ import annotations

import msgspec
import pytest

from kzconsumer.offsets.progress import Position
from kzconsumer.status.health import StallDetection

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
    ],
)
def test_excuses(excuse: dict[str, object]) -> None:
    assert after_a_minute(msgspec.structs.replace(BEHIND, **excuse)) == 0


@pytest.mark.parametrize("advance", [{"fetched": 11}, {"consumed": 11}, {"processed": 6}])
def test_any_advance_counts(advance: dict[str, int]) -> None:
    assert after_a_minute(BEHIND, then=(msgspec.structs.replace(BEHIND, **advance),)) == 0


def test_a_lease_in_doubt_and_a_rebalance_are_excuses() -> None:
    assert after_a_minute(BEHIND, lease=False) == 0
    assert after_a_minute() == 0
    assert after_a_minute(BEHIND, then=()) == 0
