"""Directories below shared ones, such as the system's temporary directory, that no other user can replace or change."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


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
