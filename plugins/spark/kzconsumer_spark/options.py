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

from kzconsumer.options import PositiveDuration, read_table
from kzconsumer_spark.settings import RESERVED

WHERE = "[sink.options]"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LOCAL_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?")
_GLOB = frozenset("{}[]*?\\")


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The table `[sink.options]` of the Spark sink.

    `destination` "parquet" needs `path` (a directory on a local file system), "function" needs `function`
    ("module:function", called `(df, batch_id)` as by foreachBatch). A batch is tried `attempts` times, `retry_backoff`
    apart, doubled each time; then the member stops. `start_timeout` bounds the start of Spark. `scratch` is a directory
    for spool files and Spark's temporary files (default: the system's temporary directory).
    """

    destination: Literal["parquet", "function"]
    path: str | None = None
    function: str | None = None
    master: str = "local[2]"
    conf: Mapping[str, str] = {}
    attempts: Annotated[int, msgspec.Meta(ge=1)] = 3
    retry_backoff: PositiveDuration = 1.0
    start_timeout: PositiveDuration = 120.0
    scratch: str | None = None

    def __post_init__(self) -> None:
        needed, other = ("path", "function") if self.destination == "parquet" else ("function", "path")
        if not getattr(self, needed):
            raise ValueError(f'{needed} is missing: destination "{self.destination}" needs it')
        if getattr(self, other) is not None:
            raise ValueError(f'{other} does not go with destination "{self.destination}"')
        if self.path is not None:
            local_path(self.path)
        if not _LOCAL_MASTER.fullmatch(self.master):
            raise ValueError(f'master: "{self.master}" is not local, local[n] or local[*], the masters supported')
        if self.scratch is not None and _GLOB & set(self.scratch):
            raise ValueError(f'scratch: "{self.scratch}" has a character that Spark takes for a wildcard')
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
    """The absolute directory that a path or a `file:` URI means. Raises ValueError for other schemes."""
    if not _SCHEME.match(text):
        return Path(text).absolute()
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ValueError(f'path: "{text}" is not on a local file system; supported are plain paths and file: URIs')
    return Path(unquote(parts.path)).absolute()
