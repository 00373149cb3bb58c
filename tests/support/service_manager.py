"""The test as a service manager: the socket to which a daemon sends its notifications, and those received.

A thread reads the socket. Only the notify protocol is systemd's; nothing is started or stopped here.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_UCRED = struct.Struct("3i")


class Notification(NamedTuple):
    at: float
    """Of CLOCK_MONOTONIC."""
    pid: int
    fields: dict[str, str]


class ServiceManager:
    """`messages` grows as they arrive."""

    def __init__(self, listening: socket.socket, address: str) -> None:
        self.address = address
        self.messages: list[Notification] = []
        self._socket = listening

    def __repr__(self) -> str:
        return f"<ServiceManager {self.address} {len(self.messages)} datagrams>"

    def read(self) -> None:
        with contextlib.suppress(OSError):  # the end of the test
            while True:
                content, ancillary, _, _ = self._socket.recvmsg(65536, socket.CMSG_SPACE(_UCRED.size))
                if not content:
                    return
                (pid, _, _) = _UCRED.unpack(ancillary[0][2])
                lines = (line.partition("=") for line in content.decode().split("\n"))
                self.messages.append(Notification(time.monotonic(), pid, {key: value for key, _, value in lines}))

    def values(self, key: str) -> list[str]:
        return [each.fields[key] for each in self.messages if key in each.fields]

    def first(self, key: str, value: str = "1") -> Notification:
        return next(each for each in self.messages if each.fields.get(key) == value)

    def times(self, key: str) -> list[float]:
        return [each.at for each in self.messages if key in each.fields]

    @property
    def status(self) -> str:
        return (self.values("STATUS") or [""])[-1]


@contextmanager
def service_manager(address: str) -> Iterator[ServiceManager]:
    """Listens at a path, or with a leading `@` in the abstract namespace."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind("\0" + address[1:] if address.startswith("@") else address)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    manager = ServiceManager(listening, address)
    reading = threading.Thread(target=manager.read)
    reading.start()
    try:
        yield manager
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        reading.join(10)
        listening.close()
        if not address.startswith("@"):
            Path(address).unlink()
