"""The file that says what sandbox runs, and the lock that says whether it still does.

Owns `sandbox.json` in the user's state folder (or where `--state` points) and the lock beside it. Written by the
supervisor alone, which holds the lock as long as it lives; the command line only reads, and removes what is stale.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kzconsumer_sandbox.servers.failure import SandboxError

FOLDER_PREFIX = "kzconsumer-sandbox-"
"""How the name of every scratch folder begins; nothing else is ever removed."""


class ServerState(msgspec.Struct, frozen=True):
    """A server as `status` shows it; the ZooKeeper's id is 0."""

    id: int
    host: str
    port: int
    pid: int


class SandboxState(msgspec.Struct, frozen=True):
    """What runs. `ready` is false, and the servers are missing, while it is being started."""

    pid: int
    kafka_version: str
    folder: str
    ready: bool = False
    zookeeper_connect: str = ""
    bootstrap: str = ""
    zookeeper: ServerState | None = None
    brokers: tuple[ServerState, ...] = ()


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/kzconsumer/sandbox.json`, by default under `~/.local/state`."""
    base = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or Path.home(), ".local", "state")
    return Path(base, "kzconsumer", "sandbox.json")


class StateFile:
    """One place where at most one sandbox runs."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = self.path.with_suffix(".lock")

    def read(self) -> SandboxState | None:
        """What was written last, whether or not it still runs; None without a file or with one that is not ours."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=SandboxState)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def running(self) -> bool:
        """True while a supervisor lives, kill -9 included: the lock goes with its process."""
        try:
            file = self._lock.open("rb")
        except FileNotFoundError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def remove_stale(self) -> bool:
        """Remove what a supervisor that was killed left behind; False when there was nothing. Raises as `hold`."""
        left = self.read() is not None
        with self.hold():
            return left

    def write(self, state: SandboxState) -> None:
        """Replace the content at once; a reader sees the old one or the new one."""
        new = self.path.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
        new.replace(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """The supervisor's claim on this place, which is clean then. Raises SandboxError when another one has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.open("wb") as file:
            deadline = time.monotonic() + 0.5
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:  # somebody may just be looking whether we run
                    if time.monotonic() > deadline:
                        raise SandboxError(f"a sandbox runs already, see {self.path}") from None
                    time.sleep(0.02)
            self._remove_left_over()
            yield

    def _remove_left_over(self) -> None:
        state = self.read()
        if state is not None and Path(state.folder).name.startswith(FOLDER_PREFIX):
            shutil.rmtree(state.folder, ignore_errors=True)
        self.remove()
