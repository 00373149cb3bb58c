"""The times that `offsets reset` takes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kzconsumer_tools.commands.output_and_options import read_datetime

NOON = 1_769_860_800_000
"""2026-01-31, 12:00 UTC, in ms."""


@pytest.fixture(autouse=True, params=["UTC", "Asia/Tokyo", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's own, which must not count."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00.000",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00:00.000Z",
        "2026-01-31T13:00:00.000+01:00",
        "2026-01-31T11:59:59.999001",
    ],
)
def test_a_time_without_a_zone_is_utc(text: str) -> None:
    assert read_datetime(text) == NOON
