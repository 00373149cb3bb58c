"""Staged files contain records: only their owner may read them, regardless of the umask."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kzconsumer_files.private_directory import PrivateDirectory, abandoned, local_attempts


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


def test_a_lock_file_that_a_sweep_removes_before_it_is_locked_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep of another process takes it for that of a dead one. Nobody else would find ours locked then."""
    opened: list[int] = []
    lock = fcntl.lockf

    def removed_before(descriptor: int, operation: int) -> None:
        if not opened:
            (made,) = tmp_path.iterdir()
            made.unlink()
        opened.append(descriptor)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "lockf", removed_before)
    descriptors = len(os.listdir("/proc/self/fd"))
    private = PrivateDirectory(tmp_path)
    assert sorted(tmp_path.iterdir()) == [private.path, private.path.with_suffix(".lock")]
    assert abandoned(tmp_path) == []
    assert len(opened) == 2
    private.remove()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_directory_that_a_clean_up_has_removed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the temporary directory only; what was left of the former one goes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    private, other = PrivateDirectory(local_attempts()), PrivateDirectory(tmp_path / "lake")
    former = private.path
    assert private.entries() == []
    assert private.path == former
    shutil.rmtree(former)
    assert private.entries() == []
    assert sorted(local_attempts().iterdir()) == [private.path, private.path.with_suffix(".lock")]
    assert abandoned(local_attempts()) == []
    (private.path / "b").touch()
    (private.path / "a").touch()
    assert [each.name for each in private.entries()] == ["a", "b"]
    private.remove()
    assert list(local_attempts().iterdir()) == []
    shutil.rmtree(other.path)
    with pytest.raises(FileNotFoundError):
        other.entries()
    other.remove()
