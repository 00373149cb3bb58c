"""The end of a run of the daemon: why it ends, its deadline, and the signals that ask for it."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable

import anyio

from kzconsumer.clock import now
from kzconsumer.logs.logger import get_logger
from kzconsumer.service.systemd import ServiceReport
from kzconsumer.settings.settings import Settings

log = get_logger("kzconsumer")

# A wrapper and the terminal often send the same signal both: within this time it is one.
ONE_SIGNAL = 0.2
# Seconds that a second signal leaves for the end of the ZooKeeper session.
AT_ONCE = 0.2
# What no cancellation reaches (a thread inside a system call) ends with the process, this long after the deadline.
GRACE = 1.0


class Stop:
    """Begins once, by a signal or by `begin`."""

    def __init__(
        self, settings: Callable[[], Settings], report: ServiceReport, leave_within: Callable[[float], None]
    ) -> None:
        """`leave_within` has the member give up whatever is not done after so many seconds."""
        self._settings = settings
        self._report = report
        self._leave_within = leave_within
        self.signals = [signal.SIGTERM, signal.SIGINT]
        if sys.stdin is not None and sys.stdin.isatty():
            self.signals.append(signal.SIGHUP)  # the terminal is gone; without one SIGHUP is a reload
        self.begun = anyio.Event()
        self.joined = anyio.Event()
        """Set by the daemon; a stop before that has nothing to finish."""
        self.work = anyio.CancelScope()
        """Of all that the daemon does between its start and its end."""
        self.starts_again = False
        """The daemon starts again after this end: with other topics, or with its own run."""
        self._deadline = 0.0
        self._last_resort: threading.Timer | None = None

    @property
    def seconds_left(self) -> float:
        return self._deadline - now()

    @property
    def reserve(self) -> float:
        """Seconds kept back from the batch in flight: for the sink's end, the final commit, closing the session."""
        settings = self._settings()
        return min(1.0 + 1.0 + settings.zookeeper.session_timeout / 3, settings.stop.deadline / 3)

    def begin(self, *, start_again: bool = False) -> None:
        """Only the first call has an effect."""
        if self.begun.is_set():
            return
        self.starts_again = start_again
        seconds = self._settings().stop.deadline
        self._deadline = now() + seconds
        if not start_again:
            self._report.stopping(self._deadline + GRACE)
        self.begun.set()
        self._last_resort = threading.Timer(seconds + GRACE, os._exit, [1])
        self._last_resort.daemon = True
        self._last_resort.start()
        if not self.joined.is_set():
            self.work.cancel()

    async def obey_signals(self) -> None:
        """The first signal begins the stop; another one ends it at once."""
        with anyio.open_signal_receiver(*self.signals) as signals:
            first = -math.inf
            async for number in signals:
                name = signal.Signals(number).name
                if now() - first < ONE_SIGNAL:
                    continue
                if self.begun.is_set() and not self.starts_again:
                    log.warning("stopping at once", signal=name)
                    self._leave_within(AT_ONCE)
                    self.work.cancel()
                    continue
                first = now()
                log.info("stopping", signal=name, deadline=self._settings().stop.deadline)
                if self.begun.is_set():
                    self.starts_again = False
                    self._report.stopping(self._deadline + GRACE)
                else:
                    self.begin()

    def ended(self) -> None:
        if self._last_resort is not None:
            self._last_resort.cancel()
