"""Processes that the demo's processes left behind: those whose working directory is in the demo's folder.

Owns no state. Every process of the demo is started in its folder, and what it starts inherits that; so an orphan is
found whatever it is called and whoever its parent is now.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio

from kzconsumer.clock import now

_POLL = 0.05


def processes_in(folder: Path) -> list[int]:
    """The living processes of this user that work in the folder or below it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            place = Path(os.readlink(entry / "cwd").removesuffix(" (deleted)"))
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has just ended, or is another user's
            continue
        if state not in "ZX" and place.is_relative_to(folder):
            found.append(int(entry.name))
    return found


async def wait_gone(folder: Path, limit: float) -> list[int]:
    """Wait until nothing works in the folder; who still does after `limit` seconds."""
    deadline = now() + limit
    while True:
        left = processes_in(folder)
        if not left or now() > deadline:
            return left
        await anyio.sleep(_POLL)


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
