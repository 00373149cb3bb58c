"""Models what of a directory is on disk: content and names that were synced. Others may be lost in a power failure.

`watched_disk` wraps functions of `os` in this process. Files may be written in any way: their content is compared.
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

    `on_name(file, name)` is called before a file gets a name by a link or a rename, `on_creation(name)` before one is
    created by `os.open`, `on_removal(name)` before one is removed; they may raise.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.on_name: OnName = lambda file, name: None
        self.on_creation: OnPath = lambda name: None
        self.on_removal: OnPath = lambda name: None
        self._contents: dict[int, bytes] = {}  # by inode
        self._names: dict[int, dict[str, int]] = {}  # by inode of the directory
        for path in (root, *root.rglob("*")):
            self.synced(path)

    def missing(self, path: Path) -> str | None:
        """Why a file or directory may be lost; None if it is on disk."""
        if not path.is_dir() and self._contents.get(path.stat().st_ino) != _digest(path):
            return f"the content of {path} is not synced"
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

    def removed(self, path: Path) -> None:
        """The next file may have the same inode."""
        found = path.lstat()
        if found.st_nlink == 1 or stat.S_ISDIR(found.st_mode):
            self._contents.pop(found.st_ino, None)
            self._names.pop(found.st_ino, None)


def _digest(path: Path) -> bytes:
    return blake2b(path.read_bytes()).digest()


@contextmanager
def watched_disk(root: Path) -> Iterator[Disk]:
    disk = Disk(root)

    def sync(call: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            call(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.is_relative_to(root):
                disk.synced(path)

        return synced

    def name(call: Callable[..., None]) -> Callable[..., None]:
        def named(file: Any, final: Any, **options: Any) -> None:
            if Path(final).is_relative_to(root):
                disk.on_name(Path(file), Path(final))
            call(file, final, **options)

        return named

    def create(call: Callable[..., int]) -> Callable[..., int]:
        def created(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if flags & os.O_CREAT and Path(path).is_relative_to(root) and not Path(path).exists():
                disk.on_creation(Path(path))
            return call(path, flags, *arguments, **options)

        return created

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
        name: ("link", "rename", "replace"),
        create: ("open",),
        remove: ("unlink", "remove", "rmdir"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for wrapper, calls in wrappers.items():
            for each in calls:
                patch.setattr(os, each, wrapper(getattr(os, each)))
        yield disk
