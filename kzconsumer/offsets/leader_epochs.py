"""The leader epoch of the records before a position, which distinguishes a log that was replaced from one that grew.

An offset alone says nothing about a log that was cut off and has grown past it. Of two logs with the same epoch before
an offset, all records before it are the same (KIP-101, KIP-320).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

UNKNOWN: Final = -1
"""The epoch of records from a broker before 0.11, of an offset that another program stored, or behind a gap."""


class LeaderEpochs:
    """The leader epochs of what a claim has read, from the position where it began on.

    An epoch is never lower than that of the last record before the position, since the log would seem to differ then.
    It may be higher: a gap in the offsets counts for the batch behind it.
    """

    __slots__ = ("_epochs", "_from", "until")

    def __init__(self, position: int, epoch: int = UNKNOWN) -> None:
        """`epoch`: of the last record before `position`."""
        self.until = position
        """The last position of which something is known."""
        self._from = [position - 1]  # the offsets from which on each epoch counts
        self._epochs = [epoch]

    def __repr__(self) -> str:
        return f"<LeaderEpochs {list(zip(self._from, self._epochs, strict=True))} until {self.until}>"

    def before(self, position: int) -> int:
        """The epoch of the last record before this position, UNKNOWN outside of what was read."""
        at = bisect_left(self._from, position) - 1
        return self._epochs[at] if at >= 0 and position <= self.until else UNKNOWN

    def extend(self, start: int, runs: Iterable[tuple[int, int]], until: int, needed: int) -> None:
        """What was read from `start` to `until` has these `Decoded.epochs`. Nothing is asked about below `needed`."""
        if start < self.until:  # read again
            keep = max(bisect_left(self._from, start), 1)
            del self._from[keep:], self._epochs[keep:]
        elif start > self.until:
            self._add(self.until, UNKNOWN)
        known = start
        for first, epoch in runs:
            if first < until:
                self._add(first, epoch)
                known = until
        if known < until:
            self._add(known, UNKNOWN)
        self.until = until
        if len(self._from) > 1 and (passed := bisect_left(self._from, needed) - 1) > 0:
            del self._from[:passed], self._epochs[:passed]

    def _add(self, first: int, epoch: int) -> None:
        if epoch != self._epochs[-1]:
            self._from.append(first)
            self._epochs.append(epoch)
