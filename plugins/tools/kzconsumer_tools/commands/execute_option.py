"""What verbs that change something share: a plan unless `--execute`, and an undo file on disk before anything changes.

Owns no state.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kzconsumer.errors import NotDone

if TYPE_CHECKING:
    from kzconsumer_tools.node_changes import Change


def add_executing(action: argparse.ArgumentParser) -> None:
    action.add_argument("--execute", action="store_true", help="do it; without it only the plan is shown")


def add_execute(action: argparse.ArgumentParser) -> None:
    """`--execute`, of what changes nodes that a file of nodes restores."""
    add_executing(action)
    undo = "where to keep what stands there now (default: a new file in this folder, named in the answer)"
    action.add_argument("--undo", metavar="FILE", type=Path, help=undo)


def write_undo(chosen: Path | None, group: str, changes: Iterable[Change]) -> Path:
    """The file that undoes the changes, on disk when this returns. Raises NotDone when it cannot be written."""
    from kzconsumer_tools.node_changes import undo_file

    path = undo_path(chosen, group)
    write_file(path, undo_file(changes))
    return path


def undo_path(chosen: Path | None, group: str) -> Path:
    """What was chosen, or a name that nothing has."""
    return chosen or Path(f"undo-{group}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.jsonl")


def write_file(path: Path, content: bytes) -> None:
    """A new file, on disk when this returns. Raises NotDone when it exists, or cannot be written."""
    from kzconsumer.durable_files import sync_directory, write_new

    try:
        write_new(path, content)
        sync_directory(path.parent)
    except OSError as error:
        raise NotDone(f"{path}: cannot be written ({error.strerror}); nothing was changed") from None


def read_file(path: Path) -> bytes:
    """Raises NotDone when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotDone(f"{path}: cannot be read: {error.strerror}") from None
