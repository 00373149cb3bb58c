"""What follows from looking at one partition again and again: growth, rates, and since when it stands still."""

from __future__ import annotations

from collections import deque

import msgspec

from kzconsumer.lag.growth import LogGrowth
from kzconsumer.lag.partition import Measured

#: Looks from which rates are computed.
RATED = 13


class _Look(msgspec.Struct, frozen=True):
    at: float
    position: int
    end: Measured | None


class History:
    """Of one partition of one group, from one claim or one reading on. Times are seconds of any monotonic clock."""

    def __init__(self, position: int | None, at: float) -> None:
        self.growth = LogGrowth()
        self._looks: deque[_Look] = deque(maxlen=RATED)
        self._position = position
        self._since = at

    def look(self, position: int, end: Measured | None, at: float) -> None:
        """To be called at intervals, after `advance`. `end`: the last known one."""
        if end is not None:
            self.growth.saw(end.value, end.at)
        self._looks.append(_Look(at, position, end))

    def advance(self, position: int | None, behind: bool | None, at: float) -> None:
        """`behind`: whether something is left to process. While that is unknown, nothing is concluded."""
        if position != self._position or behind is False:
            self._position, self._since = position, at

    def standing(self, behind: bool | None, at: float) -> float:
        """Seconds for which it has been behind without advancing; 0 while it is not known to be behind."""
        return at - self._since if behind else 0.0

    @property
    def rate(self) -> float | None:
        """Offsets processed per second, lately. None while unknown."""
        span = self._span()
        return None if span is None else (span[1].position - span[0].position) / (span[1].at - span[0].at)

    @property
    def log_rate(self) -> float | None:
        """Offsets appended to the log per second, lately. None while unknown, also without two readings of its end."""
        span = self._span()
        if span is None or (first := span[0].end) is None or (last := span[1].end) is None or last.at <= first.at:
            return None
        return (last.value - first.value) / (last.at - first.at)

    def _span(self) -> tuple[_Look, _Look] | None:
        if len(self._looks) < 2 or self._looks[-1].at <= self._looks[0].at:
            return None
        return self._looks[0], self._looks[-1]


def time_left(left: int | None, rate: float | None, log_rate: float | None) -> float | None:
    """Seconds until nothing is left at these rates; None if unknown, or if the log grows as fast."""
    if left == 0:
        return 0.0
    if left is None or rate is None or log_rate is None or rate <= log_rate:
        return None
    return left / (rate - log_rate)
