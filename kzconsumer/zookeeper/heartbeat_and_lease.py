"""When to send the next probe, and until when answered probes show that the server cannot have expired the session.

Time comes in as arguments. This makes expired members that still act rare; correctness rests on node versions.
`session.Lease` is what others ask.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Instant(NamedTuple):
    """One moment on both clocks, in seconds; their difference shows a jump of either."""

    boottime: float
    realtime: float

    @property
    def apart(self) -> float:
        return self.realtime - self.boottime


class Beat(enum.Enum):
    """What the session is to do at a beat."""

    WAIT = "wait"
    PROBE = "probe"
    DOUBT = "doubt"
    """Earlier answers are no longer evidence: send a probe now."""
    SILENT = "silent"
    """No probe was answered for a third of the timeout, and no bytes arrive: drop the connection."""
    SLOW = "slow"
    """Bytes arrive, but no probe was answered within the patience: try another connection."""


# A beat that is early or late by this part of a sixth of the timeout is on time.
ON_TIME = 1 / 8


class Heartbeat:
    """Fractions of T, the negotiated timeout: a probe every T/6, valid for T/2 from its sending; silence after T/3.

    Arriving bytes show that the connection is alive, since a probe's answer may be behind a long one; they are no
    evidence. A partitioned server answers nothing behind the first probe that no quorum agreed to, so it is found
    silent all the same. Dropping a slow connection loses what has arrived, so the patience is 4 T at first and doubles
    each time for the rest of the session; otherwise a long answer might never arrive.

    A probe is a transaction that changes nothing, since only the agreement of a quorum counts: a partitioned follower
    still answers pings and reads, and a partitioned leader answers even `sync` and handshakes of sessions that it
    knows, until it notices, while the others have elected a new leader that expires them. In a measurement
    with other evidence the lease was wrong by 4 s.
    """

    PATIENCE = 4, 16
    """With a slow connection, first and longest, in multiples of T."""

    def __init__(self) -> None:
        self._timeout = 0.0
        # When the last answered probe, or the handshake that began the session, was sent.
        self._evidence: Instant | None = None
        self._answered = 0.0  # the same, even if in doubt since
        self._not_before = 0.0  # probes sent before this are no evidence
        self._last_answer = 0.0  # when the last answer came
        self._patience, self._most_patience = self.PATIENCE
        self._next_probe = 0.0
        self._due: float | None = None  # when the next beat should come; None without a connection
        self.interval = 0.0
        """Seconds from the last beat to the next: until a probe is due, or silence would end the connection."""

    def attach(self, began: Instant | None, now: Instant, timeout: float) -> None:
        """A handshake was answered with this timeout: beats begin.

        `began` is when it was sent if it created the session, which takes a quorum; None for a reconnect.
        """
        self._timeout = timeout
        self._last_answer = self._next_probe = self._due = now.boottime
        if began is not None:
            self._renew(began)

    def detach(self) -> None:
        """The connection is lost: no beats. Earlier answers stay evidence."""
        self._due = None

    def probe_sent(self, now: Instant) -> None:
        self._next_probe = now.boottime + self._timeout / 6

    def probe_answered(self, sent: Instant, now: Instant) -> None:
        """The probe sent at `sent` was answered."""
        self._last_answer = now.boottime
        self._renew(sent)

    def beat(self, now: Instant, arrived: float) -> Beat:
        """To be called `interval` after the last one while connected; `arrived`: boottime of the last bytes."""
        time, sixth = now.boottime, self._timeout / 6
        doubtful = self._late(now) or self._clocks_moved(now)
        if doubtful:
            self._evidence = None
            self._not_before = time
            self._last_answer = time  # answers may be unread, as this process was suspended: the wait restarts
            self._await_beat(time, sixth)
            return Beat.DOUBT
        silent_at = max(self._last_answer + 2 * sixth, arrived + sixth)
        slow_at = self._last_answer + self._timeout * self._patience
        # A loop that was busy may have an answer to read, so only a beat that is on time finds silence.
        if time >= silent_at and self._behind(time) < sixth * ON_TIME:
            return Beat.SILENT
        if time >= slow_at:
            self._patience = min(self._patience * 2, self._most_patience)
            return Beat.SLOW
        probe = time + sixth * ON_TIME >= self._next_probe
        look = max(silent_at - time, sixth * ON_TIME)
        self._await_beat(time, min(sixth if probe else self._next_probe - time, look, slow_at - time))
        return Beat.PROBE if probe else Beat.WAIT

    def safe_until(self, now: Instant) -> float:
        """On the boottime clock; 0.0 without evidence and in doubt, even before a beat has found the doubt."""
        if self._evidence is None or self._late(now) or self._clocks_moved(now):
            return 0.0
        return self._evidence.boottime + self._timeout / 2

    @property
    def kept_until(self) -> float:
        """On the boottime clock: before this the server cannot have expired the session; no lease lasts longer."""
        return self._answered + self._timeout

    def _renew(self, sent: Instant) -> None:
        self._answered = max(self._answered, sent.boottime)
        if sent.boottime >= self._not_before and (self._evidence is None or sent > self._evidence):
            self._evidence = sent

    def _await_beat(self, time: float, interval: float) -> None:
        self.interval, self._due = interval, time + interval

    def _behind(self, time: float) -> float:
        """For how long the next beat has been due."""
        return time - self._due if self._due is not None else 0.0

    def _late(self, now: Instant) -> bool:
        return self._behind(now.boottime) > self._timeout / 6

    def _clocks_moved(self, now: Instant) -> bool:
        return self._evidence is not None and abs(now.apart - self._evidence.apart) > self._timeout / 6
