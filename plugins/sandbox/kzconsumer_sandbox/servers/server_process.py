"""One server process: start, wait until it serves, signal, wait for its end.

Owns the child process and its log file. Synchronous, so that fixtures and async code use the same one; the base of the
ZooKeeper and the broker. It decides nothing about restarts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

from kzconsumer_sandbox.servers.failure import SandboxError

START_LIMIT = 60.0
"""Seconds a server may take to serve; a start takes 1 to 3, a busy machine needs more."""

_LAUNCHER = Path(__file__).with_name("die_with_parent.py")
_POLL = 0.05


class ServerProcess(ABC):
    """A server that is killed by the kernel when the thread that started it ends, however that happens.

    Hence `start` must be called from a thread that lives as long as the server should: the main thread, in general.
    A subclass says what to run (`command`) and, if it can be asked, when it serves (`serves`).
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
        """Ask the server, once. One that nobody can ask serves while it lives."""
        return self.alive

    def wait_startable(self, limit: float = START_LIMIT) -> None:  # noqa: B027  (most have nothing to wait for)
        """Block until nothing of an earlier process is in the way. Raises SandboxError after `limit` seconds."""

    @property
    def pid(self) -> int:
        """The process id of the running, or of the last, process."""
        if self._process is None:
            raise SandboxError(f"{self.name} was never started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return at once; its output is appended to `log`."""
        if self.alive:
            raise SandboxError(f"{self.name} runs already (process {self.pid})")
        self.folder.mkdir(parents=True, exist_ok=True)
        program = self.command()
        # -I and -S: nothing of the user's environment is needed before Java takes over, and it starts in 10 ms.
        launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid())]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*launcher, *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                process_group=0,  # Ctrl-C on the terminal is for the supervisor alone
            )

    def wait_ready(self, limit: float = START_LIMIT) -> None:
        """Block until the server serves. Raises SandboxError, with the log's end, if it dies or takes too long."""
        deadline = time.monotonic() + limit
        while not self.serves():
            if not self.alive:
                raise SandboxError(self._failure("has ended instead of serving"))
            if time.monotonic() > deadline:
                raise SandboxError(self._failure(f"does not serve after {limit:.0f} s"))
            time.sleep(_POLL)

    def send_signal(self, number: signal.Signals) -> None:
        """Returns from SIGSTOP when all threads stand still: until one of them has looked, the others go on."""
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
        """End it now; also when it is stopped (SIGSTOP) or was never started."""
        self.send_signal(signal.SIGKILL)
        self.wait_ended()

    def last_lines(self, count: int = 25) -> str:
        """The end of the log, as much of it as a message can show."""
        try:
            text = self.log.read_bytes()[-20_000:].decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-count:])

    def _failure(self, what: str) -> str:
        return f"{self.name} {what}; the end of {self.log}:\n{self.last_lines()}"

    def __repr__(self) -> str:
        if self._process is None:
            state = "not started"
        else:
            ended = self._process.poll()
            state = f"process {self.pid}" if ended is None else f"ended with {ended}"
        return f"<{type(self).__name__} {self.name} {state}>"
