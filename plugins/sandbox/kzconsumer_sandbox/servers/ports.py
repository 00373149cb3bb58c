"""Free ports on loopback that stay free while their server is stopped.

Owns no state. A port from the kernel's ephemeral range may be taken by any outgoing connection while a server restarts,
and a client retrying such a port can even connect to itself; so ports are taken from outside that range.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from pathlib import Path

from kzconsumer_sandbox.servers.failure import SandboxError

HOST = "127.0.0.1"
_ALLOWED = range(10240, 65536)
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port nobody is bound to at this moment, chosen at random. Raises SandboxError after a thousand taken ones."""
    ports = outside(*_ephemeral_range())
    for _ in range(1000):
        port = random.choice(ports)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise SandboxError("no free port on 127.0.0.1")


def outside(first: int, last: int) -> Sequence[int]:
    """The ports allowed to us outside first..last; all of them when next to none would be left."""
    below, above = range(_ALLOWED.start, max(first, _ALLOWED.start)), range(min(last, 65535) + 1, _ALLOWED.stop)
    larger = max(below, above, key=len)
    return larger if len(larger) >= 1000 else _ALLOWED


def _ephemeral_range() -> tuple[int, int]:
    try:
        first, last = map(int, _EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return 32768, 60999
    return first, last
