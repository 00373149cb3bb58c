"""One signal, with reasons, for everything that may change the assignment.

Watches, commits and timers fire it; the rebalancer waits for it. Events during a rebalance cause exactly one more.
"""

from __future__ import annotations

import anyio

# Long enough for the other events of one cause to arrive, short enough not to be noticed.
QUIET_PERIOD = 0.02
# While members come and go, each list of them moves partitions that the next one moves again: the next rebalance for
# that reason waits as long as the last one took, but not longer than this.
LONGEST_QUIET_PERIOD = 1.0
MEMBERS = "members"
"""The reason for a changed list of members."""


class RebalanceTrigger:
    """Fired synchronously, any number of times; waited for by one task."""

    def __init__(self) -> None:
        self._reasons: dict[str, None] = {}
        self._event = anyio.Event()
        self._left: float | None = None  # when the last wait ended

    def fire(self, reason: str) -> None:
        self._reasons[reason] = None
        self._event.set()

    @property
    def fired(self) -> bool:
        """Whether there is a reason not yet acted on."""
        return bool(self._reasons)

    async def wait(self, timeout: float | None) -> list[str]:
        """The reasons, after a short quiet period; none if `timeout` seconds pass without any."""
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
