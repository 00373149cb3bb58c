"""The Spark sink's options table: what may be said, what it means, what is refused.

Pure but for the current directory that makes a relative path absolute. `sink` calls `read_options`; every fault becomes
one line of a ConfigError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from kzconsumer.options import PositiveDuration, read_table, reader
from kzconsumer_spark.settings import RESERVED

WHERE = "[sink.options]"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LOCAL_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?")
_GLOB = frozenset("{}[]*?\\")


def read_path(value: object) -> object:
    """A directory on a local file system."""
    if isinstance(value, str):
        local_path(value)
    return value


def read_master(value: object) -> object:
    """A Spark that runs inside the worker: nothing else reads the spool files."""
    if isinstance(value, str) and not _LOCAL_MASTER.fullmatch(value):
        raise ValueError("is not local, local[n] or local[*], the masters supported")
    return value


def read_scratch(value: object) -> object:
    """A directory that Spark takes literally."""
    if isinstance(value, str) and _GLOB & set(value):
        raise ValueError("has a character that Spark takes for a wildcard")
    return value


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The table `[sink.options]` of the Spark sink.

    `destination` "parquet" needs `path` (a directory on a local file system), "function" needs `function`
    ("module:function", called `(df, batch_id)` as by foreachBatch). A batch is tried `attempts` times, `retry_backoff`
    apart, doubled each time; then the member stops. `start_timeout` bounds the start of Spark. `scratch` is a directory
    for spool files and Spark's temporary files (default: the system's temporary directory).
    """

    destination: Literal["parquet", "function"]
    path: Annotated[str, reader(read_path)] | None = None
    function: str | None = None
    master: Annotated[str, reader(read_master)] = "local[2]"
    conf: Mapping[str, str] = {}
    attempts: Annotated[int, msgspec.Meta(ge=1)] = 3
    retry_backoff: PositiveDuration = 1.0
    start_timeout: PositiveDuration = 120.0
    scratch: Annotated[str, reader(read_scratch)] | None = None

    def __post_init__(self) -> None:
        needed, other = ("path", "function") if self.destination == "parquet" else ("function", "path")
        if not getattr(self, needed):
            raise ValueError(f'{needed} is missing: destination "{self.destination}" needs it')
        if getattr(self, other) is not None:
            raise ValueError(f'{other} does not go with destination "{self.destination}"')
        for key in self.conf:
            if not key.startswith("spark."):
                raise ValueError(f"conf.{key}: Spark's settings begin with spark.")
            if key in RESERVED[self.destination]:
                hint = "use master" if key == "spark.master" else "the sink sets it itself"
                raise ValueError(f"conf.{key} cannot be set here: {hint}")


def read_options(options: Mapping[str, object]) -> SparkOptions:
    """Raises ConfigError with a line for each fault."""
    return read_table(options, SparkOptions, WHERE)


def local_path(text: str) -> Path:
    """The absolute directory that a path or a `file:` URI means. Raises ValueError ("is not ...") for other schemes."""
    if not _SCHEME.match(text):
        return Path(text).absolute()
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ValueError("is not on a local file system; supported are plain paths and file: URIs")
    return Path(unquote(parts.path)).absolute()
