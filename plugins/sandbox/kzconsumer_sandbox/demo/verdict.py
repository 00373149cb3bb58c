"""The result of the demo: its figures, remarks about them, and the table."""

from __future__ import annotations

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from kzconsumer_sandbox.demo.count import Counted


class Figures(msgspec.Struct, frozen=True):
    """The result, as `-o json` prints it.

    `rows` are in the Parquet files, with `distinct` messages; `missing` were produced and are not in the files;
    `duplicates` are rows beyond the first of a message. `takeover_seconds` is from the kill -9 until all
    partitions of the killed member were owned by others; `seconds` is the whole demo.
    """

    produced: int
    rows: int
    distinct: int
    missing: int
    duplicates: int
    takeover_seconds: float
    seconds: float


def judge(counted: Counted, *, produced: int, takeover: float, seconds: float) -> Figures:
    return Figures(
        produced=produced,
        rows=counted.rows,
        distinct=counted.distinct,
        missing=produced - counted.distinct,
        duplicates=counted.rows - counted.distinct,
        takeover_seconds=round(takeover, 3),
        seconds=round(seconds, 1),
    )


def notes(figures: Figures, counted: Counted, goal: float) -> list[str]:
    """Remarks that do not make the demo fail."""
    found = []
    if figures.takeover_seconds > goal:
        found.append(f"the takeover took {figures.takeover_seconds:.1f} s, longer than the goal of {goal:.1f} s")
    if counted.elsewhere:
        found.append(f"{counted.elsewhere:,} messages were found at more than one offset")
    return found


def verdict_table(figures: Figures, goal: float) -> Table:
    table = Table(box=box.ROUNDED, show_header=False, border_style="dim", padding=(0, 1))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    rows = f"distinct, in {figures.rows:,} rows of Parquet"
    lost = figures.missing != 0
    met = figures.takeover_seconds <= goal
    table.add_row("produced", f"{figures.produced:,}", "distinct messages")
    table.add_row("delivered", f"{figures.distinct:,}", rows)
    table.add_row(
        "missing",
        Text(f"{figures.missing:,}", style="bold red" if lost else "bold green"),
        "the demo has failed" if lost else "nothing is lost",
    )
    table.add_row(
        "duplicated",
        Text(f"{figures.duplicates:,}", style="yellow" if figures.duplicates else "green"),
        "rows: uncommitted records of the killed member" if figures.duplicates else "rows",
    )
    table.add_row(
        "takeover",
        Text(f"{figures.takeover_seconds:.2f} s", style="green" if met else "yellow"),
        f"from kill -9 to new owners (goal {goal:.1f} s: {'met' if met else 'not met'})",
    )
    table.add_row("whole demo", f"{figures.seconds:.1f} s", "")
    return table
