"""Everything that may change the assignment, made into one signal with its reasons.

Owns the reasons not yet acted on. Watches, commits and timers fire it; the rebalancer's loop is the only one that
waits. Events during a rebalance are coalesced into exactly one more.
"""

from __future__ import annotations

import anyio

# Long enough for the other events of one cause to arrive, short enough not to be noticed.
QUIET_PERIOD = 0.02
# While members keep coming or going, every list of them moves partitions that the next one moves again: what a
# rebalance took passes before the next one for that reason, but not more than this.
LONGEST_QUIET_PERIOD = 1.0
MEMBERS = "members"
"""The reason that stands for another list of members."""


class RebalanceTrigger:
    """Fired synchronously, any number of times; waited for by one task."""

    def __init__(self) -> None:
        self._reasons: dict[str, None] = {}
        self._event = anyio.Event()
        self._left: float | None = None  # when the last wait ended, and a rebalance began

    def __repr__(self) -> str:
        return f"<RebalanceTrigger {list(self._reasons)}>"

    def fire(self, reason: str) -> None:
        self._reasons[reason] = None
        self._event.set()

    @property
    def fired(self) -> bool:
        """There is a reason not yet acted on."""
        return bool(self._reasons)

    async def wait(self, timeout: float | None) -> list[str]:
        """The reasons, after a short quiet period; none when `timeout` seconds pass without any."""
        entered = anyio.current_time()
        took = entered - self._left if self._left is not None else 0.0
        calm_after = entered + min(took, LONGEST_QUIET_PERIOD)
        with anyio.move_on_after(timeout):
            await self._event.wait()
        if self._reasons:
            await anyio.sleep(QUIET_PERIOD)
        if MEMBERS in self._reasons:
            await anyio.sleep_until(calm_after)
        reasons = list(self._reasons)
        self._reasons.clear()
        self._event = anyio.Event()
        self._left = anyio.current_time()
        return reasons
