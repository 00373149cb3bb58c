"""What the service manager is told of a daemon: when it is ready, what it does, that it is alive, that it ends.

Owns the daemon's phase as the manager knows it. `daemon` says what happens; a beat tells the rest. The watchdog is fed
while this loop runs, the task of the ZooKeeper session goes round, and the member gets somewhere: then only.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable

import anyio
import structlog

from kzconsumer.clock import now
from kzconsumer.group.progress import Progress
from kzconsumer.sd_notify import Field, Manager
from kzconsumer.sessions import Sessions
from kzconsumer.zookeeper.lease import Lease

log = structlog.get_logger("kzconsumer")

BEAT = 5.0
"""Seconds between two beats at most."""
EXTENSION = 30.0
"""Seconds that one beat asks for, while it is right to wait."""
SECOND = 1_000_000


class Service:
    """Does nothing without a manager."""

    def __init__(self, manager: Manager, lease: Lease, session_timeout: float, stalled_after: float) -> None:
        self._manager = manager
        self._lease = lease
        self._interval = min(BEAT, (manager.watchdog or BEAT) / 4)
        # A ZooKeeper task that looks for a server tries each for a part of the session's timeout.
        self._patience = max((manager.watchdog or 0.0) / 2, session_timeout)
        self.stalled_after = stalled_after
        self._sessions: Sessions | None = None
        self._phase = "starting"
        self._extends: Callable[[], float] | None = None
        self._note = ""
        self._progress = Progress()
        self._alive = True
        self._ready = False
        if manager.watchdog is not None:
            faulthandler.enable()  # its SIGABRT shows where each thread was

    def __repr__(self) -> str:
        return f"<Service {self._phase} {self._manager}>"

    async def run(self) -> None:
        while self._manager.listens:
            self._beat()
            await anyio.sleep(self._interval)

    def starting(self, phase: str, at_most: float | None = None) -> None:
        """Before the member is ready. What may take for ever is waited for while we live, the rest for `at_most`."""
        self._phase = phase
        self._extends = (lambda: EXTENSION) if at_most is None else None
        self._tell(EXTEND_TIMEOUT_USEC=_usec(EXTENSION if at_most is None else at_most))

    def ready(self, sessions: Sessions) -> None:
        """The first rebalance is over: what could be claimed is owned."""
        self._sessions = sessions
        self._phase, self._extends, self._ready = "", None, True
        self._tell(READY=1)

    def reloading(self) -> None:
        self._tell(RELOADING=1, MONOTONIC_USEC=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)

    def reloaded(self, note: str) -> None:
        """`note` stays in the status until the next time."""
        self._note = note
        self._tell(READY=1)

    def stopping(self, deadline: float) -> None:
        """The stop ends at `deadline`, whatever happens."""
        self._phase, self._ready = "stopping", False
        self._extends = lambda: max(deadline - now(), 0.0) + EXTENSION
        self._tell(STOPPING=1, EXTEND_TIMEOUT_USEC=_usec(self._extends()))

    def ended(self, reason: str | None) -> None:
        """The last word; the process ends now. `reason` is that of a failure."""
        self._manager.tell(STOPPING=1, STATUS=f"failed: {reason}" if reason is not None else "stopped")
        self._manager.close()

    @property
    def works(self) -> bool:
        """The member has joined, and no stop has begun."""
        return self._ready

    def _beat(self) -> None:
        fields: dict[str, Field] = {}
        if self._extends is not None:
            fields["EXTEND_TIMEOUT_USEC"] = _usec(self._extends())
        if self._manager.watchdog is not None and self._lives():
            fields["WATCHDOG"] = 1
        self._tell(**fields)

    def _tell(self, **fields: Field) -> None:
        self._manager.tell(**fields, STATUS=self.status())

    def status(self) -> str:
        """One line for `systemctl status`."""
        told = self._phase or self._consuming()
        return f"{told}; {self._note}" if self._note else told

    def _consuming(self) -> str:
        assert self._sessions is not None
        if not self._lease.held:
            return "waiting for ZooKeeper or a broker"
        positions = self._sessions.positions()
        if not positions:
            return "in the group, no partitions"
        owned = f"{len(positions)} partition{'s' if len(positions) > 1 else ''}"
        # Of a paused one nobody asks the broker how far its log has come.
        left = [at.left for at in positions if at.left is not None and not at.paused]
        behind = f"{sum(left):,} records behind" if left else "how far behind is not known"
        paused = sum(at.paused for at in positions)
        return f"consuming {owned}, {behind}" + (f", {paused} paused" if paused else "")

    def _lives(self) -> bool:
        """False, with the reason told once, when only a new start can help."""
        reason = self.fault()
        if reason is not None and self._alive:
            log.error("no longer tells the service manager that it is alive", reason=reason)
        self._alive = reason is None
        return self._alive

    def fault(self) -> str | None:
        """Why only a new start can help; None while that is not so. To be asked now and then."""
        if self._sessions is not None and not self._phase:
            looked = now() - self._sessions.task_last_ran
            stalled = self._progress.stalled(now(), self._sessions.positions(), self._lease.held)
            if looked > self._patience:
                return f"the task of the ZooKeeper session has stood still for {looked:.0f} s"
            if stalled > self.stalled_after:
                return f"nothing has been fetched or processed for {stalled:.0f} s, though there is something to read"
        return None


def _usec(seconds: float) -> int:
    return int(seconds * SECOND)
