"""Whether the servers of a running sandbox serve. Blocking, a question to each.

Owns no state. `kzconsumer sandbox status` and `topic` call it. A process id alone proves nothing: a server that was
killed stays a zombie of its supervisor, and one that is stopped lives without serving.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kzconsumer.sandbox.readiness import known_brokers, zookeeper_serves
from kzconsumer.sandbox.state_file import SandboxState, ServerState


def find_faults(state: SandboxState) -> dict[ServerState, str]:
    """The servers that do not serve, each with what is wrong with it; empty when all serve, or none is started yet.

    Takes milliseconds, and 2 s more for each server that lives without answering.
    """
    return {server: "does not answer" if _lives(server.pid) else "has ended" for server in _silent(state)}


def _silent(state: SandboxState) -> Iterator[ServerState]:
    zookeeper = state.zookeeper
    if zookeeper is not None and not (_lives(zookeeper.pid) and zookeeper_serves(zookeeper.host, zookeeper.port)):
        yield zookeeper
    for broker in state.brokers:
        if not _lives(broker.pid) or known_brokers(broker.host, broker.port) is None:
            yield broker


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"
