"""Counts, durations and times for people: `1,234 records`, `2 min 5 s`, `2026-01-31T12:00:00Z`; `-` is unknown.

Counts have separators. The status page prints the same texts (`status/browser/words.js`), so halves are rounded up here
as JavaScript does. Offsets, ids and partition numbers have none, since they are copied into other commands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def plural(number: int | None, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def some(names: Iterable[str], most: int = 5) -> str:
    """The first `most` of them, and how many more there are."""
    shown = list(names)
    more = len(shown) - most
    return ", ".join(shown[:most]) + (f" and {count(more)} more" if more > 0 else "")


def rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    return f"{_tenths(per_second):g}/s" if per_second < 10 else f"{_nearest(per_second):,}/s"


def span(seconds: float | None) -> str:
    """A duration in at most two units."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{max(1, _nearest(seconds * 1000))} ms" if seconds else "0 s"
    if seconds < _MINUTE:
        return f"{_tenths(seconds):g} s" if seconds < 10 else f"{_nearest(seconds)} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min {seconds % _MINUTE // 1:.0f} s"
    if seconds < _DAY:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"
    return f"{seconds // _DAY:.0f} d {seconds % _DAY // _HOUR:.0f} h"


def _nearest(number: float) -> int:
    return math.floor(number + 0.5)


def _tenths(number: float) -> float:
    return _nearest(number * 10) / 10


def moment(at: datetime | None) -> str:
    """In UTC, to the second."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
