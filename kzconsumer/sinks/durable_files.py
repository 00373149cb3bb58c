"""Small files that are there whole or not at all, and names that survive a crash.

Owns no state; blocking. The archive's files of identity and ownership are made with it.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path


def create_whole(path: Path, data: bytes) -> None:
    """Make a file unless it exists: of several writers one wins, and nobody ever sees a part. Raises OSError."""
    staged = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with staged.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(staged, path)  # unlike a rename, it never replaces
    finally:
        staged.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
