"""Whether a member gets anywhere: behind, and nothing advances, though nothing outside of it explains that.

Pure. The daemon's watchdog asks it. Of one partition that stands still while others advance it says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from kzconsumer.offsets.position import Position


class Progress:
    """Looked at now and then, it knows since when nothing has advanced."""

    def __init__(self) -> None:
        self._before: object = None
        self._since = 0.0

    def __repr__(self) -> str:
        return f"<Progress since {self._since:.1f}>"

    def stalled(self, now: float, positions: Sequence[Position], lease_held: bool) -> float:
        """Seconds for which the member has stood still; 0 while it advances, or has a reason not to.

        Reasons are: nothing left to read (of a run, too), a pause, no leader, a lease in doubt, a rebalance.
        """
        here = [(at.topic, at.partition, at.fetched, at.consumed, at.processed) for at in positions]
        if here != self._before or not lease_held or not any(_could_advance(at) for at in positions):
            self._before, self._since = here, now
        return now - self._since


def _could_advance(at: Position) -> bool:
    return not at.paused and at.led and bool(at.left)
