"""A target of files, in a directory or in an object store: both have the same methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from kzconsumer_files.object_store import ObjectStore, is_object_store
from kzconsumer_files.object_target import ObjectTarget
from kzconsumer_files.target import Target

AnyTarget: TypeAlias = Target | ObjectTarget


def target_at(path: str, store_options: Mapping[str, str]) -> AnyTarget:
    """At a directory or a URI. Raises ConfigError, PluginError."""
    return ObjectTarget(ObjectStore(path, store_options)) if is_object_store(path) else Target(Path(path))
