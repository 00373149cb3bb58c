"""One server process: start, wait until it serves, signal, wait until it ends. Synchronous, for fixtures too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

from kzconsumer_sandbox.sandbox_errors import SandboxError

START_LIMIT = 60.0
"""Seconds until a server has to serve; usually it takes 1 to 3."""
_BUSY = 1.5
"""Load for each processor; a server that starts is below 1."""
_LONGER_IF_BUSY = 5

_LAUNCHER = Path(__file__).with_name("die_with_parent.py")
_POLL = 0.05


class Patience:
    """How long a start may take: `limit` seconds, five times as long while other programs keep the processors busy."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._began = time.monotonic()

    def exhausted(self) -> bool:
        passed = time.monotonic() - self._began
        if passed <= self._limit:
            return False
        busy = os.getloadavg()[0] > _BUSY * (os.cpu_count() or 1)
        return not busy or passed > self._limit * _LONGER_IF_BUSY

    def __str__(self) -> str:
        return f"{time.monotonic() - self._began:.0f} s"


class ServerProcess(ABC):
    """A server that the kernel kills when the thread that started it ends.

    So `start` must be called from a thread that lives as long as the server should, usually the main thread. A subclass
    defines what to run (`command`) and when it serves (`serves`).
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.log = folder / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Write the configuration files; return program and arguments."""

    def serves(self) -> bool:
        """Check once whether the server serves; by default, whether its process is alive."""
        return self.alive

    def wait_startable(self, limit: float = START_LIMIT) -> None:  # noqa: B027
        """Block until an earlier process no longer prevents a start. Raises SandboxError after `limit` seconds."""

    @property
    def pid(self) -> int:
        """The id of the present or last process."""
        if self._process is None:
            raise SandboxError(f"{self.name} was never started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return at once; its output is appended to `log`."""
        if self.alive:
            raise SandboxError(f"{self.name} is running already (process {self.pid})")
        self.folder.mkdir(parents=True, exist_ok=True)
        program = self.command()
        # -I and -S: no site packages, so that the launcher starts in 10 ms.
        launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid())]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*launcher, *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                process_group=0,  # Ctrl-C in the terminal is for the supervisor only
            )

    def wait_ready(self, limit: float = START_LIMIT) -> None:
        """Block until the server serves. Raises SandboxError, with the end of the log, if it does not."""
        self.wait_patiently(Patience(limit))

    def wait_patiently(self, patience: Patience) -> None:
        """Like `wait_ready`, for several servers that start together."""
        while not self.serves():
            if not self.alive:
                raise SandboxError(self._failure("exited instead of serving"))
            if patience.exhausted():
                raise SandboxError(self._failure(f"does not serve after {patience}"))
            time.sleep(_POLL)

    def send_signal(self, number: signal.Signals) -> None:
        """For SIGSTOP, returns when all threads have stopped."""
        if self.alive and self._process is not None:
            self._process.send_signal(number)
            if number == signal.SIGSTOP:
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait_ended(self, limit: float = 30.0) -> None:
        """Block until the process has ended. Raises SandboxError after `limit` seconds."""
        if self._process is None:
            return
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            raise SandboxError(f"{self.name} (process {self.pid}) has not ended in {limit:.0f} s") from None

    def kill(self) -> None:
        """Kill it; also if it is stopped (SIGSTOP) or was never started."""
        self.send_signal(signal.SIGKILL)
        self.wait_ended()

    def last_lines(self, count: int = 25) -> str:
        """The end of the log, for an error message."""
        try:
            text = self.log.read_bytes()[-20_000:].decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-count:])

    def _failure(self, what: str) -> str:
        if "Address already in use" in self.last_lines(1000):
            return f"{self.name}: another program has taken its port; start again ({self.log})"
        return f"{self.name} {what}; the end of {self.log}:\n{self.last_lines()}"

    def __repr__(self) -> str:
        if self._process is None:
            state = "not started"
        else:
            ended = self._process.poll()
            state = f"process {self.pid}" if ended is None else f"ended with {ended}"
        return f"<{type(self).__name__} {self.name} {state}>"
