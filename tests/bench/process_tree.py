"""Processor seconds of processes and everything they started, including children that have ended.

Reads /proc (proc(5), `stat`). A child that has ended is in its parent's figures once it was waited for.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    parent: int
    name: str
    seconds: float


def processor_seconds(root: int, *others: int) -> dict[str, float]:
    """User and system time of the trees below these so far: "root" is the own of `root`, the others by program name."""
    processes = dict(_processes())
    children = defaultdict(list)
    for pid, process in processes.items():
        children[process.parent].append(pid)
    costs: dict[str, float] = defaultdict(float)
    left = [root, *others]
    while left:
        pid = left.pop()
        left += children[pid]
        costs["root" if pid == root else processes[pid].name] += processes[pid].seconds
    return dict(costs)


def _processes() -> list[tuple[int, _Process]]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            before, _, after = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has just ended
        fields = after.split()
        ticks = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
        found.append((int(entry.name), _Process(int(fields[1]), before.partition("(")[2], ticks / _TICKS)))
    return found
