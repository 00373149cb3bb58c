"""The phase and the health of a running daemon, and stall detection: why it may need a restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kzconsumer.clock import now
from kzconsumer.display import plural
from kzconsumer.lag.totals import Total, behind_text
from kzconsumer.offsets.progress import Position
from kzconsumer.sessions import Sessions
from kzconsumer.zookeeper.session import Lease

JOINING: Final = "joining the group"


class Health:
    """The health of a running daemon: its phase in one line, and why it may need a restart."""

    def __init__(self, lease: Lease, patience: float, stalled_after: float) -> None:
        """Seconds: `patience` for the task of the ZooKeeper session to run, `stalled_after` without any progress."""
        self._lease = lease
        self._patience = patience
        self.stalled_after = stalled_after
        self.phase = "starting"
        """What the daemon does; empty while it consumes."""
        self.note = ""
        """Appended to the status: what the last reload left to do."""
        self.sessions: Sessions | None = None
        """Set when the member begins to join."""
        self.total: Callable[[], Total] | None = None
        """How far the owned partitions are behind; set by the observer."""
        self._stall = StallDetection()

    @property
    def joined(self) -> bool:
        # After each end of a session it joins again, and may have to wait: its id may be another member's by then.
        return self.sessions is not None and not self.phase and self.sessions.waits_for is None

    def status(self, behind: Total | None = None) -> str:
        """One line, for `systemctl status` and the status page. `behind`: if the caller has it already."""
        status = self._starting_or_stopping() or self._consuming(behind)
        return f"{status}; {self.note}" if self.note else status

    def _starting_or_stopping(self) -> str:
        waits_for = ""
        if self.phase == JOINING and self.sessions is not None:
            waits_for = self.sessions.waits_for or self.sessions.why_refused
        return f"{self.phase}: {waits_for}" if waits_for else self.phase

    def _consuming(self, behind: Total | None) -> str:
        if self.sessions is not None and self.sessions.stays_out:
            return f"staying out of the group: {self.sessions.stays_out}"
        if not self._lease.held or self.sessions is None:
            return "waiting for ZooKeeper or a broker"
        if (waits_for := self.sessions.waits_for) is not None:
            return f"{JOINING}: {waits_for}"
        positions = self.sessions.positions()
        if not positions:
            return "in the group, no partitions"
        paused = sum(at.paused for at in positions)
        if behind is None and self.total is not None:
            behind = self.total()
        parts = [f"consuming {plural(len(positions), 'partition')}", behind_text(behind) if behind else ""]
        return ", ".join(filter(None, [*parts, f"{paused} paused" if paused else ""]))

    def fault(self) -> str | None:
        """Why the process has to be restarted, or None. To be called at intervals."""
        if self.sessions is None or self.phase:
            return None
        still = now() - self.sessions.task_last_ran
        able = self._lease.held and not self.sessions.postponed and not self.sessions.rejects.waiting
        stalled = self._stall.seconds(now(), self.sessions.positions(), able)
        if still > self._patience:
            return f"the task of the ZooKeeper session has not run for {still:.0f} s"
        if stalled > self.stalled_after:
            return f"nothing has been fetched or processed for {stalled:.0f} s, though there is something to read"
        return None


class StallDetection:
    """Of the member as a whole: it is no stall if one partition does not advance while others do.

    A watchdog that only needs the event loop keeps a member alive whose sink hangs. One that requires progress has to
    except what the member is not the cause of: a restart helps against neither a ZooKeeper nor a leader that is away,
    nor a quota of either that is used up, nor a full disk for dead letters, and would move all partitions. After a
    restart `[fetch] rate_limit` would not hold: the bytes that were fetched before would not be counted.
    """

    def __init__(self) -> None:
        self._before: object = None
        self._since = 0.0

    def seconds(self, now: float, positions: Sequence[Position], able: bool) -> float:
        """How long nothing has advanced although it could: there is something to read, and a leader.

        `able`: the lease is held, ZooKeeper postpones nothing, and no dead letter has to be written first.
        """
        here = [(at.topic, at.partition, at.fetched, at.consumed, at.processed) for at in positions]
        if here != self._before or not able or not any(_could_advance(at) for at in positions):
            self._before, self._since = here, now
        return now - self._since


def _could_advance(at: Position) -> bool:
    awaits_allowance = (at.throttled or at.rate_limited) and at.fetched == at.processed
    return not at.paused and at.led and bool(at.left) and not awaits_allowance
