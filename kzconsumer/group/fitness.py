"""When a member should leave its partitions to others, and when it may rejoin.

It leaves only if no broker answers it while other members' offsets advance. A failure that affects the whole group is
not a reason to leave it.
"""

from __future__ import annotations

from collections.abc import Mapping

from kzconsumer.model import TopicPartition

# Seconds, or twice the session timeout if that is longer.
UNFIT_AFTER = 60.0
FIRST_HOLD_DOWN = 60.0
LONGEST_HOLD_DOWN = 1800.0
ELSEWHERE = 10.0
"""Seconds until ZooKeeper is asked again, after that of another cluster has answered."""


class Fitness:
    """The evidence of one membership."""

    def __init__(self, session_timeout: float) -> None:
        self._patience = max(UNFIT_AFTER, 2 * session_timeout)
        self._before: Mapping[TopicPartition, int] | None = None

    def doubtful(self, unreachable: float) -> bool:
        """Whether no broker has answered for so many seconds that `others_advance` has to be asked."""
        if unreachable >= self._patience:
            return True
        self._before = None
        return False

    def others_advance(self, stored: Mapping[TopicPartition, int]) -> bool:
        """Whether others have stored any offset since the doubt began.

        `stored` has for each of their partitions the transaction id of the last write to its offset.
        """
        if self._before is None:
            self._before = stored
        return any(partition in self._before and self._before[partition] != at for partition, at in stored.items())


class HoldDown:
    """How long an unfit member stays away: longer each time in a row. `seconds` is 0 for a fit one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._next = FIRST_HOLD_DOWN
        self._joined = 0.0

    def begin(self, now: float) -> float:
        """The member has left, or has failed the check before coming back. Returns `seconds`."""
        if not self.seconds and now - self._joined > LONGEST_HOLD_DOWN:
            self._next = FIRST_HOLD_DOWN
        self.seconds, self._next = self._next, min(self._next * 2, LONGEST_HOLD_DOWN)
        return self.seconds

    def end(self, now: float) -> None:
        """The member joins."""
        self.seconds = 0.0
        self._joined = now
