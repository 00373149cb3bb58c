"""Counts, durations and times as people read them; those of the status page (words.js) have the same form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from kzconsumer.display import count, moment, plural, rate, some, span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.0004, "1 ms"),
        (0.04, "40 ms"),
        (1, "1 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (61.9, "1 min 1 s"),
        (7260, "2 h 1 min"),
        (86_399, "23 h 59 min"),
        (324.9 * 86_400, "324 d 21 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def test_counts_and_rates() -> None:
    assert [count(each) for each in (None, 0, 999, 1_234_567)] == ["-", "0", "999", "1,234,567"]
    assert [plural(each, "record") for each in (None, 0, 1, 1000)] == [
        "- records", "0 records", "1 record", "1,000 records",
    ]  # fmt: skip
    assert [rate(each) for each in (None, 0.0, 3.04, 4512.3)] == ["-", "0/s", "3/s", "4,512/s"]


def test_times_are_utc() -> None:
    at = datetime(2026, 1, 31, 1, 0, 0, 875_000, tzinfo=timezone(timedelta(hours=2)))
    assert moment(at) == "2026-01-30T23:00:00Z" == moment(at.astimezone(UTC))
    assert moment(None) == "-"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("", ""),
        ("ab", "a, b"),
        ("abc", "a, b, c"),
        ("abcd", "a, b, c and 1 more"),
        ("a" * 2003, "a, a, a and 2,000 more"),
    ],
)
def test_some_of_many_names(names: str, text: str) -> None:
    assert some(names, 3) == text
