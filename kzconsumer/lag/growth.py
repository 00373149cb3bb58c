"""When a log had reached which end: the age of a record without its timestamp."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

#: Ends kept at most; half of them are dropped when there would be more.
MOST = 128


class _Seen(NamedTuple):
    end: int
    first: float
    last: float


class LogGrowth:
    """Times are seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._seen: list[_Seen] = []

    def saw(self, end: int, at: float) -> None:
        """The log ended there at that time. An end below the previous one means a new log."""
        last = self._seen[-1] if self._seen else None
        if last is not None and end < last.end:
            self._seen.clear()
        elif last is not None and end == last.end:
            self._seen[-1] = last._replace(last=at)
            return
        if len(self._seen) >= MOST:
            del self._seen[1:-1:2]
        self._seen.append(_Seen(end, at, at))

    def reached(self, offset: int) -> float | None:
        """About when the record at an offset was written; None if before the first observation, or not yet."""
        below = bisect_right(self._seen, offset, key=lambda seen: seen.end) - 1
        if below < 0 or below == len(self._seen) - 1:
            return None
        before, after = self._seen[below], self._seen[below + 1]
        share = (offset - before.end) / (after.end - before.end)
        return before.last + share * (after.first - before.last)
