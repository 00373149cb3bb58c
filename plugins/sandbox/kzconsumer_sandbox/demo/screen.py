"""What the demo shows: the board on standard error, live on a terminal, else a line now and then; and its result."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kzconsumer.clock import now
from kzconsumer_sandbox.demo.board import Board, MemberRow, MemberState, PartitionRow
from kzconsumer_sandbox.demo.observation import Counted

# The board as rich renderables, 80 columns wide: two bars, a table of partitions, a line for each member.

_COLOURS = ("cyan", "magenta", "green", "blue", "yellow")
_UNKNOWN = "·"
_NOT_IN_YET = (MemberState.STARTING, MemberState.JOINING)


def picture(board: Board) -> RenderableType:
    """The board for a terminal."""
    return Group("", _bars(board), _partitions(board), _members(board))


def summary(board: Board) -> str:
    """The board in one line."""
    owners = ", ".join(f"{member.name} {member.owns}" for member in board.members if member.owns) or "none"
    lag = sum(row.lag for row in board.partitions)
    waiting = [f"; {each.name} {each.state.value}" for each in board.members if each.state in _NOT_IN_YET]
    return (
        f"produced {board.produced:,}, committed {board.committed:,}, lag {lag:,}; owners: {owners}{''.join(waiting)}"
    )


def _bars(board: Board) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column()
    grid.add_column(justify="right")
    for label, done, style in (("produced", board.produced, "blue"), ("committed", board.committed, "green")):
        bar = ProgressBar(
            total=board.messages, completed=done, width=38, complete_style=style, finished_style=f"bold {style}"
        )
        grid.add_row(f" {label}", bar, f"{done:,} of {board.messages:,}")
    return grid


def _partitions(board: Board) -> Table:
    colours = _colours(board)
    dead = {member.name for member in board.members if member.state is MemberState.KILLED}
    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", show_footer=True, footer_style="bold", collapse_padding=True
    )
    table.add_column("partition", "all", justify="right")
    table.add_column("owner", f"{board.owned} owned", width=10)
    table.add_column("produced", f"{board.produced:,}", justify="right", width=9)
    table.add_column("fetched", justify="right", width=8)
    table.add_column("consumed", justify="right", width=8)
    table.add_column("committed", f"{board.committed:,}", justify="right", width=9)
    table.add_column("lag", f"{sum(row.lag for row in board.partitions):,}", justify="right", width=8)
    for row in board.partitions:
        table.add_row(
            str(row.partition),
            _owner(row, colours, dead),
            f"{row.produced:,}",
            _offset(row.fetched),
            _offset(row.consumed),
            f"{row.committed:,}",
            Text(f"{row.lag:,}", style="yellow" if row.lag else "dim"),
        )
    return table


def _owner(row: PartitionRow, colours: dict[str, str], dead: set[str]) -> Text:
    if row.owner is None:
        return Text("none", style="dim")
    if row.owner in dead:
        return Text(f"{row.owner} ✝", style="bold red")
    return Text(row.owner, style=colours.get(row.owner, ""))


def _offset(offset: int | None) -> Text:
    return Text(_UNKNOWN, style="dim") if offset is None else Text(f"{offset:,}")


def _members(board: Board) -> Table:
    colours = _colours(board)
    grid = Table.grid(padding=(0, 2))
    for member in board.members:
        colour = "red" if member.state is MemberState.KILLED else colours[member.name]
        grid.add_row(
            Text(f" {member.name}", style=colour), Text(f"process {member.pid}", style="dim"), _state(member, colour)
        )
    return grid


def _state(member: MemberRow, colour: str) -> Text:
    text = member.state.value
    if member.state in (MemberState.CONSUMING, MemberState.STOPPING):
        text += f", owns {member.owns}"
    elif member.state is MemberState.KILLED:
        text += f", its session still owns {member.owns}" if member.owns else ", owns no partitions now"
    return Text(text, style=colour if member.state is not MemberState.STOPPED else "dim")


def _colours(board: Board) -> dict[str, str]:
    return {member.name: _COLOURS[number % len(_COLOURS)] for number, member in enumerate(board.members)}


_LINE_EVERY = 5.0


class DemoScreen(Protocol):
    """Entered once, around the whole demo."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, text: str) -> None:
        """Print a line that stays."""

    def update(self, board: Board) -> None:
        """Replace the displayed board."""


def open_screen() -> DemoScreen:
    """The screen that fits standard error."""
    return LiveScreen(Console(stderr=True)) if sys.stderr.isatty() else PlainScreen()


def since(seconds: float) -> str:
    """`1:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class LiveScreen:
    """Redraws the board four times a second, below the printed lines."""

    def __init__(self, console: Console) -> None:
        self._began = now()
        self._board: Board | None = None
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, text: str) -> None:
        self._live.console.print(Text.assemble((f"{since(now() - self._began):>5}  ", "dim"), text))

    def update(self, board: Board) -> None:
        self._board = board

    def _draw(self) -> RenderableType:
        clock = Text(f"{since(now() - self._began):>5}", style="bold")
        return Group(clock, picture(self._board)) if self._board else clock


class PlainScreen:
    """Lines, for a file or a pipe."""

    def __init__(self) -> None:
        self._began = now()
        self._said = self._began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, text: str) -> None:
        print(f"{since(now() - self._began):>5}  {text}", file=sys.stderr, flush=True)

    def update(self, board: Board) -> None:
        if now() - self._said >= _LINE_EVERY:
            self._said = now()
            self.show(f"  {summary(board)}")


# The result of the demo: its figures, remarks about them, and the table.


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
