"""The state of processes according to the kernel, for tests about processes that end together."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def exists(pid: int) -> bool:
    """False once the process has ended, also before its status has been collected."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it ended before it was opened, or before it was read
        return False
    return state not in "ZX"


def session_of(leader: int) -> list[int]:
    """Every living process in the session of `leader`: of a Spark's worker, its JVM, its Python processes."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if session == str(leader) and state not in "ZX":
            found.append(int(entry.name))
    return found


def kill_session(leader: int) -> list[int]:
    """kill -9 of every process in the session of `leader`; returns their ids."""
    found = session_of(leader)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def wait_gone(pids: Iterable[int], limit: float) -> None:
    """Block until none of them exists; AssertionError after `limit` seconds."""
    left = set(pids)

    def gone() -> bool:
        left.intersection_update({pid for pid in left if exists(pid)})
        return not left

    assert wait_until(gone, limit), f"processes {sorted(left)} still exist after {limit} s"


def wait_until(condition: Callable[[], bool], limit: float) -> bool:
    """Block until the condition holds, True, or `limit` seconds have passed, False."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
