"""Durable files on a local file system: they survive a crash once a function returns.

A file gets its final name by a hard link, so that of several writers the first wins and no name holds part of a file. A
file with its final name is never replaced or deleted. All functions block and raise OSError.

**A sync that failed is not repeated.** Linux reports a page that the disk has refused once, and counts it as clean from
then on: the next sync, by any process, finds nothing to write and succeeds, and the content is lost with the page
cache. So content whose sync failed is written again: under a new name, or in place by `sync_again`. A directory needs
no such care: file systems keep names in their journal, and stop if they cannot write that.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

_READABLE: Final = 100  # characters of a name, which is at most 255 bytes
_PIECE: Final = 4 << 20


def staged_name(final: Path) -> Path:
    """A new hidden name in the same directory, to write a file under before it gets its final one."""
    return final.with_name(f".{final.name[:_READABLE]}.{uuid.uuid4().hex}")


def make_directory(path: Path) -> None:
    """Create a directory, and those above it, unless they exist.

    A directory that another process is creating at the same moment, or was creating when it died, is not synced.
    """
    made = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        for each in made:
            with suppress(PermissionError):  # of a directory that may be written and not read
                sync_directory(each.parent)
    except OSError:
        for each in made:  # for the next attempt
            with suppress(OSError):
                each.rmdir()
        raise


def create_whole(path: Path, data: bytes | memoryview) -> bool:
    """Create a file with this content unless it exists; True if this call did."""
    staged = staged_name(path)
    try:
        write_new(staged, data)
        return publish(staged, path)
    finally:
        staged.unlink(missing_ok=True)


def create_same(path: Path, data: bytes | memoryview) -> None:
    """Create a file, and its directory, with this content, or find it so. Raises FileExistsError if it is different."""
    make_directory(path.parent)
    if not create_whole(path, data) and path.read_bytes() != data:
        raise FileExistsError(f"{path} exists with different content: move it away")


def publish(staged: Path, final: Path) -> bool:
    """`put_in_place`, and wait until the name is on disk, too. The caller has synced the staged file before."""
    won = put_in_place(staged, final)
    sync_directory(final.parent)
    return won


def put_in_place(staged: Path, final: Path) -> bool:
    """Give `staged` its final name unless that exists; True if it now has it. The staged name is gone in either case.

    The caller syncs the staged file before and the directory after. A link fails if the name exists, a rename does not.
    """
    try:
        os.link(staged, final)
    except FileExistsError:
        won = False
    else:
        won = True
    staged.unlink()
    return won


def write_new(path: Path, data: bytes | memoryview) -> None:
    """Create a file and wait until its content is on disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class AppendedFile:
    """A new file that grows by whole pieces; its directory is created if it is missing.

    After an error it is to be abandoned. Then, or if the process died, it may end with a part of a piece, and another
    file continues it, beginning with the piece that failed. Raises FileExistsError for a name that exists, so that two
    processes never append to one file.
    """

    def __init__(self, path: Path) -> None:
        make_directory(path.parent)
        self._path = path
        self._file = path.open("xb", buffering=0)
        self._has_a_piece = False
        self.size = 0
        """Bytes."""
        try:
            sync_directory(path.parent)
        except OSError:
            self.abandon()
            raise

    @property
    def in_place(self) -> bool:
        """Whether its name is still that of the file: somebody may have deleted or moved it."""
        with suppress(OSError):
            return os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        return False

    def append(self, data: bytes) -> None:
        """Write all of it and wait until it is on disk. Raises FileNotFoundError if the file is not in place then."""
        left = memoryview(data)
        while left:
            written = self._file.write(left) or 0
            self.size += written
            left = left[written:]
        os.fsync(self._file.fileno())
        # An open file can be written after it was deleted, and nobody will read that.
        if not self.in_place:
            raise FileNotFoundError(f"{self._path.name} was deleted or moved while it was written")
        self._has_a_piece = True

    def abandon(self) -> None:
        """Close it after an error. Without a whole piece it is removed: attempts that repeat must not fill the disk."""
        self.close()
        if not self._has_a_piece:
            with suppress(OSError):
                self._path.unlink()

    def close(self) -> None:
        self._file.close()


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on disk that nobody has tried to sync before.

    The caller makes the file under another name if this fails. For any other file use `sync_again`.
    """
    _sync(path, os.O_RDONLY)


def sync_again(path: Path) -> None:
    """Wait until the content of a file is on disk, whatever earlier syncs said. Its time of change stays.

    A file that another user owns, who alone may write it, is only synced.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except PermissionError:
        sync_file(path)
        return
    try:
        found = os.fstat(descriptor)
        try:
            _write_again(descriptor)
        finally:
            os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))
    finally:
        os.close(descriptor)


def _write_again(descriptor: int) -> None:
    """Write what a file holds in place once more, and wait until that is on disk. It is not open for appending."""
    at = 0
    while piece := os.pread(descriptor, _PIECE, at):
        while piece:
            written = os.pwrite(descriptor, piece, at)
            at += written
            piece = piece[written:]
    os.fsync(descriptor)


def refresh_directory(directory: Path) -> None:
    """Make visible what other machines have changed in a directory, on NFS.

    A client there remembers for up to a minute that a name did not exist, even if it has looked only once. It forgets
    that when an operation of its own in the directory shows that another client was there before.
    """
    seen = directory / f".{uuid.uuid4().hex}"
    os.close(os.open(seen, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    seen.unlink()


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
