"""One signal, with reasons, for everything that may change the assignment.

Watches, commits and timers fire it; the rebalancer waits for it. Events during a rebalance cause exactly one more.
"""

from __future__ import annotations

from collections.abc import Collection

import anyio

# Long enough for the other events of one cause to arrive, short enough not to be noticed.
QUIET_PERIOD = 0.02
# The list of members is not waited for any longer, however often it changes.
LONGEST_QUIET_PERIOD = 1.0
MEMBERS = "members"
"""The reason for a changed list of members."""


class Calm:
    """How long the list of members has to stand still before it is acted on.

    While members come and go, each list moves partitions that the next one moves again. A single change is not delayed.
    """

    def __init__(self) -> None:
        self._window = 0.0
        self._ended = float("-inf")

    def window(self, now: float, reasons: Collection[str]) -> float:
        """Seconds; more for each change that follows closely on the rebalance for another one."""
        if MEMBERS not in reasons:
            return 0.0
        if now - self._ended > LONGEST_QUIET_PERIOD:
            self._window = 0.0
        else:
            self._window = min(4 * max(self._window, QUIET_PERIOD), LONGEST_QUIET_PERIOD / 4)
        return self._window

    def acted(self, now: float) -> None:
        """A rebalance has ended."""
        self._ended = now


class RebalanceTrigger:
    """Fired synchronously, any number of times; waited for by one task."""

    def __init__(self) -> None:
        self._reasons: dict[str, None] = {}
        self._event = anyio.Event()

    def fire(self, reason: str) -> None:
        self._reasons[reason] = None
        self._event.set()

    @property
    def fired(self) -> bool:
        """Whether there is a reason not yet acted on."""
        return bool(self._reasons)

    def take(self, reason: str) -> bool:
        """Whether there is this reason; it counts as acted on from now on."""
        if reason not in self._reasons:
            return False
        del self._reasons[reason]
        if not self._reasons:
            self._event = anyio.Event()
        return True

    async def wait(self, timeout: float | None) -> list[str]:
        """The reasons, after a short quiet period; none if `timeout` seconds pass without any."""
        with anyio.move_on_after(timeout):
            await self._event.wait()
        if self._reasons:
            await anyio.sleep(QUIET_PERIOD)
        reasons = list(self._reasons)
        self._reasons.clear()
        self._event = anyio.Event()
        return reasons
