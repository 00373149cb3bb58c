"""Only one replay of a group runs at a time on a machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from kzconsumer.errors import NotDoneError
from kzconsumer_tools.replay import alone


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the locks."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_second_replay_is_refused_while_the_first_one_runs() -> None:
    refused = pytest.raises(NotDoneError, match="another replay of group g is running on this machine")
    with alone("c", "g"), alone("c", "other"), alone("d", "g"), refused, alone("c", "g"):
        pass
    with alone("c", "g"):
        pass


def test_other_users_cannot_hold_the_lock(folder: Path) -> None:
    before = os.umask(0)
    try:
        with alone("c", "g"):
            (ours,) = folder.iterdir()
            assert ours.stat().st_mode & 0o777 == 0o700
            (lock,) = ours.iterdir()
            assert lock.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_without_a_directory_of_its_own_nothing_is_replayed(folder: Path) -> None:
    folder.chmod(0o777)  # as a volume of Kubernetes: any user could put another directory in its place
    refused = pytest.raises(
        NotDoneError, match=r"no lock against other replays: .* may be changed by every user: .*TMPDIR"
    )
    with refused, alone("c", "g"):
        pass
