"""Putting a finished file in place so that the first writer wins, on a local file system.

Owns no state. `target` calls it; two processes may race on one name and exactly one is told that it won. It never
replaces or deletes what has a final name.
"""

from __future__ import annotations

import os
from pathlib import Path


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


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new(staged: Path, data: bytes) -> None:
    """Write a small file whole and wait until its content is on disk."""
    with staged.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
