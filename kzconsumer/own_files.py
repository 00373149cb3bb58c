"""What belongs to this user or to this process alone: directories below shared ones, and locks on files.

No other user can replace or change such a directory, also below the system's temporary one.
"""

from __future__ import annotations

import fcntl
import math
import os
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import Final, Self


def own_directory(program: str, below: str | None = None) -> Path:
    """Make `kzconsumer-<program>-<uid>` in a directory, by default the system's temporary one, and return it.

    Raises as `make_own_directory`.
    """
    path = Path(below or tempfile.gettempdir()).absolute() / f"kzconsumer-{program}-{os.getuid()}"
    make_own_directory(path)
    return path


def make_own_directory(path: Path) -> None:
    """Make a directory that is accessible to this user only, with its parents.

    Raises PermissionError if it, or a directory above it up to the root, belongs to another user than root, or may be
    changed by everybody without being sticky: who can rename a directory can put another one in its place.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{path} is not a directory of this user: {_WAY_OUT}")
    for above in path.resolve().parents:
        status = above.stat()
        if status.st_uid not in (0, os.getuid()):
            raise PermissionError(f"{above}, above {path}, belongs to user {status.st_uid}: {_WAY_OUT}")
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise PermissionError(f"{above}, above {path}, may be changed by every user: {_WAY_OUT}")
    path.chmod(0o700)


_WAY_OUT = "remove it, or set TMPDIR, or the option that names it, to another directory"


# Locks on files that belong to one process: no child that it forks holds them, and they end with it.
#
# `flock` locks an open file, which forked children share: a lock outlives a killed daemon by the workers of its sink.
# So these are POSIX record locks, which have two traps. They exclude nobody within a process, and closing any
# descriptor of the file releases them; so the files that this process has locked are known here, and are not opened
# again.

_File = tuple[int, int]
"""Device and inode."""

_LOOK: Final = 0.02

_held: dict[_File, int] = {}  # and the process that holds it: a forked child has a copy of this, and no lock
_guard = threading.Lock()


def _forked() -> None:
    global _guard  # another thread may have held it in the parent
    _guard = threading.Lock()
    _held.clear()


os.register_at_fork(after_in_child=_forked)


class ProcessLock:
    """Made by `take`; `descriptor` is open for reading and writing until `release`."""

    def __init__(self, descriptor: int, file: _File) -> None:
        self.descriptor = descriptor
        self._file = file

    @classmethod
    def take(cls, path: Path, *, create: bool = True, mode: int = 0o600) -> Self | None:
        """None if another process holds it, or this one does already. Raises OSError; a symbolic link is refused."""
        with _guard:
            if _holds(path):
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0), mode)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if isinstance(error, BlockingIOError | PermissionError):  # POSIX allows both
                    return None
                raise
            status = os.fstat(descriptor)
            file = status.st_dev, status.st_ino
            _held[file] = os.getpid()
            return cls(descriptor, file)

    @classmethod
    def wait(cls, path: Path, seconds: float = math.inf) -> Self | None:
        """As `take`, for so many seconds. Blocks."""
        until = time.monotonic() + seconds
        while (lock := cls.take(path)) is None and time.monotonic() < until:
            time.sleep(_LOOK)
        return lock

    def release(self) -> None:
        """In a forked child this closes the child's descriptor, and releases nothing."""
        with _guard:
            if _held.get(self._file) == os.getpid():
                del _held[self._file]
            os.close(self.descriptor)


def content(path: Path) -> bytes:
    """What the holder of a lock has written into its file; empty if it is this process."""
    with _guard:
        return b"" if _holds(path) else path.read_bytes()


def _holds(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return _held.get((status.st_dev, status.st_ino)) == os.getpid()
