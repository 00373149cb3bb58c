"""Runs the demo in a temporary directory: signals, output, and cleaning up.

The directory is removed at the end, unless the demo failed or `--keep` was given; no process outlives the call.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskStatus
from rich.console import Console

from kzconsumer.clock import now
from kzconsumer.errors import sole_cause
from kzconsumer.own_directory import own_directory
from kzconsumer_sandbox.demo.members import kill, wait_gone
from kzconsumer_sandbox.demo.scenario import TAKEOVER_GOAL, Scenario
from kzconsumer_sandbox.demo.screen import open_screen
from kzconsumer_sandbox.demo.verdict import Figures, judge, notes, verdict_table
from kzconsumer_sandbox.errors import SandboxError

FOLDER_PREFIX = "kzconsumer-demo-"
# Seconds for the Spark of a killed member to exit.
_ORPHAN_LIMIT = 10.0


def run_demo(messages: int, *, as_json: bool, keep: bool) -> int:
    """Returns the exit status. Raises KzConsumerError if the demo cannot be completed."""
    began = now()
    try:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=own_directory("sandbox"))).resolve()
    except OSError as error:
        raise SandboxError(str(error)) from None
    demo = _Demo(folder, messages)
    stays = keep
    try:
        figures = anyio.run(demo.run, began)
        if figures is None:
            return 128 + demo.signal
        _print(figures, as_json=as_json)
        stays = stays or figures.missing != 0
        return 0 if figures.missing == 0 else 1
    except Exception as error:
        stays = True
        demo.print_member_logs()
        if isinstance(error, BaseExceptionGroup):
            raise sole_cause(error) from None
        raise
    finally:
        if stays:
            print(f"files and logs are kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


class _Demo:
    def __init__(self, folder: Path, messages: int) -> None:
        self._folder = folder
        self._messages = messages
        self._screen = open_screen()
        self._scenario = Scenario(folder, messages, self._screen)
        self.signal = 0

    async def run(self, began: float) -> Figures | None:
        """The figures, or None after a signal. All processes have ended when this returns."""
        figures = None
        with self._screen:
            try:
                async with anyio.create_task_group() as tasks:
                    await tasks.start(self._cancel_on_signal, tasks.cancel_scope)
                    takeover, counted = await self._scenario.run()
                    figures = judge(counted, produced=self._messages, takeover=takeover, seconds=now() - began)
                    tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    left = await wait_gone(self._folder, _ORPHAN_LIMIT)
                    kill(left)
        if left:
            _note(f"{len(left)} processes were left and had to be killed")
        if figures is not None:
            for note in notes(figures, counted, TAKEOVER_GOAL):
                _note(note)
        return figures

    def print_member_logs(self) -> None:
        """The end of each member's log."""
        for member in self._scenario.members:
            for line in member.last_log_lines():
                print(f"{member.name}: {line}", file=sys.stderr)

    async def _cancel_on_signal(self, scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                self.signal = number
                scope.cancel()


def _print(figures: Figures, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(figures).decode(), flush=True)
    else:
        Console().print(verdict_table(figures, TAKEOVER_GOAL))


def _note(text: str) -> None:
    print(f"kzconsumer: note: {text}", file=sys.stderr)
