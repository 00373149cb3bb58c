"""Models what of a directory is on disk: content and names that were synced. Others may be lost in a power failure.

`watched_disk` wraps functions of `os` in this process. Files may be written in any way: their content is compared.
After a sync that failed, only what `os.write` and `os.pwrite` write counts as written again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

OnName = Callable[[Path, Path], None]
OnPath = Callable[[Path], None]


class Disk:
    """Everything below `root` counts as synced at first, as does its own name.

    `on_name(file, name)` is called before a file gets a name by a link or a rename, `on_removal(name)` before one is
    removed; they may raise. `on_sync(file)` is called before a file is synced. If it raises, this is how Linux reports
    an error of the disk: once. The pages count as clean then, and a later sync that succeeds does not write them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.on_name: OnName = lambda file, name: None
        self.on_removal: OnPath = lambda name: None
        self.on_sync: OnPath = lambda file: None
        self._contents: dict[int, bytes] = {}  # by inode
        self._sizes: dict[int, int] = {}  # of what is on disk, by inode
        self._refused: dict[int, list[tuple[int, int]]] = {}  # bytes that count as clean and are not on disk, by inode
        self._names: dict[int, dict[str, int]] = {}  # by inode of the directory
        for path in (root, *root.rglob("*")):
            self.synced(path)

    def missing(self, path: Path) -> str | None:
        """Why a file or directory may be lost; None if it is on disk."""
        if not path.is_dir() and self._contents.get(path.stat().st_ino) != _digest(path):
            return f"the content of {path} is not synced"
        if self._refused.get(path.stat().st_ino):
            return f"the disk refused a part of {path}, which was not written again"
        for each in (path, *path.parents):
            if each == self.root:
                return None
            if self._names.get(each.parent.stat().st_ino, {}).get(each.name) != each.stat().st_ino:
                return f"the name of {each} is not synced"
        raise ValueError(f"{path} is not below {self.root}")

    def require(self, *paths: Path) -> None:
        for path in paths:
            if (reason := self.missing(path)) is not None:
                pytest.fail(reason)

    def synced(self, path: Path) -> None:
        inode = path.stat().st_ino
        if path.is_dir():
            self._names[inode] = {each.name: each.lstat().st_ino for each in path.iterdir()}
        else:
            self._contents[inode] = _digest(path)
            self._sizes[inode] = path.stat().st_size

    def refused(self, path: Path) -> None:
        """A sync failed: what was appended to the file, or all of it if it was changed, is lost with the cache."""
        inode, size = path.stat().st_ino, path.stat().st_size
        kept = self._sizes.get(inode, 0)
        if self._contents.get(inode) != _digest(path):
            self._refused.setdefault(inode, []).append((kept, size) if kept < size else (0, size))

    def written(self, descriptor: int, first: int, until: int) -> None:
        inode = os.fstat(descriptor).st_ino
        if inode in self._refused:
            before = self._refused[inode]
            self._refused[inode] = [
                (max(low, begin), min(high, end))
                for begin, end in before
                for low, high in ((begin, first), (until, end))
                if max(low, begin) < min(high, end)
            ]

    def truncated(self, descriptor: int, size: int) -> None:
        inode = os.fstat(descriptor).st_ino
        if inode in self._refused:
            self._refused[inode] = [(begin, min(end, size)) for begin, end in self._refused[inode] if begin < size]

    def removed(self, path: Path) -> None:
        """The next file may have the same inode."""
        found = path.lstat()
        if found.st_nlink == 1 or stat.S_ISDIR(found.st_mode):
            self._contents.pop(found.st_ino, None)
            self._sizes.pop(found.st_ino, None)
            self._refused.pop(found.st_ino, None)
            self._names.pop(found.st_ino, None)


def _digest(path: Path) -> bytes:
    return blake2b(path.read_bytes()).digest()


@contextmanager
def watched_disk(root: Path) -> Iterator[Disk]:
    disk = Disk(root)

    def sync(call: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if not path.is_relative_to(root):
                call(descriptor)
                return
            try:
                if not path.is_dir():
                    disk.on_sync(path)
            except OSError:
                disk.refused(path)
                raise
            call(descriptor)
            disk.synced(path)

        return synced

    def write(call: Callable[..., int]) -> Callable[..., int]:
        def written(descriptor: int, data: Any, *at: int) -> int:
            size = call(descriptor, data, *at)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                until = at[0] + size if at else os.lseek(descriptor, 0, os.SEEK_CUR)
                disk.written(descriptor, until - size, until)
            return size

        return written

    def truncate(call: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def truncated(descriptor: int, size: int) -> None:
            call(descriptor, size)
            disk.truncated(descriptor, size)

        return truncated

    def name(call: Callable[..., None]) -> Callable[..., None]:
        def named(file: Any, final: Any, **options: Any) -> None:
            if Path(final).is_relative_to(root):
                disk.on_name(Path(file), Path(final))
            call(file, final, **options)

        return named

    def remove(call: Callable[..., None]) -> Callable[..., None]:
        def removed(path: Any, *, dir_fd: int | None = None) -> None:
            whole = Path(path) if dir_fd is None else Path(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
            if whole.is_relative_to(root) and os.path.lexists(whole):
                disk.on_removal(whole)
                disk.removed(whole)
            call(path, dir_fd=dir_fd)

        return removed

    wrappers: dict[Callable[[Any], Any], Sequence[str]] = {
        sync: ("fsync", "fdatasync"),
        write: ("write", "pwrite"),
        truncate: ("ftruncate",),
        name: ("link", "rename", "replace"),
        remove: ("unlink", "remove", "rmdir"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for wrapper, calls in wrappers.items():
            for each in calls:
                patch.setattr(os, each, wrapper(getattr(os, each)))
        yield disk
