"""What the sinks for files have in common in their options: a directory that must be usable."""

from __future__ import annotations

import os
from pathlib import Path

from kzconsumer.errors import ConfigError


def unusable(why: str) -> ConfigError:
    return ConfigError([f"[sink.options] path: {why}"])


def require_writable(path: Path) -> bool:
    """Check that `path` is a writable directory or could be made; whether it exists. Raises ConfigError, OSError."""
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise unusable(f"{path} cannot be used: {there} is not a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise unusable(f"{path} cannot be used: {there} is not writable for this user")
    return there == path
