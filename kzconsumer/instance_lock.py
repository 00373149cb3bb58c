"""One daemon for one instance: the lock file that the second one finds taken.

Owns the file while the daemon runs; the lock goes with the process, however it ends, and the file stays. Only against
mistakes: two members of a group on one machine are two instances, and what must not be done twice has fences.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kzconsumer.errors import AlreadyRunning, ConfigError

INSTALLED = Path("/etc/kzconsumer")
RUNNING = Path("/run/kzconsumer")


def lock_path(setting: str | None, source: str, environment: Mapping[str, str]) -> Path | None:
    """The setting, or the lock of the unit's instance: its own, or that of the unit which has this file.

    None where nothing says what an instance is: one file may be run more than once, as several members.
    """
    if setting is not None:
        return Path(setting)
    if directory := environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return Path(directory, "lock")
    file = Path(source)
    if file.absolute().parent == INSTALLED and (started := RUNNING / file.stem / "lock").exists():
        return started
    return None


@contextmanager
def instance_lock(path: Path | None) -> Iterator[None]:
    """Raises AlreadyRunning when another process has it, ConfigError when the file cannot be opened."""
    if path is None:
        yield
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise ConfigError([f"[service] lock: {path} cannot be opened: {error.strerror}"]) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise AlreadyRunning(f"{path}: process {holder or '?'} runs this instance already") from None
        os.fchmod(descriptor, 0o644)  # whatever the umask: whoever finds it taken may read by whom
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)
