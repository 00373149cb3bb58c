"""The story of the demo, from the first server to the last count, and the frame that runs it in a temporary directory.

The story owns what is started and the order of events; in it every wait is for something that is read from ZooKeeper,
from a member's log or from the producer. Leaving it, however, ends everything it started.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskStatus
from rich.console import Console

from kzconsumer.clock import now
from kzconsumer.errors import sole_cause
from kzconsumer.own_files import own_directory
from kzconsumer.zookeeper.operations import ConnectString
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.demo.board import Board, MemberRow, MemberState, partition_rows
from kzconsumer_sandbox.demo.members import SESSION_TIMEOUT, DemoMember, Production, configuration, kill, wait_gone
from kzconsumer_sandbox.demo.observation import Counted, DemoGroup, count
from kzconsumer_sandbox.demo.screen import DemoScreen, Figures, judge, notes, open_screen, verdict_table
from kzconsumer_sandbox.sandbox_errors import DemoFailed, SandboxError
from kzconsumer_sandbox.servers.sandbox import Sandbox
from kzconsumer_sandbox.servers.topic_creation import create_topic

PARTITIONS = 8
GROUP = TOPIC = "demo"
# The session times out, ZooKeeper notices at its next tick (0.5 s in the sandbox), the others claim.
TAKEOVER_GOAL = SESSION_TIMEOUT + 0.5 + 0.5

# Shares of all messages: in the topic before two members share it, when one of them is killed, before a third is in.
_AT_FIRST, _KILL, _BEFORE_THIRD = 0.3, 0.4, 0.9
# The middle part is produced over this long, so that the members are at work when one of them dies; at this rate if
# that is quicker: a demo of few messages is a short one.
_MIDDLE_SECONDS = 16.0
_MIDDLE_RATE = 6_000
_REFRESH = 0.2
_TAKEOVER_LIMIT = 60.0
# Longer than a member waits for its Spark (`attempts` times `start_timeout` on a busy machine), so that a member that
# gives up is noticed first.
STALL = 420.0


class Scenario:
    """One run of the demo in a folder of its own."""

    def __init__(self, folder: Path, messages: int, screen: DemoScreen) -> None:
        self._folder = folder
        self._messages = messages
        self._screen = screen
        self._board = Board(messages)
        self._changed = anyio.Event()
        self.path = folder / "parquet"
        self.members: list[DemoMember] = []

    def __repr__(self) -> str:
        return f"<Scenario {self._board.committed} of {self._messages} committed, members {self.members}>"

    async def run(self) -> tuple[float, Counted]:
        """The seconds the takeover took, and what the files hold. Raises DemoFailed, SandboxError."""
        show = self._screen.show
        show("starting a ZooKeeper and a Kafka")
        async with Sandbox(self._folder / "servers") as sandbox:
            await create_topic(sandbox.zookeeper_connect, TOPIC, PARTITIONS)
            show(f"both are up; topic {TOPIC} has {PARTITIONS} partitions")
            self.members = [self._member(f"member-{number}", sandbox.zookeeper_connect) for number in (1, 2, 3)]
            async with self._watching(sandbox) as (view, production):
                takeover = await self._consume(view, production)
        show("servers are down; counting the records in the Parquet files")
        return takeover, await count(self.path, self._messages)

    async def _consume(self, view: DemoGroup, production: Production) -> float:
        """Everything from the first member's start to the last one's end."""
        show = self._screen.show
        first, second, third = self.members
        first.start()
        second.start()
        production.allow(_AT_FIRST)
        show(f"{first.name} and {second.name} start, each with a Spark of its own")
        await self._until(lambda board: board.owned_by(first.name) and board.owned_by(second.name))
        middle = (_BEFORE_THIRD - _AT_FIRST) * self._messages
        production.allow(_BEFORE_THIRD, min(_MIDDLE_SECONDS, middle / _MIDDLE_RATE))
        third.start()  # its Spark takes longer than the takeover
        show(f"both own partitions; the producer continues, and {third.name} starts")

        await self._until(
            lambda board: (
                board.committed >= _KILL * self._messages
                and board.owned_by(second.name)
                and all(row.committed for row in board.partitions)
            )
        )
        takeover = await self._kill(second, view)
        await self._until(lambda board: bool(board.owned_by(third.name)))
        show(f"{third.name} has joined and owns {len(self._board.owned_by(third.name))} partitions")

        production.allow(1.0)
        await self._until(lambda board: board.committed >= self._messages)
        show("every message is committed")
        first.stop()
        third.stop()
        await self._until(lambda board: first.state is third.state is MemberState.STOPPED)
        show("SIGTERM: both members have stopped with exit status 0")
        return takeover

    async def _kill(self, victim: DemoMember, view: DemoGroup) -> float:
        """kill -9 of one member; the seconds until others own what it owned."""
        owners = await view.owners()
        orphaned = frozenset(partition for partition, owner in owners.items() if owner == victim.name)
        killed = now()
        victim.kill_9()
        self._screen.show(f"kill -9 of {victim.name}, owner of {len(orphaned)} partitions")
        await view.taken_over(orphaned, victim.name, _TAKEOVER_LIMIT)
        takeover = now() - killed
        self._screen.show(f"its partitions are owned by others, {takeover:.2f} s after the kill")
        return takeover

    @asynccontextmanager
    async def _watching(self, sandbox: Sandbox) -> AsyncIterator[tuple[DemoGroup, Production]]:
        """Production under way and the board kept up to date; members are dead afterwards."""
        connect = ConnectString.parse(sandbox.zookeeper_connect)
        production = Production(sandbox.bootstrap, TOPIC, PARTITIONS, self._messages)
        async with ZooKeeperSession(connect, SESSION_TIMEOUT) as session, anyio.create_task_group() as tasks:
            view = DemoGroup(session, GROUP, TOPIC, PARTITIONS)
            try:
                tasks.start_soon(partial(to_thread.run_sync, production.run, abandon_on_cancel=True))
                tasks.start_soon(self._keep_board, view, production)
                yield view, production
            finally:
                production.close()
                for member in self.members:
                    member.kill()
            tasks.cancel_scope.cancel()

    async def _keep_board(self, view: DemoGroup, production: Production) -> None:
        """Raises DemoFailed when a member ends out of turn or there is no progress any more."""
        before: object = None
        since = now()
        while True:
            owners, committed = await view.owners(), await view.committed()
            for member in self.members:
                member.read_log()
                member.check()
            reported = {member.name: member.reported for member in self.members}
            rows = partition_rows(production.acknowledged, owners, committed, reported)
            names = list(owners.values())
            members = tuple(
                MemberRow(member.name, member.pid, member.state, names.count(member.name))
                for member in self.members
                if member.started
            )
            board = Board(self._messages, rows, members)
            progress = board.produced, board.committed, [member.state for member in self.members]
            if progress != before:
                before, since = progress, now()
            elif now() - since > STALL:
                raise DemoFailed(f"no progress for {STALL:.0f} s")
            self._board = board
            self._screen.update(board)
            self._changed.set()
            self._changed = anyio.Event()
            await anyio.sleep(_REFRESH)

    async def _until(self, condition: Callable[[Board], object]) -> None:
        while not condition(self._board):
            await self._changed.wait()

    def _member(self, name: str, connect: str) -> DemoMember:
        text = configuration(
            connect=connect, group=GROUP, topic=TOPIC, name=name, path=self.path, scratch=self._folder / "scratch"
        )
        return DemoMember(name, self._folder / name, text)


# The frame: signals, output, and cleaning up. The directory is removed at the end, unless the demo failed or `--keep`
# was given; no process outlives the call.

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
