"""Putting finished files in place on a local file system: the first writer wins, and what is there survives a crash.

Owns no state; blocking. The archive makes its files of identity with it, the Spark sink publishes with it. Two
processes may race on one name and exactly one is told that it won. It never replaces or deletes what has a final name.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def create_whole(path: Path, data: bytes) -> bool:
    """Make a small file unless it exists: of several writers one wins, and nobody ever sees a part. Raises OSError.

    True if it is ours.
    """
    staged = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write_new(staged, data)
        won = put_in_place(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    sync_directory(path.parent)
    return won


def put_in_place(staged: Path, final: Path) -> bool:
    """Give `staged` its final name unless that name exists; the staged name is gone afterwards either way.

    True if ours is the file now in place. A hard link fails on an existing name atomically, which a rename does not.
    The caller makes the staged file durable before and the directory durable after.
    """
    try:
        os.link(staged, final)
    except FileExistsError:
        won = False
    else:
        won = True
    staged.unlink()
    return won


def write_new(staged: Path, data: bytes) -> None:
    """Write a small file whole and wait until its content is on disk."""
    with staged.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on disk."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
