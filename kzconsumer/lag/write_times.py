"""When records were written, without asking a broker: timestamps of those fetched, and how the log was seen to grow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

#: Timestamps kept at most; half of them are dropped when there would be more.
MOST_TIMES = 32


class FetchedTimes:
    """Of one owned partition, in ms since 1970; between two of them it is interpolated."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._until = 0

    def saw(self, times: Iterable[tuple[int, int]], until: int) -> None:
        """`times`: offsets, ascending, with their timestamps; every record below `until` has been fetched."""
        for offset, time in times:
            if self._offsets and offset <= self._offsets[-1]:
                continue  # a batch that was fetched again
            self._offsets.append(offset)
            self._times.append(time)
        if len(self._offsets) > MOST_TIMES:
            for kept in (self._offsets, self._times):
                del kept[1:-1:2]
        self._until = max(self._until, until)

    def at(self, offset: int) -> int | None:
        """About when the record at an offset was written; None if it has not been fetched, or has no timestamp."""
        below = bisect_right(self._offsets, offset) - 1
        if below < 0 or offset >= self._until:
            return None
        if below == len(self._offsets) - 1:
            return self._times[below]
        first, last = self._offsets[below], self._offsets[below + 1]
        share = (offset - first) / (last - first)
        return round(self._times[below] + share * (self._times[below + 1] - self._times[below]))


#: Ends kept at most; half of them are dropped when there would be more.
MOST_LOOKS = 128


class _SeenEnd(NamedTuple):
    end: int
    first: float
    last: float


class LogGrowth:
    """Times are seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._seen: list[_SeenEnd] = []

    def saw(self, end: int, at: float) -> None:
        """The log ended there at that time. An end below the previous one means a new log."""
        last = self._seen[-1] if self._seen else None
        if last is not None and end < last.end:
            self._seen.clear()
        elif last is not None and end == last.end:
            self._seen[-1] = last._replace(last=at)
            return
        if len(self._seen) >= MOST_LOOKS:
            del self._seen[1:-1:2]
        self._seen.append(_SeenEnd(end, at, at))

    def reached(self, offset: int) -> float | None:
        """About when the record at an offset was written; None if before the first observation, or not yet."""
        below = bisect_right(self._seen, offset, key=lambda seen: seen.end) - 1
        if below < 0 or below == len(self._seen) - 1:
            return None
        before, after = self._seen[below], self._seen[below + 1]
        share = (offset - before.end) / (after.end - before.end)
        return before.last + share * (after.first - before.last)
