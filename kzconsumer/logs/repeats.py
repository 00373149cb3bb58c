"""Suppression of repeated log lines: which lines are written, and how many were left out."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Final, Generic, TypeVar

T = TypeVar("T")

INTERVAL: Final = 60.0
"""Seconds in which a repeated line is written once."""
MOST: Final = 1000
"""Different lines remembered; beyond it the oldest is forgotten, and returned with its count."""

_VOLATILE: Final = frozenset({"timestamp", "level", "exception"})
_IN_WORDS: Final = frozenset({"reason", "reasons", "error"})
_NUMBER: Final = re.compile(r"\d+")


def same(event: Mapping[str, object]) -> Hashable:
    """Equal for two lines of which one repeats the other: numbers inside a reason may differ, values may not."""
    return tuple((key, _text(key, event[key])) for key in sorted(event) if key not in _VOLATILE)


def _text(key: str, value: object) -> str:
    return _NUMBER.sub("#", str(value)) if key in _IN_WORDS else str(value)


class _Seen(Generic[T]):
    def __init__(self, since: float) -> None:
        self.since = since
        self.left_out = 0
        self.last: T | None = None


class Repeats(Generic[T]):
    """The first of equal lines is written at once; of those within the interval only the last, from `overdue`.

    Nothing vanishes: a line that was left out is written when the interval is over, with the number of those before it.
    Errors are never left out, unless they mark themselves as another attempt (`again=True`).
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, _Seen[T]] = {}

    def admit(self, key: Hashable, line: T, now: float) -> bool:
        """Whether to write it; otherwise it is kept. Call `overdue` first."""
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = _Seen(now)
            return True
        seen.left_out += 1
        seen.last = line
        return False

    def overdue(self, now: float, interval: float = INTERVAL) -> list[tuple[T, int]]:
        """The last of each line whose interval is over, with the number of those left out before it."""
        over = [key for key, seen in self._seen.items() if now - seen.since >= interval]
        found = []
        for key in over:
            seen = self._seen.pop(key)
            if seen.last is not None:
                found.append((seen.last, seen.left_out - 1))
                self._seen[key] = _Seen(now)  # the next repeat waits for another interval
        while len(self._seen) > MOST:
            seen = self._seen.pop(next(iter(self._seen)))
            if seen.last is not None:
                found.append((seen.last, seen.left_out - 1))
        return found
