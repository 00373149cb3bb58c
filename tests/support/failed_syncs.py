"""What a writer makes of a sync that fails: its next attempt must not count what only the page cache has."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

from tests.support.disk import watched_disk

Write = Callable[[Path], Iterable[Path]]
"""Writes below a directory, by a new object as after a restart; returns what it says is on disk."""


def require_written_again(tmp_path: Path, write: Write, before: Write = lambda directory: ()) -> None:
    """Each sync of a file that `write` makes fails in turn; the writer fails, and the next one succeeds.

    `before` is called first, on a disk without faults.
    """
    for number in count():
        directory = tmp_path / str(number)
        directory.mkdir()
        with watched_disk(directory) as disk:
            disk.require(*before(directory))
            synced: list[Path] = []

            def fail(file: Path, number: int = number, synced: list[Path] = synced) -> None:
                synced.append(file)
                if len(synced) == number + 1:
                    raise OSError(errno.EIO, "Input/output error")

            disk.on_sync = fail
            if failed(write, directory) is None:
                assert number > 0, "the writer syncs nothing"
                assert len(synced) == number, f"the failed sync of {synced[number]} does not matter to the writer"
                return
            disk.on_sync = lambda file: None
            written = list(write(directory))
            assert written
            disk.require(*written)


def failed(write: Write, directory: Path) -> Exception | None:
    """Also an error of the product that stands for the OSError."""
    try:
        list(write(directory))
    except Exception as error:
        if "Input/output error" not in str(error):
            raise
        return error
    return None
