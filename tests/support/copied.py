"""A copy of a directory that is restored while programs have it open, as from a snapshot or a backup."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

_OF_PROCESSES = {"attempts", "scratch", "stdout"}


def copied(directory: Path) -> Callable[[], None]:
    """What restores all files below it, but for those of running processes."""
    copy = {file: file.read_bytes() for file in _files(directory)}

    def restore() -> None:
        for file in _files(directory):
            if file not in copy:
                file.unlink()
        for file, content in copy.items():
            if not file.exists() or file.read_bytes() != content:
                file.write_bytes(content)

    return restore


def _files(directory: Path) -> Iterator[Path]:
    for file in sorted(directory.rglob("*")):
        if file.is_file() and _OF_PROCESSES.isdisjoint(file.relative_to(directory).parts):
            yield file
