"""Lines that say again what was said a moment ago: which are told, and how many were left out.

Pure: time comes in. Owns what was told lately, of one process. `log` asks it before a line is written.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Final, Generic, TypeVar

T = TypeVar("T")

INTERVAL: Final = 60.0
"""Seconds in which the same is told once."""
MOST: Final = 1000
"""Different lines remembered; beyond it the oldest is forgotten, and told with its count."""

_VOLATILE: Final = frozenset({"timestamp", "level", "exception"})
_IN_WORDS: Final = frozenset({"reason", "reasons", "error"})
_NUMBER: Final = re.compile(r"\d+")


def same(event: Mapping[str, object]) -> Hashable:
    """What two lines have in common that say the same. Numbers inside a reason do not make another one; values do."""
    return tuple((key, _text(key, event[key])) for key in sorted(event) if key not in _VOLATILE)


def _text(key: str, value: object) -> str:
    return _NUMBER.sub("#", str(value)) if key in _IN_WORDS else str(value)


class _Told(Generic[T]):
    def __init__(self, since: float) -> None:
        self.since = since
        self.left_out = 0
        self.last: T | None = None


class Repeats(Generic[T]):
    """Of lines T. The first is told at once; of those that follow within the interval only the last, by `overdue`."""

    def __init__(self) -> None:
        self._told: dict[Hashable, _Told[T]] = {}

    def admit(self, key: Hashable, line: T, now: float) -> bool:
        """Whether to tell it; else it is kept. Call `overdue` first."""
        told = self._told.get(key)
        if told is None:
            self._told[key] = _Told(now)
            return True
        told.left_out += 1
        told.last = line
        return False

    def overdue(self, now: float, interval: float = INTERVAL) -> list[tuple[T, int]]:
        """The last of each that was left out and whose interval is over, and how many were left out before it."""
        over = [key for key, told in self._told.items() if now - told.since >= interval]
        found = []
        for key in over:
            told = self._told.pop(key)
            if told.last is not None:
                found.append((told.last, told.left_out - 1))
                self._told[key] = _Told(now)  # it goes on: the next one waits for its interval again
        while len(self._told) > MOST:
            told = self._told.pop(next(iter(self._told)))
            if told.last is not None:
                found.append((told.last, told.left_out - 1))
        return found
