"""The members of a group as processes: started, killed, suspended, stopped and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio

from kzconsumer_sandbox.servers import die_with_parent
from tests.interop.evidence import Delivery, Exit, Life, Span
from tests.interop.programs import Program
from tests.interop.schedule import Fault, What

STOP_LIMIT = 30.0
"""Seconds a member has to stop; then it is killed."""


class Process:
    """One process of a member. Its output is read as it is written; the life has it when the process has ended."""

    def __init__(self, command: list[str], life: Life, program: Program, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.life = life
        self.delivered: list[Delivery] = []
        life.delivered = self.delivered
        self._program = program
        launcher = [sys.executable, "-I", "-S", str(Path(die_with_parent.__file__)), str(os.getpid())]
        with (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=err,
                env={**os.environ, **program.environment},
                process_group=0,
            )
        self._reader = threading.Thread(target=self._read, name=life.consumer, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as out:
            for line in out:
                if line.endswith(b"\n"):  # a process that is killed may leave half of one
                    self.delivered.append(self._program.delivery(time.time(), line))

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ended(self, how: Exit) -> None:
        if self.life.exit is None:
            self.life.ended, self.life.exit, self.life.status = time.time(), how, self.process.returncode
            self._reader.join()


class Member:
    """Always has one process, except during its own fault. One that ends by itself is started again."""

    def __init__(self, name: str, program: Program, folder: Path) -> None:
        self.name = name
        self.lives: list[Life] = []
        self._program = program
        self._folder = folder
        self._process: Process | None = None
        self._in_fault = False

    def start(self) -> None:
        number = len(self.lives)
        name = self.name if self._program.keeps_id else f"{self.name}-{number}"
        folder = self._folder / f"{self.name}-{number}"
        life = Life(self.name, self._program.kind, f"{self._program.group}_{name}", time.time())
        self.lives.append(life)
        self._process = Process(self._program.command(name, folder), life, self._program, folder)

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    def look(self) -> None:
        """Start it again if it has ended by itself."""
        if not self._in_fault and not self.process.alive:
            self.process.ended(Exit.BY_ITSELF)
            self.start()

    async def suffer(self, fault: Fault) -> None:
        self.look()
        self._in_fault = True
        try:
            if fault.what is What.SUSPEND:
                await self._suspend(fault.lasts)
                return
            if fault.what is What.KILL:
                self.process.process.kill()
                self.process.process.wait()
                self.process.ended(Exit.KILLED)
            else:
                await self.stop()
            await anyio.sleep(fault.lasts)
            self.start()
        finally:
            self._in_fault = False

    async def stop(self) -> None:
        self._in_fault = True
        process = self.process
        process.life.stopping = time.time()
        process.process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(STOP_LIMIT):
            while process.alive:
                await anyio.sleep(0.02)
            # One that was asked before it could handle the signal was killed by it.
            process.ended(Exit.KILLED if process.process.returncode == -signal.SIGTERM else Exit.STOPPED)
            return
        self.kill()

    def kill(self) -> None:
        if self._process is not None and self._process.alive:
            self._process.process.kill()
            self._process.process.wait()
            self._process.ended(Exit.KILLED)

    async def _suspend(self, lasts: float) -> None:
        began = time.time()
        self.process.process.send_signal(signal.SIGSTOP)
        await anyio.sleep(lasts)
        self.process.life.suspended.append(Span(began, time.time()))
        self.process.process.send_signal(signal.SIGCONT)
