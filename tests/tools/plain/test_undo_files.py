"""Undo files are on disk before anything is changed, and replace no other file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kzconsumer.errors import NotDoneError
from kzconsumer_tools.commands.output_and_options import read_file, write_undo
from tests.support.disk import watched_disk


@pytest.mark.parametrize("chosen", [True, False])
def test_an_undo_file_is_on_disk(chosen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with watched_disk(tmp_path) as disk:
        path = write_undo(tmp_path / "undo.jsonl" if chosen else None, "offsets", b"content")
        disk.require(tmp_path / path)
    assert read_file(path) == b"content"


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "undo.jsonl"
    write_undo(path, "offsets", b"first")
    with pytest.raises(NotDoneError, match="nothing was changed"):
        write_undo(path, "offsets", b"second")
    assert path.read_bytes() == b"first"
