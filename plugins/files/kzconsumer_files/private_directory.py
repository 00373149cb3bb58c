"""Directories that belong to one living process, and the removal of those whose process has ended.

A process owns `<parent>/<name>/` as long as it holds the lock on `<parent>/<name>.lock`; the kernel releases the lock
when the process ends, also after a kill -9. A directory without a lock file is never touched.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from kzconsumer.durable_files import make_directory
from kzconsumer.logs.logger import get_logger
from kzconsumer.own_files import ProcessLock, make_own_directory

_log = get_logger("kzconsumer.files")


class PrivateDirectory:
    """A directory of our own under `parent`, made at once. `remove` deletes it; dying leaves it to `sweep`."""

    def __init__(self, parent: Path) -> None:
        self.lock: ProcessLock | None = None
        """Held until `remove`: it says that the process lives."""
        self._make(parent)

    def entries(self) -> list[Path]:
        """What is in it. In the system's temporary directory it is made again if a clean-up has removed it."""
        if self.path.parent == local_attempts() and not self.path.exists():
            self.remove()
            self._make(self.path.parent)
        return sorted(self.path.iterdir())

    def _make(self, parent: Path) -> None:
        if parent == local_attempts():
            make_local_attempts()
        else:
            make_directory(parent)
        while self.lock is None:
            self.path = parent / uuid.uuid4().hex
            self.lock = _locked(_lock_file(self.path), create=True)
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        if self.lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            _lock_file(self.path).unlink(missing_ok=True)
            self.lock.release()
            self.lock = None


def sweep(parent: Path, is_needed: Callable[[Path], bool] = lambda directory: False) -> int:
    """Remove the directories under `parent` whose processes have ended; returns their number.

    `is_needed` is called for each of them, to which nothing can be added any more. A directory that is needed, or for
    which it raises OSError, stays and is logged.
    """
    removed = 0
    for lock_file in sorted(parent.glob("*.lock")):
        lock = _locked(lock_file, create=False)
        if lock is None:
            continue
        try:
            removed += _remove_unless(is_needed, lock_file.with_suffix(""))
        finally:
            lock.release()
    return removed


def _remove_unless(is_needed: Callable[[Path], bool], directory: Path) -> bool:
    reason = "a decided range has its files there"
    try:
        needed = is_needed(directory)
    except OSError as error:
        needed, reason = True, str(error)
    if needed:
        _log.warning("staged files kept", directory=str(directory), reason=reason)
        return False
    shutil.rmtree(directory, ignore_errors=True)
    _lock_file(directory).unlink(missing_ok=True)
    return True


def abandoned(parent: Path) -> list[Path]:
    """The directories that `sweep` would remove."""
    found = []
    for lock_file in sorted(parent.glob("*.lock")):
        if (lock := _locked(lock_file, create=False)) is not None:
            lock.release()
            found.append(lock_file.with_suffix(""))
    return found


def local_attempts() -> Path:
    """The parent of private directories for files that are uploaded from this machine."""
    return Path(tempfile.gettempdir(), f"kzconsumer-files-{os.getuid()}")


def make_local_attempts() -> None:
    """Raises PermissionError where it is another user's, who could change files before they are uploaded."""
    make_own_directory(local_attempts())


def dead_attempts(attempts: Path) -> Iterator[str]:
    """A sentence about the directories that `sweep` would remove, if there are any."""
    if found := abandoned(attempts):
        size = sum(file.stat().st_size for each in found for file in each.rglob("*") if file.is_file())
        them = "1 dead attempt has" if len(found) == 1 else f"{len(found)} dead attempts have"
        it = "it" if len(found) == 1 else "them"
        yield f"{them} left {size} bytes in {attempts}; the next start removes {it}"


def _lock_file(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.lock")


def _locked(path: Path, *, create: bool) -> ProcessLock | None:
    """The lock on the file now called `path`; None if another process, or an object of this one, has it."""
    try:
        lock = ProcessLock.take(path, create=create)
    except FileNotFoundError:
        return None
    except PermissionError:
        if create:
            raise
        return None  # another user's: not ours to remove
    if lock is None:
        return None
    # A sweeper may have locked and removed the file between our open and our lock: then we hold a nameless one.
    with suppress(FileNotFoundError):
        if os.stat(path).st_ino == os.fstat(lock.descriptor).st_ino:
            return lock
    lock.release()
    return None
