"""The resources of one process: memory, descriptors, threads, tasks. Reads /proc; requests the tasks by SIGUSR1."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import NamedTuple


class Held(NamedTuple):
    rss: float
    """MiB."""
    descriptors: int
    threads: int
    tasks: int
    """As last reported, since a suspended process reports nothing; 0 before."""


def held(pid: int, tasks: Path) -> Held:
    before = tasks.stat().st_mtime_ns if tasks.exists() else 0
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not (tasks.exists() and tasks.stat().st_mtime_ns > before):
        time.sleep(0.02)
    status = Path(f"/proc/{pid}/status").read_text()
    (rss,) = re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    (threads,) = re.findall(r"^Threads:\s+(\d+)", status, re.MULTILINE)
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    output = tasks.read_text().strip() if tasks.exists() else ""
    return Held(int(rss) / 1024, descriptors, int(threads), int(output or 0))
