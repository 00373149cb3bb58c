"""The board as rich renderables, 80 columns wide: two bars, a table of partitions, a line for each member."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kzconsumer_sandbox.demo.board import Board, MemberRow, MemberState, PartitionRow

_COLOURS = ("cyan", "magenta", "green", "blue", "yellow")
_UNKNOWN = "·"


def picture(board: Board) -> RenderableType:
    """The board for a terminal."""
    return Group("", _bars(board), _partitions(board), _members(board))


def summary(board: Board) -> str:
    """The board in one line."""
    owners = ", ".join(f"{member.name} {member.owns}" for member in board.members if member.owns) or "none"
    lag = sum(row.lag for row in board.partitions)
    return f"produced {board.produced:,}, committed {board.committed:,}, lag {lag:,}; owners: {owners}"


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
