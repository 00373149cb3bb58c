"""Where spool files are: a directory that this process and Spark see, or a URI in an object store.

For an object store both sides use the same settings: those of Spark's Hadoop client in `conf`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyarrow import fs

_URI: Final = re.compile(r"(\w+)://.+")
_SCHEMES: Final = ("s3a", "gs", "abfss", "hdfs")
_S3A: Final = "spark.hadoop.fs.s3a."


class SpoolPlace(NamedTuple):
    """`path` is as `filesystem` names it, `uri` as Spark does."""

    filesystem: fs.FileSystem
    path: str
    uri: str

    @classmethod
    def in_directory(cls, directory: Path) -> SpoolPlace:
        """On a file system that is mounted; a directory by the same path for Spark."""
        return cls(fs.LocalFileSystem(), str(directory), str(directory))

    @classmethod
    def in_object_store(cls, uri: str, conf: Mapping[str, str]) -> SpoolPlace:
        """A place of our own below `uri`, made at once. Raises OSError, ValueError where that cannot be done.

        Files of a killed process stay there: another process cannot tell whether their owner is alive.
        """
        filesystem, path = _opened(uri.rstrip("/"), conf)
        place = cls(filesystem, path, uri.rstrip("/")).below(f"kzconsumer-spark-{uuid.uuid4().hex}")
        place.make()
        return place

    def below(self, name: str) -> SpoolPlace:
        return SpoolPlace(self.filesystem, f"{self.path}/{name}", f"{self.uri}/{name}")

    def make(self) -> None:
        """Raises OSError."""
        self.filesystem.create_dir(self.path)

    def remove(self) -> None:
        """With all that is in it; what cannot be removed stays."""
        with suppress(OSError):
            self.filesystem.delete_dir(self.path)


def is_object_store(spool: str) -> bool:
    """Whether it is a URI. Raises ValueError for an unsupported scheme."""
    found = _URI.fullmatch(spool)
    if found is not None and found[1] not in _SCHEMES:
        raise ValueError(f"is not a directory, nor a URI with {', '.join(_SCHEMES)}")
    return found is not None


def _opened(uri: str, conf: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    if not uri.startswith("s3a://"):
        return fs.FileSystem.from_uri(uri)
    said = {key.removeprefix(_S3A): value for key, value in conf.items() if key.startswith(_S3A)}
    scheme, _, endpoint = said.get("endpoint", "").rpartition("://")
    plain = said.get("connection.ssl.enabled") == "false"
    # What is not said both sides look for where every client of AWS does.
    options: dict[str, Any] = {
        "access_key": said.get("access.key"),
        "secret_key": said.get("secret.key"),
        "session_token": said.get("session.token"),
        "region": said.get("endpoint.region"),
        "endpoint_override": endpoint or None,
        "scheme": scheme or ("http" if plain else "https"),
    }
    return fs.S3FileSystem(**options), uri.removeprefix("s3a://")
