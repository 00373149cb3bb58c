"""Staged files contain records: only their owner may read them, regardless of the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kzconsumer_files.private_directory import PrivateDirectory


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_a_private_directory_is_accessible_to_its_owner_only(tmp_path: Path) -> None:
    private = PrivateDirectory(tmp_path)
    modes = {each.suffix: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    assert modes == {"": 0o700, ".lock": 0o600}
    private.remove()
    assert list(tmp_path.iterdir()) == []
