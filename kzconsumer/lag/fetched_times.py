"""Timestamps of the records that have been fetched: the age of the next one without asking a broker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

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
