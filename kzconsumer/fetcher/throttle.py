"""How much the fetch loops ask for, and when: `[fetch] rate_limit`, a broker's quota, a slow line. Without IO."""

from __future__ import annotations

# Fetch rate limit of one member: bytes per second, of all brokers together.

# Seconds whose allowance may be saved up while nothing is fetched.
BURST = 1.0


class RateLimit:
    """Without `per_second` there is none. A response may exceed what is left: the next request waits for it."""

    def __init__(self, per_second: float | None, burst: float = BURST) -> None:
        """`burst`: seconds whose allowance may be saved up."""
        self._per_second = per_second
        self._burst = burst
        self._paid_at = 0.0  # the time by which the rate allows what was fetched

    def change(self, per_second: int | None) -> None:
        """Set another rate; a wait due to the old one ends."""
        self._per_second = per_second
        self._paid_at = 0.0

    def spend(self, now: float, size: int) -> None:
        if self._per_second is not None:
            self._paid_at = max(self._paid_at, now - self._burst) + size / self._per_second

    def wait(self, now: float) -> float:
        """Seconds until the next request may go out; 0 if it may."""
        return max(self._paid_at - now, 0.0)


# How a fetch loop keeps to a broker's quota for consumers: it asks later, and for less.
#
# Brokers before 2.0 hold a response back. Those from 2.0 on answer at once, without records, and read nothing more
# from the connection for that time (KIP-219); up to 2.5 a response that is too large for the quota is never answered
# otherwise (KAFKA-9677). Times are seconds of the caller's clock.

# A line may be too slow for a large response, too. Then the next request is for half of what came in time, and more is
# asked for only while responses take a small part of that time. One batch is sent whole however large it is, so answers
# are waited for longer as well.

# Seconds that a response should be held back at most: shorter waits for smaller responses.
LONGEST = 1.0
# Seconds over which brokers measure a rate (`quota.window.num`, `quota.window.size.seconds`).
WINDOW = 10.0
# Empty answers in a row, each with a short wait, after which less is asked for. The fewest bytes are mostly headers.
PATIENT = 3
FEWEST_BYTES = 1024
LONGEST_PATIENCE = 120.0
# Part of the time for an answer: beyond it, a larger one might come too late.
SLOW = 0.25
SHOWN = 15.0
"""Seconds after a throttled response for which the broker counts as throttling."""


class Throttle:
    """Of one fetch loop. `most` is how many bytes to ask for."""

    def __init__(self, most: int) -> None:
        self._limit = most
        self.most = most
        self.last = 0.0
        """Seconds that the last response was, or is, throttled for."""
        self._until = 0.0
        self._empty = 0  # throttled answers in a row
        self._late = 0.0  # seconds to wait for an answer, since one was too late
        self._throttled_at = -SHOWN

    def limit(self, most: int) -> None:
        """Never ask for more bytes."""
        self._limit, self.most = most, min(self.most, most)

    def answered(self, now: float, seconds: float, size: int, asked: int, *, muted: bool, slow: bool = False) -> bool:
        """A response of `size` bytes of records came, throttled for so many seconds. True if throttling begins by that.

        `asked`: bytes that it could have had. `muted`: the broker answers nothing more until then; else it has held the
        response back for so long. `slow`: it took more than SLOW of the time for an answer.
        """
        self.last = seconds
        self._empty = self._empty + 1 if seconds > 0 and size == 0 else 0
        if not slow:
            self._late = 0.0
        if seconds <= 0:
            if size >= self.most // 2 and not slow:
                self.most = min(self.most + self.most // 4, self._limit)
            return False
        begins = not self.throttling(now)
        self._throttled_at = now + (seconds if muted else 0.0)
        if muted:
            self._until = now + seconds
        if size == 0 and seconds <= LONGEST and self._empty <= PATIENT:
            pass  # it fits after that time, unless others with the same quota are quicker
        elif size == 0:
            # The broker had `asked` bytes at most, and throttles for (rate - quota) / quota * window seconds. Half of
            # what follows from this leaves room for what it has counted before.
            self.most = max(int(min(asked, self.most) / (1 + seconds / WINDOW) / 2), FEWEST_BYTES)
        elif seconds > LONGEST:
            self.most = max(int(size * LONGEST / seconds), FEWEST_BYTES)
        return begins

    def timed_out(self, waited: float, begun: int) -> None:
        """Only `begun` bytes of a response came in so many seconds: the next is smaller, and waited for longer."""
        if begun:  # the line is too slow for it
            self.most = max(min(begun, self.most) // 2, FEWEST_BYTES)
            self._late = min(2 * waited, LONGEST_PATIENCE)
        else:
            # A quota may hold back what is much too large for it. What was not received counts, too, so that the next
            # response may be held back for longer. A broker that is stuck takes no new connection, and is not waited
            # for.
            self.most = max(self.most // 16, FEWEST_BYTES)
            self.last = min(max(self.last, waited), LONGEST_PATIENCE / 2)

    def wait(self, now: float) -> float:
        """Seconds until the next request may go out; 0 if it may."""
        return max(self._until - now, 0.0)

    def patience(self, usual: float) -> float:
        """Seconds to wait for the next response."""
        return max(usual, 2 * self.last, self._late)

    def throttling(self, now: float) -> bool:
        """Whether it throttles, or has done so lately."""
        return now - self._throttled_at < SHOWN
