"""Free ports on loopback that remain free while their server restarts: outside the kernel's ephemeral range.

A port in that range may be taken by any outgoing connection, and a client that retries it may connect to itself.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from pathlib import Path

from kzconsumer_sandbox.errors import SandboxError

HOST = "127.0.0.1"
_ALLOWED = range(10240, 65536)
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


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
