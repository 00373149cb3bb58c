"""Progress of downloads on standard error: bars on a terminal, otherwise a line for each quarter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kzconsumer_sandbox.servers.jars import Progress


@contextmanager
def fetching_progress() -> Iterator[Progress]:
    """A callback for `resolve_jars`; nothing is shown if nothing has to be downloaded."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    with Bars(console=Console(stderr=True), transient=True) as bars:
        rows: dict[str, TaskID] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in rows:
                rows[name] = bars.add_task(f"Fetching Kafka {name}", total=total)
            bars.update(rows[name], completed=done)

        yield show


class _Lines:
    def __init__(self) -> None:
        self._shown: dict[str, int] = {}

    def __call__(self, name: str, done: int, total: int) -> None:
        quarter = 4 * done // total
        if quarter > self._shown.get(name, -1):
            self._shown[name] = quarter
            print(f"fetching Kafka {name}: {25 * quarter} %", file=sys.stderr, flush=True)
