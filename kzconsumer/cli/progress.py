"""Progress on standard error of what takes long: a bar on a terminal, elsewhere an occasional line."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from kzconsumer.clock import now
from kzconsumer.figures import count, rate, span

# Seconds until the bar is shown, between its updates, and between two lines: an error about ZooKeeper comes before one.
AFTER, UPDATE, LINES = 2.0, 0.1, 20.0


class _Progress:
    def __init__(self, what: str) -> None:
        self.what = what
        self.done = 0
        self.total: int | None = None
        self.ended = threading.Event()
        self._began, self._before = now(), 0

    def show(self, done: int, total: int) -> None:
        if self.total is None:
            self._before = done  # of an earlier start, for the rate
        self.done, self.total = done, total

    @property
    def figures(self) -> str:
        took = now() - self._began
        if self.total is None:
            return span(took // 1)
        per_second = (self.done - self._before) / took if took else None
        return f"{count(self.done)} of {count(self.total)}, {rate(per_second)}"

    def lines(self) -> None:
        while not self.ended.wait(LINES):
            print(f"kzconsumer: {self.what}: {self.figures}", file=sys.stderr, flush=True)

    def bar(self) -> None:
        if self.ended.wait(AFTER):
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
        # Standard output is for the result.
        console = Console(stderr=True)
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, redirect_stdout=False) as bars:
            row = bars.add_task(self.what, total=None, figures=self.figures)
            while not self.ended.wait(UPDATE):
                bars.update(row, completed=self.done, total=self.total, figures=self.figures)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows `what`, with the time that it has taken, or what the yielded callback was given: amount done, and total."""
    shown = _Progress(what)
    terminal = sys.stderr.isatty() and find_spec("rich") is not None
    thread = threading.Thread(target=shown.bar if terminal else shown.lines, name="progress", daemon=True)
    thread.start()
    try:
        yield shown.show
    finally:
        shown.ended.set()
        thread.join()
