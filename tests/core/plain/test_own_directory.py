"""Directories that no other user can replace or change."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kzconsumer.errors import ConfigError
from kzconsumer.own_files import make_own_directory

OTHER = 65500
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root makes directories of others")


def test_it_is_accessible_to_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "above" / "mine"
    for _ in range(2):
        make_own_directory(path)
        assert path.stat().st_mode & 0o777 == 0o700
        path.chmod(0o777)  # of ours, from an earlier version: mended
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_own_directory(tmp_path / "file")


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(PermissionError, match="is not a directory of this user"):
        make_own_directory(tmp_path / "link")


@ROOT
def test_one_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.mkdir()
    os.chown(path, OTHER, OTHER)
    with pytest.raises(PermissionError, match=f"^{re.escape(str(path))} is not a directory of this user"):
        make_own_directory(path)


@ROOT
def test_one_below_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """They could rename ours, and put another one in its place."""
    above = tmp_path / "theirs"
    above.mkdir()
    os.chown(above, OTHER, OTHER)
    with pytest.raises(PermissionError, match=rf"theirs, above .*mine, belongs to user {OTHER}"):
        make_own_directory(above / "between" / "mine")


def test_one_below_a_directory_that_everybody_may_change_is_refused_unless_it_is_sticky(tmp_path: Path) -> None:
    above = tmp_path / "shared"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(PermissionError, match=r"shared, above .*mine, may be changed by every user"):
        make_own_directory(above / "between" / "mine")
    above.chmod(0o1777)
    make_own_directory(above / "between" / "mine")


@ROOT
def test_scratch_and_files_to_be_uploaded_are_in_such_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are known, and another user may have made them before."""
    from kzconsumer_files.private_directory import local_attempts, make_local_attempts
    from kzconsumer_spark.daemon.requirements import make_scratch
    from kzconsumer_spark.daemon.sink_options import read_options

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for path in (tmp_path / f"kzconsumer-spark-{os.getuid()}", local_attempts()):
        path.mkdir()
        os.chown(path, OTHER, OTHER)
    with pytest.raises(PermissionError, match="is not a directory of this user"):
        make_local_attempts()
    with pytest.raises(ConfigError, match=r"scratch: .* is not a directory of this user"):
        make_scratch(read_options({"destination": "parquet", "path": "/d", "scratch": str(tmp_path)}))
