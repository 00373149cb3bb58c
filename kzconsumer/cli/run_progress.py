"""How far a member is with its part of a run: a bar with rate and time left on a terminal, nothing elsewhere.

Owns the terminal's last line while it is open. The verb `run` uses it; the log goes on above the bar.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


@contextmanager
def run_progress(wanted: bool, what: str = "to the end of the run") -> Iterator[Callable[[int, int], None] | None]:
    """A callback for `daemon.run`, or None where nobody would see the bar; it counts offsets."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    # Standard output is the sink's.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bars:
        row = bars.add_task(what, total=None)

        def show(done: int, total: int) -> None:
            bars.update(row, completed=done, total=total)

        yield show


def unseen(done: int, total: int) -> None:
    """For who always calls back, where nobody is looking."""
