"""The ports of the servers on loopback: the usual ones, or free ones that remain free while their server restarts.

Free ones are outside the kernel's ephemeral range: a port in it may be taken by any outgoing connection, and a client
that retries it may connect to itself.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kzconsumer_sandbox.errors import SandboxError

HOST = "127.0.0.1"
ZOOKEEPER_PORT = 2181
BROKER_PORT = 9092
_ALLOWED = range(10240, 65536)
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Ports(NamedTuple):
    """One for ZooKeeper, and one for each broker."""

    zookeeper: int
    brokers: tuple[int, ...]

    @classmethod
    def free(cls, brokers: int) -> Ports:
        return cls(free_port(), tuple(free_port() for _ in range(brokers)))

    @classmethod
    def chosen(cls, zookeeper: int | None, broker: int | None, brokers: int) -> Ports:
        """The given ports, of which `broker` is the first broker's; 0 is any free one.

        None is the usual port, or any free one if that is in use. Raises SandboxError if a given one is in use.
        """
        return cls(
            _choose(zookeeper, ZOOKEEPER_PORT, "--zookeeper-port"),
            tuple(_choose(broker and broker + n, BROKER_PORT + n, "--port") for n in range(brokers)),
        )


def _choose(given: int | None, usual: int, option: str) -> int:
    if given == 0:
        return free_port()
    if is_free(given or usual):
        return given or usual
    if given is not None:
        raise SandboxError(f"port {given} is in use; choose another one with {option}, or 0 for any")
    return free_port()


def is_free(port: int) -> bool:
    """Whether a server may listen there; connections of an earlier one do not prevent it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
        return True


def free_port() -> int:
    """A random port that is not in use. Raises SandboxError after a thousand attempts."""
    ports = ports_outside(*_ephemeral_range())
    for _ in range(1000):
        port = random.choice(ports)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise SandboxError("no free port on 127.0.0.1")


def ports_outside(first: int, last: int) -> Sequence[int]:
    """The allowed ports outside first..last; all allowed ports if less than 1000 would be left."""
    below, above = range(_ALLOWED.start, max(first, _ALLOWED.start)), range(min(last, 65535) + 1, _ALLOWED.stop)
    larger = max(below, above, key=len)
    return larger if len(larger) >= 1000 else _ALLOWED


def _ephemeral_range() -> tuple[int, int]:
    try:
        first, last = map(int, _EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return 32768, 60999
    return first, last
