"""The file that describes the running sandbox, and the lock that the supervisor holds while it lives.

Only the supervisor writes the file; the command line reads it, and removes a stale one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kzconsumer.own_files import ProcessLock
from kzconsumer_sandbox.sandbox_errors import SandboxError

FOLDER_PREFIX = "kzconsumer-sandbox-"
"""Prefix of every scratch directory; no other directory is ever removed."""

KCAT_CONFIG = "kcat.conf"
"""The file in the scratch directory that names the brokers to kcat."""


class ServerState(msgspec.Struct, frozen=True):
    """A server as `status` shows it; the id of ZooKeeper is 0."""

    id: int
    host: str
    port: int
    pid: int


class SandboxState(msgspec.Struct, frozen=True):
    """The sandbox. While it is starting, `ready` is false and the servers are missing.

    `kraft`: the controller is in KRaft mode. `migrated`: the steps out of ZooKeeper that are done (`Migration`).
    """

    pid: int
    kafka_version: str
    folder: str
    ready: bool = False
    zookeeper_connect: str = ""
    bootstrap: str = ""
    zookeeper: ServerState | None = None
    brokers: tuple[ServerState, ...] = ()
    kraft: bool = False
    migrated: tuple[str, ...] = ()


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/kzconsumer/sandbox.json`, by default under `~/.local/state`."""
    base = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or Path.home(), ".local", "state")
    return Path(base, "kzconsumer", "sandbox.json")


class StateFile:
    """The state file of at most one sandbox."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = self.path.with_suffix(".lock")

    def read(self) -> SandboxState | None:
        """The last state, whether or not the sandbox still runs; None without a valid file."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=SandboxState)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def running(self) -> bool:
        """Whether the supervisor is alive: its lock ends with its process. Raises SandboxError if it is another's."""
        try:
            lock = ProcessLock.take(self._lock, create=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise SandboxError(f"cannot lock {self._lock} ({error.strerror}): give --state FILE") from None
        if lock is not None:
            lock.release()
        return lock is None

    def remove_stale(self) -> bool:
        """Remove what a killed supervisor left; False if there was nothing. Raises as `hold`."""
        left = self.read() is not None
        with self.hold():
            return left

    def write(self, state: SandboxState) -> None:
        """Replace the file atomically."""
        new = self.path.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
        new.replace(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock; removes a stale state first.

        Raises SandboxError if another supervisor holds it, or if it cannot be created.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = ProcessLock.wait(self._lock, 0.5)  # `running` may hold it for a moment
        except OSError as error:
            raise SandboxError(f"cannot write {self.path} ({error.strerror}): give --state FILE") from None
        if lock is None:
            raise SandboxError(f"a sandbox is running already, see {self.path}")
        try:
            self._remove_left_over()
            yield
        finally:
            lock.release()

    def _remove_left_over(self) -> None:
        state = self.read()
        if state is not None and Path(state.folder).name.startswith(FOLDER_PREFIX):
            shutil.rmtree(state.folder, ignore_errors=True)
        self.remove()
