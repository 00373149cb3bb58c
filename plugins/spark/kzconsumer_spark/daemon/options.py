"""Options that all destinations of the sink `spark` have, and checks of their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import unquote

import msgspec

from kzconsumer.settings.quantities import PositiveDuration, reader
from kzconsumer_spark.daemon.spool_place import is_object_store
from kzconsumer_spark.pipe.cluster import is_cluster, require_whole
from kzconsumer_spark.pipe.column_options import Columns, FieldOptions, RegistryOptions, split_url
from kzconsumer_spark.pipe.spark_settings import RESERVED, require_zone

WHERE = "[sink.options]"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_URI = re.compile(r"[a-z][a-z0-9]*:/")
_LOCAL_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?")
_GLOB = frozenset("{}[]*?\\")


def read_path(value: object) -> object:
    """A directory on a local file system."""
    if isinstance(value, str):
        local_path(value)
    return value


def read_master(value: object) -> object:
    """The URL of a Spark inside the worker, or of a cluster."""
    if not isinstance(value, str) or _LOCAL_MASTER.fullmatch(value) or is_cluster(value):
        return value
    if value.startswith("sc://"):
        raise ValueError(
            "is Spark Connect, where foreachBatch runs in a process of the server: it cannot report to the member that"
            " a batch is durable, and would outlive it; use the master of that cluster"
        )
    raise ValueError(
        "is not local, local[n], local[*], spark://host:port, yarn or k8s://https://host:port, the masters supported"
    )


def read_scratch(value: object) -> object:
    """A directory that Spark takes literally."""
    if isinstance(value, str) and _GLOB & set(value):
        raise ValueError("has a character that Spark takes for a wildcard")
    return value


def read_spool(value: object) -> object:
    """A directory, or the URI of an object store."""
    if isinstance(value, str) and is_object_store(value):
        return value
    return read_scratch(value)


def read_event_log(value: object) -> object:
    """As a URI, which Spark reads in the same way everywhere."""
    if not isinstance(value, str):
        return value
    return value if _URI.match(value) else Path(value).absolute().as_uri()


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the table `[sink.options]` of the Spark sink has for every destination.

    A batch, or the read of a ledger, is tried `attempts` times, `retry_backoff` apart, doubled each time; then the
    member stops. Attempts that fail because brokers do not answer executors do not count. `start_timeout` bounds the
    start of Spark. `scratch` is a directory for spool files and Spark's temporary files (default: the system's
    temporary directory). With a cluster as `master` spool files go to `spool`, which its executors see. With `read =
    "executors"` (the default on a cluster) there are none: executors fetch the ranges from the brokers. `ui` has Spark
    serve its pages, at the first free port from 4040 on or at the one given. `event_log` is a directory, or a URI of
    Hadoop's, for Spark's event log.
    `key` and the options after it are in `pipe.column_options`; `quarantine` is a directory for records that cannot be
    decoded.
    """

    KIND: ClassVar[type]

    destination: str
    master: Annotated[str, reader(read_master)] = "local[2]"
    conf: Mapping[str, str] = {}
    attempts: Annotated[int, msgspec.Meta(ge=1)] = 3
    retry_backoff: PositiveDuration = 1.0
    start_timeout: PositiveDuration = 120.0
    scratch: Annotated[str, reader(read_scratch)] | None = None
    spool: Annotated[str, reader(read_spool)] | None = None
    read: Literal["spool", "executors"] | None = None
    ui: bool | Annotated[int, msgspec.Meta(ge=1, le=65535)] = False
    event_log: Annotated[str, reader(read_event_log)] | None = None
    key: FieldOptions = FieldOptions(format="raw")
    value: FieldOptions = FieldOptions(format="raw")
    registry: RegistryOptions | None = None
    select: str | None = None
    where: str | None = None
    quarantine: Annotated[str, reader(read_path)] | None = None

    def __post_init__(self) -> None:
        self.columns.require_whole()
        self._require_readable()
        require_whole(self.master, self.spool, self.conf, fetches=self.executors_fetch)
        require_zone(self.conf)
        for key in self.conf:
            if not key.startswith("spark."):
                raise ValueError(f"conf.{key}: Spark's settings begin with spark.")
            if key in RESERVED[self.KIND]:
                hint = "use master" if key == "spark.master" else "the sink sets it itself"
                raise ValueError(f"conf.{key} cannot be set here: {hint}")

    @property
    def executors_fetch(self) -> bool:
        return self.read == "executors" or (self.read is None and is_cluster(self.master) and self.spool is None)

    def _require_readable(self) -> None:
        if self.read == "executors" and self.spool is not None:
            raise ValueError('spool does not go with read = "executors", which needs none')
        if self.executors_fetch:
            for name, field in (("key", self.key), ("value", self.value)):
                if field.on_error == "quarantine":
                    raise ValueError(f'{name}.on_error = "quarantine" goes with read = "spool" only')

    def tries(self) -> Iterator[tuple[int, float]]:
        """The number of each attempt, and the seconds to wait after it; none after the last."""
        pause = self.retry_backoff
        for attempt in range(1, self.attempts):
            yield attempt, pause
            pause *= 2
        yield self.attempts, 0.0

    def pauses(self) -> Iterator[float]:
        """The seconds to wait between tries that do not count: without end, doubled up to half a minute."""
        pause = self.retry_backoff
        while True:
            yield pause
            pause = max(pause, min(2 * pause, 30.0))

    @property
    def columns(self) -> Columns:
        """The options for columns, as the worker gets them."""
        place = self.quarantine_place
        return Columns(
            key=self.key,
            value=self.value,
            registry=self.registry,
            select=self.select,
            where=self.where,
            quarantine=str(local_path(place)) if place else None,
        )

    @property
    def quarantine_place(self) -> str | None:
        """The directory for bad records, if there is one."""
        return self.quarantine


def local_path(text: str) -> Path:
    """The absolute directory that a path or a `file:` URI means. Raises ValueError ("is not ...") for other schemes."""
    if not _SCHEME.match(text):
        return Path(text).absolute()
    parts = split_url(text)
    if parts is None or parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ValueError("is not on a local file system; supported are plain paths and file: URIs")
    return Path(unquote(parts.path)).absolute()
