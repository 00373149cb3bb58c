"""Reports the daemon's phase and health to the service manager.

The watchdog is fed while the event loop and the task of the ZooKeeper session run and the member makes progress.
"""

from __future__ import annotations

import faulthandler
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Self

import anyio

from kzconsumer.clock import now
from kzconsumer.logs.logger import get_logger
from kzconsumer.sessions import Sessions
from kzconsumer.status.health import JOINING, Health

# systemd's notify protocol: datagrams of `KEY=value` lines (sd_notify(3), sd_watchdog_enabled(3)). Fields that cannot
# be sent are sent with the next message.

log = get_logger("kzconsumer")

Field = str | int


def datagram(fields: Mapping[str, Field]) -> bytes:
    """Line breaks in values become spaces."""
    return "\n".join(f"{key}={' '.join(str(value).split())}" for key, value in fields.items()).encode()


class Manager:
    """`watchdog`: seconds within which it expects the next WATCHDOG=1; None without a watchdog."""

    def __init__(self, address: str | None, watchdog: float | None) -> None:
        self._address = _address(address) if address else None
        self.watchdog = watchdog if self._address else None
        self._unsent: dict[str, Field] = {}
        self._failed = False
        self._socket: socket.socket | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str], pid: int) -> Self:
        """Removes the variables, which are not meant for child processes."""
        address = environment.pop("NOTIFY_SOCKET", None)
        interval = environment.pop("WATCHDOG_USEC", "")
        meant = environment.pop("WATCHDOG_PID", str(pid)) == str(pid)
        return cls(address, int(interval) / 1e6 if meant and interval.isdecimal() and int(interval) else None)

    @property
    def listens(self) -> bool:
        return self._address is not None

    def send(self, **fields: Field) -> None:
        """Never raises, never blocks."""
        if self._address is None:
            return
        self._unsent.update(fields)
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.setblocking(False)
            self._socket.sendto(datagram(self._unsent), self._address)
        except OSError as error:
            if not self._failed:
                log.warning("sd_notify failed", socket=str(self._address), reason=str(error))
            self._failed = True
        else:
            self._unsent.clear()
            self._failed = False

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _address(text: str) -> str | None:
    """`@` begins a name in the abstract namespace."""
    if text.startswith("@"):
        return "\0" + text[1:]
    if text.startswith("/"):
        return text
    log.warning("sd_notify failed", socket=text, reason="neither a path nor an abstract name")
    return None


# Seconds between two reports, at most.
INTERVAL = 5.0
# Seconds by which a report extends the timeout of the service manager.
EXTENSION = 30.0


class ServiceReport:
    """Sets and sends the phase of `health`. Without a service manager nothing is sent."""

    def __init__(self, manager: Manager, health: Health) -> None:
        self._manager = manager
        self._health = health
        self._interval = min(INTERVAL, (manager.watchdog or INTERVAL) / 4)
        self._extension: Callable[[], float] | None = None
        self._feeds_watchdog = True
        if manager.watchdog is not None:
            faulthandler.enable()  # SIGABRT from the watchdog shows where each thread was

    async def run(self) -> None:
        while self._manager.listens:
            fields: dict[str, Field] = {}
            if self._extension is not None:
                fields["EXTEND_TIMEOUT_USEC"] = _microseconds(self._extension())
            if self._manager.watchdog is not None and self._is_healthy():
                fields["WATCHDOG"] = 1
            self._send(**fields)
            await anyio.sleep(self._interval)

    def starting(self, phase: str, at_most: float | None = None) -> None:
        """Before the member has joined. Extends the timeout by `at_most` seconds, or repeatedly without it."""
        self._health.phase = phase
        self._extension = (lambda: EXTENSION) if at_most is None else None
        self._send(EXTEND_TIMEOUT_USEC=_microseconds(EXTENSION if at_most is None else at_most))

    def joining(self, sessions: Sessions) -> None:
        """The status says what they wait for."""
        self._health.sessions = sessions
        self.starting(JOINING)

    def ready(self, sessions: Sessions) -> None:
        """The first rebalance is complete."""
        self._health.phase, self._health.sessions = "", sessions
        self._extension = None
        self._send(READY=1)

    def reloading(self) -> None:
        self._send(RELOADING=1, MONOTONIC_USEC=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)

    def reloaded(self, note: str) -> None:
        """`note` is in the status line until the next reload."""
        self._health.note = note
        self._send(READY=1)

    def stopping(self, deadline: float) -> None:
        """The process ends at `deadline` at the latest."""
        self._health.phase = "stopping"
        self._extension = lambda: max(deadline - now(), 0.0) + EXTENSION
        self._send(STOPPING=1, EXTEND_TIMEOUT_USEC=_microseconds(self._extension()))

    def ended(self, reason: str | None) -> None:
        """The last report; `reason` is that of a failure."""
        self._manager.send(STOPPING=1, STATUS=f"failed: {reason}" if reason is not None else "stopped")
        self._manager.close()

    def _send(self, **fields: Field) -> None:
        self._manager.send(**fields, STATUS=self._health.status())

    def _is_healthy(self) -> bool:
        reason = self._health.fault()
        if reason is not None and self._feeds_watchdog:
            log.error("watchdog notifications stopped", reason=reason)
        self._feeds_watchdog = reason is None
        return self._feeds_watchdog


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)
