"""systemd's notify protocol: datagrams of `KEY=value` lines. Source: sd_notify(3), sd_watchdog_enabled(3).

Without a service manager nothing is sent. Fields that cannot be sent are sent with the next message.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping
from typing import Self

from kzconsumer.logs.logger import get_logger

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
