"""The display of the demo on standard error: live on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from kzconsumer.clock import now
from kzconsumer_sandbox.demo.board import Board
from kzconsumer_sandbox.demo.table import picture, summary

_LINE_EVERY = 5.0


class Screen(Protocol):
    """Entered once, around the whole demo."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, text: str) -> None:
        """Print a line that stays."""

    def update(self, board: Board) -> None:
        """Replace the displayed board."""


def open_screen() -> Screen:
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
