"""The Spark sink's options table: what may be said, what it means, what is refused.

Pure but for the current directory that makes a relative path absolute. `sink` calls `read_options`; every fault becomes
one line of a ConfigError. What all destinations have in common is in `SparkOptions`; each destination adds its own keys
and says by `to` what the worker is told to do with batches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, get_args
from urllib.parse import parse_qsl, unquote

import msgspec

from kzconsumer.errors import ConfigError
from kzconsumer.settings.quantities import PositiveDuration, reader
from kzconsumer.settings.tables import nearest, read_table
from kzconsumer_spark.cluster import is_cluster, require_whole
from kzconsumer_spark.columns.options import Columns, FieldOptions, RegistryOptions, split_url
from kzconsumer_spark.messages import ToDelta, ToFiles, ToFunction, ToJdbc
from kzconsumer_spark.settings import RESERVED, require_zone
from kzconsumer_spark.spool_place import is_object_store

WHERE = "[sink.options]"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LOCAL_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?")
_GLOB = frozenset("{}[]*?\\")
_NAME = Annotated[str, msgspec.Meta(min_length=1)]
Format = Literal["parquet", "orc", "json", "csv"]


def read_path(value: object) -> object:
    """A directory on a local file system."""
    if isinstance(value, str):
        local_path(value)
    return value


def read_master(value: object) -> object:
    """A Spark that runs inside the worker, or a standalone cluster."""
    if isinstance(value, str) and not _LOCAL_MASTER.fullmatch(value) and not is_cluster(value):
        raise ValueError("is not local, local[n], local[*] or spark://host:port, the masters supported")
    return value


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


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the table `[sink.options]` of the Spark sink has for every destination.

    A batch is tried `attempts` times, `retry_backoff` apart, doubled each time; then the member stops. So is a ledger
    that cannot be read. `start_timeout` bounds the start of Spark. `scratch` is a directory for spool files and Spark's
    temporary files (default: the system's temporary directory). With a cluster as `master` spool files go to `spool`,
    which its executors see. `key` and what follows it are in `columns.options`; `quarantine` is a directory for bad
    records.
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
    key: FieldOptions = FieldOptions(format="raw")
    value: FieldOptions = FieldOptions(format="raw")
    registry: RegistryOptions | None = None
    select: str | None = None
    where: str | None = None
    quarantine: Annotated[str, reader(read_path)] | None = None

    def __post_init__(self) -> None:
        self.columns.require_whole()
        require_whole(self.master, self.spool, self.conf)
        require_zone(self.conf)
        for key in self.conf:
            if not key.startswith("spark."):
                raise ValueError(f"conf.{key}: Spark's settings begin with spark.")
            if key in RESERVED[self.KIND]:
                hint = "use master" if key == "spark.master" else "the sink sets it itself"
                raise ValueError(f"conf.{key} cannot be set here: {hint}")

    @property
    def columns(self) -> Columns:
        """What the worker is told of columns."""
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
        """Where bad records go, if there is anywhere."""
        return self.quarantine


class PathOptions(SparkOptions, frozen=True, kw_only=True):
    """Files in `path`, a directory on a local file system, kept apart by the values of `partition_by`'s columns.

    `write_options` go to Spark's writer as they are.
    """

    path: Annotated[str, reader(read_path)]
    partition_by: tuple[_NAME, ...] = ()
    write_options: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ValueError("path is empty")
        if len({column.casefold() for column in self.partition_by}) < len(self.partition_by):
            raise ValueError("partition_by names a column twice")
        _refuse(self.write_options, {"path", "maxrecordsperfile"})

    @property
    def quarantine_place(self) -> str | None:
        return self.quarantine or f"{self.path.rstrip('/')}/_kzconsumer/quarantine"


class FilesOptions(PathOptions, frozen=True, kw_only=True):
    """Files of `format`, below directories by `partition_by`. A format's name as the destination is the short form."""

    KIND = ToFiles

    format: Format | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.destination == "files" and self.format is None:
            raise ValueError(f'format is missing: destination "files" needs it ({", ".join(get_args(Format))})')
        if self.destination != "files" and self.format is not None:
            raise ValueError(f'format: destination "{self.destination}" says it already')

    @property
    def to(self) -> ToFiles:
        return ToFiles(
            path=str(local_path(self.path)),
            format=self.format or self.destination,  # type: ignore[arg-type]
            partition_by=self.partition_by,
            write_options=self.write_options,
        )


class DeltaOptions(PathOptions, frozen=True, kw_only=True):
    """The Delta table at `path`, partitioned by `partition_by`; made if missing, from the columns of the first rows."""

    KIND = ToDelta

    @property
    def to(self) -> ToDelta:
        return ToDelta(
            path=str(local_path(self.path)), partition_by=self.partition_by, write_options=self.write_options
        )


class JdbcOptions(SparkOptions, frozen=True, kw_only=True):
    """Rows of `table` ("name" or "schema.name", taken literally) in the PostgreSQL database at `url`.

    The password comes from a file or an environment variable. `unique_key` are columns of a unique index of the table:
    a row whose key is there already is left out.
    """

    KIND = ToJdbc

    url: str
    table: str
    user: str
    password_file: str | None = None
    password_env: str | None = None
    unique_key: tuple[_NAME, ...] = ()
    write_options: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        # Not by a reader: its faults show the value, and who puts a password into a URL shall not find it in the log.
        if is_cluster(self.master):
            raise ValueError(
                f'destination "jdbc" does not go with master "{self.master}", only with a local one: a task'
                " that Spark runs again, because its executor was lost, cannot stage its rows again"
            )
        scheme, _, rest = self.url.partition(":")
        parts = split_url(rest)
        if (
            scheme != "jdbc"
            or parts is None
            or parts.scheme != "postgresql"
            or not parts.hostname
            or not parts.path.strip("/")
        ):
            raise ValueError('url is not "jdbc:postgresql://host:port/database"; PostgreSQL is what is supported')
        if "@" in rest:  # also behind a "/" in the password, where the standard library sees no user
            raise ValueError("url holds a user: use user, and password_file or password_env")
        for name, _ in parse_qsl(parts.query, keep_blank_values=True):
            if name not in ("sslmode", "sslrootcert"):
                raise ValueError(f"url: the parameter {name} is not supported, only sslmode and sslrootcert are")
        if not re.fullmatch(r"[^.\"\x00]+(\.[^.\"\x00]+)?", self.table):
            raise ValueError('table is not "name" or "schema.name"')
        _refuse(self.write_options, {"url", "dbtable", "user", "password", "driver", "stringtype", "truncate"})

    @property
    def to(self) -> ToJdbc:
        return ToJdbc(
            url=self.url,
            table=self.table,
            user=self.user,
            password_file=self.password_file,
            password_env=self.password_env,
            unique_key=self.unique_key,
            write_options=self.write_options,
        )


class FunctionOptions(SparkOptions, frozen=True, kw_only=True):
    """A call of `function` ("module:function") for each batch: `(df, batch_id)`, as by foreachBatch."""

    KIND = ToFunction

    function: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.function:
            raise ValueError("function is empty")

    @property
    def to(self) -> ToFunction:
        return ToFunction(function=self.function)


DestinationOptions: TypeAlias = FilesOptions | DeltaOptions | JdbcOptions | FunctionOptions

_DESTINATIONS: Final[dict[str, type[DestinationOptions]]] = {
    "files": FilesOptions,
    **dict.fromkeys(get_args(Format), FilesOptions),
    "delta": DeltaOptions,
    "jdbc": JdbcOptions,
    "function": FunctionOptions,
}


def read_options(options: Mapping[str, object]) -> DestinationOptions:
    """The options of the destination that `destination` chooses. Raises ConfigError with a line for each fault."""
    name = options.get("destination")
    if name is None:
        raise ConfigError([f"{WHERE} destination: missing; there is {', '.join(_DESTINATIONS)}"])
    if not isinstance(name, str) or name not in _DESTINATIONS:
        close = nearest(name, _DESTINATIONS) if isinstance(name, str) else None
        hint = f'; did you mean "{close}"?' if close else ""
        raise ConfigError([f'{WHERE} destination: "{name}" is not one of {", ".join(_DESTINATIONS)}{hint}'])
    chosen = _DESTINATIONS[name]
    elsewhere = {field for each in _DESTINATIONS.values() for field in each.__struct_fields__}
    strange = [key for key in options if key in elsewhere - set(chosen.__struct_fields__)]
    faults = [f'{WHERE} {key} does not go with destination "{name}"' for key in strange]
    try:
        read = read_table({key: value for key, value in options.items() if key not in strange}, chosen, WHERE)
    except ConfigError as error:
        raise ConfigError([*faults, *error.faults]) from None
    if faults:
        raise ConfigError(faults)
    return read


def redirected(read: DestinationOptions, options: Mapping[str, object], into: str) -> Mapping[str, object]:
    """The options with another target of the same kind, and a quarantine of its own. Raises ConfigError."""
    match read:
        case FilesOptions():
            aside = {"quarantine": f"{into.rstrip('/')}/_kzconsumer/quarantine"} if read.quarantine else {}
            return {**options, "path": into, **aside}
        case JdbcOptions():
            aside = {"quarantine": f"{read.quarantine.rstrip('/')}/{into}"} if read.quarantine else {}
            return {**options, "table": into, **aside}
        case DeltaOptions():
            raise ConfigError(
                [f"{WHERE} a Delta table takes a partition's ranges in order only: replay into a destination of files"]
            )
    raise ConfigError([f'{WHERE} destination "{read.destination}" has no target that could be another one'])


def local_path(text: str) -> Path:
    """The absolute directory that a path or a `file:` URI means. Raises ValueError ("is not ...") for other schemes."""
    if not _SCHEME.match(text):
        return Path(text).absolute()
    parts = split_url(text)
    if parts is None or parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ValueError("is not on a local file system; supported are plain paths and file: URIs")
    return Path(unquote(parts.path)).absolute()


def _refuse(options: Mapping[str, str], taken: set[str]) -> None:
    for key in options:
        if key.lower() in taken:
            raise ValueError(f"write_options.{key} cannot be set here: the sink sets it itself")
