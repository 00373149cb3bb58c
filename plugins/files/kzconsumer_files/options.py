"""What the sinks for files have in common in their options: a place that must be usable."""

from __future__ import annotations

import os
from pathlib import Path

from kzconsumer.errors import ConfigError
from kzconsumer_files.object_store import is_object_store


def unusable(why: str) -> ConfigError:
    return ConfigError([f"[sink.options] path: {why}"])


def read_place(value: object) -> object:
    """An absolute directory, or the URI of an object store."""
    if not isinstance(value, str) or not value or is_object_store(value):
        return value
    return str(Path(value).absolute())


def read_directory(value: object) -> object:
    """A directory."""
    if isinstance(value, str) and is_object_store(value):
        raise ValueError("is in an object store, whose objects cannot be appended to, as segment files are")
    return value


def require_usable(path: str) -> None:
    """Check a directory, without changing anything; of a URI nothing is known before it is used. Raises ConfigError."""
    if is_object_store(path):
        return
    try:
        require_writable(Path(path))
    except OSError as error:
        raise unusable(f"{path} cannot be used: {error.strerror}") from error


def require_writable(path: Path) -> bool:
    """Check that `path` is a writable directory or could be made; whether it exists. Raises ConfigError, OSError."""
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise unusable(f"{path} cannot be used: {there} is not a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise unusable(f"{path} cannot be used: {there} is not writable for this user")
    return there == path
