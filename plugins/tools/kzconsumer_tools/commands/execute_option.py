"""`--execute`, `--undo` and `--republish` of verbs that change something, and the files that they write and read."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from kzconsumer.durable_files import sync_directory, write_new
from kzconsumer.errors import NotDoneError


def add_execute(action: argparse.ArgumentParser) -> None:
    action.add_argument("--execute", action="store_true", help="do it; without it the changes are only shown")


def add_execute_and_undo(action: argparse.ArgumentParser) -> None:
    add_execute(action)
    undo = "file for the current content of the nodes; default: a new file in this directory, named in the output"
    action.add_argument("--undo", metavar="FILE", type=Path, help=undo)


def add_change_of_offsets(action: argparse.ArgumentParser, condition: str = "") -> None:
    """These two and `--republish`, to which `condition` says when it counts."""
    add_execute_and_undo(action)
    help = f"{condition}allow records to be written to a replayable sink's destination again"
    action.add_argument("--republish", action="store_true", help=help)


def write_undo(chosen: Path | None, name: str, content: bytes, suffix: str = "jsonl") -> Path:
    """Write the undo file, by default under a new name with `name` in it.

    Raises NotDoneError if it cannot be written.
    """
    path = chosen or Path(f"undo-{name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.{suffix}")
    write_file(path, content)
    return path


def write_file(path: Path, content: bytes) -> None:
    """Write a new file, durable on return. Raises NotDoneError if it exists or cannot be written."""
    try:
        write_new(path, content)
        sync_directory(path.parent)
    except OSError as error:
        why = f"{path}: cannot be written ({error.strerror})"
        raise NotDoneError(f"{why}; nothing was changed: name another file") from None


def read_file(path: Path) -> bytes:
    """Raises NotDoneError if the file cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotDoneError(f"{path}: cannot be read: {error.strerror}") from None
