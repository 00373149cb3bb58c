"""Processes of this machine, read from /proc: state, descendants, end."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path
from signal import SIGCONT

LIMIT = 400.0
"""Seconds that no single step exceeds: starting Spark on a busy machine is the slowest."""
LOOK = 0.01
"""Seconds between two looks."""


def state(pid: int | None) -> str:
    """The letter of proc(5), such as T for stopped; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def started_by(pid: int | None) -> list[int]:
    """All running descendants of a process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if status not in "ZX":
                parents[int(entry.name)] = int(parent)
    found: list[int] = []
    wanted = {pid or 0}
    while wanted:
        wanted = {child for child, parent in parents.items() if parent in wanted}
        found += wanted
    return found


def wait_gone(pids: Collection[int]) -> None:
    """Wait until these processes are gone, after SIGCONT to stopped ones. Raises TimeoutError after LIMIT."""
    deadline = time.monotonic() + LIMIT
    for pid in pids:
        send_signal(pid, SIGCONT)
    while any(state(pid) not in ("", "Z", "X") for pid in pids):
        if time.monotonic() > deadline:
            raise TimeoutError("processes that a killed member had started still run")
        time.sleep(LOOK)


def send_signal(pid: int | None, number: int) -> None:
    try:
        if pid is not None:
            os.kill(pid, number)
    except ProcessLookupError:
        pass
