"""The worker's copy of the daemon's lease: until when it may write and publish.

It makes writes by a member that has lost its partitions rare. Correctness does not depend on it: of several writers of
a range the first wins.
"""

from __future__ import annotations

import threading
from typing import Protocol

from kzconsumer import clock


class Permission(Protocol):
    def require(self) -> None:
        """Return when ranges may be written. Raises if they may not, which fails the batch."""
        ...

    def require_whole(self) -> None:
        """Return when what was read may be published, before which it is called. Raises as `require`, and if executors
        have not read all, or not what was planned."""
        ...

    def report_read(self) -> None:
        """If executors have read all by now, have it recorded before this returns. Raises if it cannot be."""
        ...


class LeaseLost(Exception):
    """The lease ran out and was not renewed in time."""


class Lease:
    """`safe_until` is in seconds of `kzconsumer.clock`, the same clock on both sides of the pipe."""

    def __init__(self, safe_until: float, patience: float = 30.0) -> None:
        self._safe_until = safe_until
        self._patience = patience
        self._changed = threading.Condition()

    def renew(self, safe_until: float) -> None:
        with self._changed:
            self._safe_until = safe_until
            self._changed.notify_all()

    def require(self) -> None:
        """Return when the lease holds, waiting up to `patience` seconds for its renewal. Raises LeaseLost."""
        with self._changed:
            if not self._changed.wait_for(lambda: clock.now() < self._safe_until, self._patience):
                raise LeaseLost(f"the lease ran out and was not renewed within {self._patience:.0f} s")

    def require_whole(self) -> None:
        """As `require`: the member has read the records, and planned them."""
        self.require()

    def report_read(self) -> None:
        """As above."""
