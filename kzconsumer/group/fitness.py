"""When a member should leave its partitions to others, and when it may come back: decisions made from values.

Pure. Only a member that itself cannot work leaves: no broker answers it, while offsets that other members store move
on. What blocks or ails everybody alike makes nobody leave. The reconciler asks Fitness, the connector keeps HoldDown.
"""

from __future__ import annotations

from collections.abc import Mapping

from kzconsumer.model import TopicPartition

# Seconds, or twice the session timeout where that is longer.
UNFIT_AFTER = 60.0
FIRST_HOLD_DOWN = 60.0
LONGEST_HOLD_DOWN = 1800.0


class Fitness:
    """Of one membership."""

    def __init__(self, session_timeout: float) -> None:
        self._patience = max(UNFIT_AFTER, 2 * session_timeout)
        self._before: Mapping[TopicPartition, int] | None = None

    def __repr__(self) -> str:
        return f"<Fitness {'doubtful' if self._before is not None else 'good'}>"

    def doubtful(self, unreachable: float) -> bool:
        """No broker has answered for so many seconds that it matters whether others fare better."""
        if unreachable >= self._patience:
            return True
        self._before = None
        return False

    def others_advance(self, stored: Mapping[TopicPartition, int]) -> bool:
        """Whether others have stored anything since we were first in doubt.

        `stored` gives for each of their partitions the transaction id of the last write to its offset.
        """
        if self._before is None:
            self._before = stored
        return any(partition in self._before and self._before[partition] != at for partition, at in stored.items())


class HoldDown:
    """How long a member that left as unfit stays away: longer each time in a row. `seconds` is 0 for a fit one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._next = FIRST_HOLD_DOWN
        self._joined = 0.0

    def __repr__(self) -> str:
        return f"<HoldDown {self.seconds:.0f} s>"

    def begin(self, now: float) -> None:
        """The member has left, or has failed the test that would have let it back."""
        if not self.seconds and now - self._joined > LONGEST_HOLD_DOWN:
            self._next = FIRST_HOLD_DOWN
        self.seconds, self._next = self._next, min(self._next * 2, LONGEST_HOLD_DOWN)

    def end(self, now: float) -> None:
        """The member joins."""
        self.seconds = 0.0
        self._joined = now
