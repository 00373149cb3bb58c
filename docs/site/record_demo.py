"""Runs the demo, and writes demo.json of it, from which pictures.py makes docs/images/demo.svg.

Kept are the printed lines, the board some seconds after the kill -9, and the result. Run it on a machine without other
work: `python docs/site/record_demo.py && python docs/site/pictures.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import msgspec

from kzconsumer.clock import now
from kzconsumer.own_files import own_directory
from kzconsumer_sandbox.demo.board import Board, MemberState
from kzconsumer_sandbox.demo.scenario import TAKEOVER_GOAL, Scenario
from kzconsumer_sandbox.demo.screen import PlainScreen, judge

MESSAGES = 1_000_000
AFTER_THE_KILL = 3.0
"""Seconds; the killed member's session still owns its partitions then."""


class Recorder(PlainScreen):
    def __init__(self) -> None:
        super().__init__()
        self.began = now()
        self.lines: list[tuple[float, str]] = []
        self.board: tuple[float, Board] | None = None
        self._killed = 0.0

    def show(self, text: str) -> None:
        super().show(text)
        if not text.startswith(" "):  # not a summary of the board
            self.lines.append((round(now() - self.began, 1), text))

    def update(self, board: Board) -> None:
        super().update(board)
        if any(member.state is MemberState.KILLED for member in board.members):
            self._killed = self._killed or now()
            if self.board is None and now() - self._killed >= AFTER_THE_KILL:
                self.board = round(now() - self.began, 1), board


def main() -> None:
    screen = Recorder()
    with TemporaryDirectory(dir=own_directory("sandbox")) as folder:
        takeover, counted = anyio.run(Scenario(Path(folder).resolve(), MESSAGES, screen).run)
    figures = judge(counted, produced=MESSAGES, takeover=takeover, seconds=now() - screen.began)
    assert screen.board is not None
    seconds, board = screen.board
    recorded = {
        "lines": screen.lines,
        "seconds": seconds,
        "board": msgspec.to_builtins(board),
        "figures": msgspec.to_builtins(figures),
        "goal": TAKEOVER_GOAL,
    }
    Path(__file__).with_name("demo.json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
