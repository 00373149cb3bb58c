"""Options that all destinations of the sink `spark` have, and checks of their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, get_args
from urllib.parse import parse_qsl, unquote

import msgspec

from kzconsumer.display import is_secret, redacted_text
from kzconsumer.errors import ConfigError
from kzconsumer.settings.table_reader import PositiveDuration, nearest, read_table, reader
from kzconsumer_files.object_store import is_object_store, require_usable_options, without_store
from kzconsumer_spark.worker_protocol.column_options import Columns, FieldOptions, RegistryOptions, split_url
from kzconsumer_spark.worker_protocol.messages import ToDelta, ToFiles, ToFunction, ToIceberg, ToJdbc
from kzconsumer_spark.worker_protocol.spark_settings import (
    RESERVED,
    codec_of,
    is_cluster,
    require_one_time,
    require_whole,
    require_zone,
)

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


def read_read(value: object) -> object:
    """Accepted of settings that say what is the only way now."""
    if value not in (None, "executors"):
        raise ValueError("is refused: Spark's tasks always fetch the records themselves: remove it")
    return value


def refuse_spool(value: object) -> object:
    """There was one until tasks fetched the records."""
    raise ValueError("is refused: there is no spool, Spark's tasks fetch the records from the brokers: remove it")


def read_event_log(value: object) -> object:
    """As a URI, which Spark reads in the same way everywhere."""
    if not isinstance(value, str):
        return value
    return value if _URI.match(value) else Path(value).absolute().as_uri()


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the table `[sink.options]` of the Spark sink has for every destination.

    A batch, or the read of a ledger, is tried `attempts` times, `retry_backoff` apart, doubled each time; then the
    member stops. Attempts that fail because brokers do not answer executors do not count. `start_timeout` bounds the
    start of Spark. `scratch` is a directory for Spark's temporary files (default: the system's temporary directory).
    `read` and `spool` are of former versions. `ui` has Spark serve its pages, at the first free port from 4040 on or at
    the one given. `event_log` is a directory, or a URI of Hadoop's, for Spark's event log.
    `key` and the options after it are in `worker_protocol.column_options`; `quarantine` is a directory for records that
    cannot be decoded.
    """

    KIND: ClassVar[type]

    destination: str
    master: Annotated[str, reader(read_master)] = "local[2]"
    conf: Mapping[str, str] = {}
    attempts: Annotated[int, msgspec.Meta(ge=1)] = 3
    retry_backoff: PositiveDuration = 1.0
    start_timeout: PositiveDuration = 120.0
    scratch: Annotated[str, reader(read_scratch)] | None = None
    spool: Annotated[str, reader(refuse_spool)] | None = None
    read: Annotated[str, reader(read_read)] | None = None
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
        require_whole(self.master, self.conf)
        require_zone(self.conf)
        for key in self.conf:
            if not key.startswith("spark."):
                raise ValueError(f"conf.{key}: Spark's settings begin with spark.")
            if key in RESERVED[self.KIND]:
                hint = "use master" if key == "spark.master" else "the sink sets it itself"
                raise ValueError(f"conf.{key} cannot be set here: {hint}")

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


# The table `[sink.options]` of each destination of the sink `spark`.
#
# Every fault becomes one line of a ConfigError. `to` of a destination's options is what the worker gets of them.

# Of pyiceberg's properties, beside those whose names say it.
_SECRET: Final = re.compile(r"^header\.|connection-string")
_NAME = Annotated[str, msgspec.Meta(min_length=1)]
Format = Literal["parquet", "orc", "json", "csv"]


def read_target(value: object) -> object:
    """A directory on a local file system, or the URI of an object store."""
    return value if isinstance(value, str) and is_object_store(value) else read_path(value)


class PartitionedOptions(SparkOptions, frozen=True, kw_only=True):
    """Files that are partitioned by the columns of `partition_by`. `write_options` go to Spark's writer as they are."""

    partition_by: tuple[_NAME, ...] = ()
    write_options: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({column.casefold() for column in self.partition_by}) < len(self.partition_by):
            raise ValueError("partition_by names a column twice")
        _refuse(self.write_options, {"path", "maxrecordsperfile"})


class PathOptions(PartitionedOptions, frozen=True, kw_only=True):
    """Files in `path`, a directory on a local file system, or a URI in an object store.

    `store_options` say how the store is reached, with the names of obstore (`aws_endpoint`). A local Spark writes the
    files to this machine, and the worker puts them; tasks of a cluster put them themselves.
    """

    path: Annotated[str, reader(read_target)]
    store_options: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ValueError("path is empty")
        require_usable_options(self.path, self.store_options)
        if self.by_tasks:
            codec_of(self.write_options, self.conf)

    @property
    def by_tasks(self) -> bool:
        """Whether tasks put the files into a store themselves."""
        return is_object_store(self.path) and is_cluster(self.master)

    @property
    def place(self) -> str:
        """A URI, or an absolute directory."""
        return self.path if is_object_store(self.path) else str(local_path(self.path))

    @property
    def quarantine_place(self) -> str | None:
        if self.quarantine or is_object_store(self.path):
            return self.quarantine
        return f"{self.path.rstrip('/')}/_kzconsumer/quarantine"


class FilesOptions(PathOptions, frozen=True, kw_only=True):
    """Files of `format`, below directories by `partition_by`. A format's name as the destination is the short form."""

    KIND = ToFiles

    format: Format | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.partition_by:
            if name.startswith(("_", ".")):
                raise ValueError(
                    f'partition_by: directories of the column "{name}" begin with "{name[0]}", and readers skip these:'
                    " give it another name by select"
                )
        if "orc" in (self.destination, self.format):
            require_one_time(self.conf)
        if self.by_tasks and (self.format or self.destination) not in ("parquet", "files"):
            raise ValueError(
                f'path {self.path}: with master "{self.master}" only Parquet goes into an object store, where tasks'
                " write it themselves; other formats go with a local master"
            )
        if self.destination == "files" and self.format is None:
            raise ValueError(f'format is missing: destination "files" needs it ({", ".join(get_args(Format))})')
        if self.destination != "files" and self.format is not None:
            raise ValueError(f'format: destination "{self.destination}" says it already')

    @property
    def to(self) -> ToFiles:
        return ToFiles(
            path=self.place,
            store_options=self.store_options,
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
            path=self.place,
            store_options=self.store_options,
            partition_by=self.partition_by,
            write_options=self.write_options,
        )


class IcebergOptions(PartitionedOptions, frozen=True, kw_only=True):
    """The Iceberg table `table` ("namespace.name"), made if missing, in `catalog`: a name in pyiceberg's configuration.

    `catalog_options` are added to what is configured there, which is also the place of passwords.
    """

    KIND = ToIceberg

    table: str
    catalog: _NAME = "default"
    catalog_options: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        namespace, _, name = self.table.rpartition(".")
        if not namespace or not name:
            raise ValueError(f'table "{self.table}" is not "namespace.name"')
        for key, value in self.catalog_options.items():
            if is_secret(key) or redacted_text(value) != value or _SECRET.search(key):
                variable = f"PYICEBERG_CATALOG__{self.catalog}__{key}".upper().replace(".", "__").replace("-", "_")
                raise ValueError(
                    f"catalog_options.{key} is not for a file that others read: use {variable}, or ~/.pyiceberg.yaml"
                )

    @property
    def to(self) -> ToIceberg:
        return ToIceberg(
            table=self.table,
            catalog=self.catalog,
            catalog_options=self.catalog_options,
            partition_by=self.partition_by,
            write_options=self.write_options,
        )


class JdbcOptions(SparkOptions, frozen=True, kw_only=True):
    """Rows of `table` ("name" or "schema.name", taken literally) in the PostgreSQL database at `url`.

    The password comes from a file or an environment variable. `unique_key` are columns of a unique index of the table:
    a row with an existing key is skipped.
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
        # Not by a reader: its errors show the value, and the URL may contain a password.
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
        if len(set(self.unique_key)) < len(self.unique_key):
            raise ValueError("unique_key names a column twice")
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


DestinationOptions: TypeAlias = FilesOptions | DeltaOptions | IcebergOptions | JdbcOptions | FunctionOptions

_DESTINATIONS: Final[dict[str, type[DestinationOptions]]] = {
    "files": FilesOptions,
    **dict.fromkeys(get_args(Format), FilesOptions),
    "delta": DeltaOptions,
    "iceberg": IcebergOptions,
    "jdbc": JdbcOptions,
    "function": FunctionOptions,
}


def read_options(options: Mapping[str, object]) -> DestinationOptions:
    """The options of the destination that `destination` chooses. Raises ConfigError with a line for each fault."""
    name = options.get("destination")
    if name is None:
        raise ConfigError([f"{WHERE} destination: missing; one of {', '.join(_DESTINATIONS)}"])
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
            if read.quarantine and is_object_store(into):
                raise ConfigError([f"{WHERE} quarantine is a directory: replay into one, not into {into}"])
            aside = {"quarantine": f"{into.rstrip('/')}/_kzconsumer/quarantine"} if read.quarantine else {}
            kept = options if is_object_store(into) else without_store(options)
            return {**kept, "path": into, **aside}
        case JdbcOptions():
            aside = {"quarantine": f"{read.quarantine.rstrip('/')}/{into}"} if read.quarantine else {}
            return {**options, "table": into, **aside}
        case DeltaOptions() | IcebergOptions():
            raise ConfigError(
                [f"{WHERE} a table takes a partition's ranges in order only: replay into a destination of files"]
            )
    raise ConfigError([f'{WHERE} destination "{read.destination}" has no target that could be another one'])


def _refuse(options: Mapping[str, str], taken: set[str]) -> None:
    for key in options:
        if key.lower() in taken:
            raise ValueError(f"write_options.{key} cannot be set here: the sink sets it itself")
