"""Fetch rate limit of one member: bytes per second, of all brokers together."""

from __future__ import annotations

# Seconds whose allowance may be saved up while nothing is fetched.
BURST = 1.0


class RateLimit:
    """Without `per_second` there is none. A response may exceed what is left: the next request waits for it."""

    def __init__(self, per_second: int | None) -> None:
        self._per_second = per_second
        self._paid_at = 0.0  # the time by which the rate allows what was fetched

    def change(self, per_second: int | None) -> None:
        """Set another rate; a wait due to the old one ends."""
        self._per_second = per_second
        self._paid_at = 0.0

    def spend(self, now: float, size: int) -> None:
        if self._per_second is not None:
            self._paid_at = max(self._paid_at, now - BURST) + size / self._per_second

    def wait(self, now: float) -> float:
        """Seconds until the next request may go out; 0 if it may."""
        return max(self._paid_at - now, 0.0)
