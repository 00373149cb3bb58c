"""The metadata of an Iceberg table: reading it, and adding a snapshot directly after the one that was read.

All calls of the package `pyiceberg` that reach a catalog are here. They block, and whatever a catalog raises is raised
as OSError. Two private names of `pyiceberg` are used, see `_begun` and `_committed`.
"""

from __future__ import annotations

import importlib.util
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from shutil import copyfileobj
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError, ValidationError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO, parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId
from pyiceberg.utils.config import Config

from kzconsumer.display import redacted_text
from kzconsumer.durable_files import sync_again, sync_directory, sync_file
from kzconsumer.errors import ConfigError
from kzconsumer_files.layout import Misfit
from kzconsumer_files.range_names import NotOurs
from kzconsumer_spark.destinations.iceberg_columns import (
    further_columns,
    partition_of,
    partitioning,
    require_partition_columns,
)
from kzconsumer_spark.destinations.table_history import CommitNote
from kzconsumer_spark.worker_protocol.messages import ToIceberg

# It warns of each column for which a file has no statistics, with each file.
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)

_COMMITS: Final = "kzconsumer"  # our key in a snapshot's summary
_VERSION: Final = "kzconsumer."  # what the property of an application's version begins with
_PARTITION: Final = 3  # the place of the partition's values in a data file's record
_STORES: Final = ("s3://", "s3a://", "gs://", "abfss://")
_CLIENT: Final = {"s3.request-timeout": "30", "s3.connect-timeout": "5"}  # as for files; Arrow would wait for 3 s
_PIECE: Final = 1 << 20
_SYNCED: Final = 100  # snapshots whose manifests are synced, also those of other processes
_MAKING: Final = 5  # members that start together make the same namespace and table
# Those that change a table only if it is as it was read; Hive's by `kzconsumer_spark.destinations.iceberg_hive`.
_HIVE: Final = "HiveCatalog"
CATALOGS: Final = ("SqlCatalog", "RestCatalog", _HIVE)


class TableError(OSError):
    """An error of the catalog or the table, in one line."""


class IcebergHistory(NamedTuple):
    """Our snapshots in order, as far back as the table keeps them; `complete` if that is to the first one."""

    complete: bool
    commits: tuple[CommitNote, ...]


class TableFile(NamedTuple):
    """A data file: its name in the table, and where its content is on this machine; its footer only, if not `whole`."""

    name: str
    here: Path
    whole: bool = True


class TablePut(msgspec.Struct, frozen=True):
    """Puts files into `place`, with the credentials of the catalog. See `kzconsumer_files.object_store.Put`."""

    io: FileIO
    place: str

    def __call__(self, file: Path, name: str) -> None:
        with file.open("rb") as content, self.io.new_output(f"{self.place}/{name}").create() as stored:
            copyfileobj(content, stored, _PIECE)


class IcebergLog:
    """The table of `to`, in its catalog."""

    def __init__(self, to: ToIceberg) -> None:
        self._to = to
        self._catalog: Catalog | None = None
        self._synced: frozenset[Path] = frozenset()

    def open(self) -> Table | None:
        """The table as it is now, or None. Raises NotOurs for a catalog of another kind."""
        with self._errors():
            try:
                return self._connected().load_table(self._to.table)
            except NoSuchTableError:
                return None

    def make(self) -> Table:
        """The table, which is made without columns if there is none: it gets those of its first rows.

        Raises NotOurs for a catalog that changes a table without comparing, TableError if the table is in a store that
        cannot be written.
        """
        for left in reversed(range(_MAKING)):
            try:
                table = self.open() or self._made()
                break
            except TableError:
                if not left:
                    raise
        with self._errors():
            if type(catalog := self._connected()).__name__ == _HIVE:
                from kzconsumer_spark.destinations.iceberg_hive import require_comparison  # thrift is an extra

                require_comparison(catalog, self._to.table)
        if is_local(table.location()):
            self.sync_names(local(table.location()))
        else:
            self._require_writable(table)
        return table

    def _require_writable(self, table: Table) -> None:
        """That the catalog knows the table says nothing of this: only files are written into the store."""
        probe = f"{table.location().rstrip('/')}/data/_kzconsumer-probe-{uuid.uuid4().hex}"
        try:
            with table.io.new_output(probe).create() as made:
                made.write(b"1")
            table.io.delete(probe)
        except Exception as error:  # whatever the catalog's library raises
            raise TableError(
                f"Iceberg table {self._to.table}: {table.location()} cannot be written: {redacted_line(error)}; set"
                " catalog_options, the environment or this machine's role to one that may"
            ) from error

    def take_columns(self, table: Table, file: Path) -> bool:
        """Add the columns of a Parquet file that the table lacks; with its first columns, its partitioning.

        False if the table was changed since it was read. Raises Misfit.
        """
        columns = pq.read_schema(file)
        with self._errors():
            require_partition_columns(columns, self._to.partition_by)
            further = further_columns(table.metadata, columns)
            if not further:
                return True
            change = _begun(table)
            with change.update_schema() as update:
                update.union_by_name(pa.schema(further))
            if not table.schema().fields:
                with change.update_spec() as spec:
                    for name in self._to.partition_by:
                        spec.add_identity(name)
            return _committed(change)

    def version(self, table: Table, application: str) -> int | None:
        found = table.properties.get(_VERSION + application)
        return None if found is None else int(found)

    def applications(self, table: Table) -> Mapping[str, int]:
        """The versions of all of them."""
        ours = (each for each in table.properties if each.startswith(_VERSION))
        return {each.removeprefix(_VERSION): int(table.properties[each]) for each in ours}

    def commit(
        self, table: Table, said: CommitNote, versions: Mapping[str, int], files: Sequence[TableFile] = ()
    ) -> bool:
        """Add a snapshot with files, and set versions of applications; False if the table was changed since.

        If it raises, the commit may have been made nevertheless. Raises Misfit.
        """
        properties = {_VERSION + application: str(version) for application, version in versions.items()}
        with self._errors():
            metadata = table.metadata
            if files and metadata.name_mapping() is None:  # files of Spark have no ids of fields
                properties[TableProperties.DEFAULT_NAME_MAPPING] = metadata.schema().name_mapping.model_dump_json()
            found = [self._data_file(table, file) for file in files]
            change = _begun(table)
            change.set_properties(properties)
            # Without files, too: only a new snapshot is refused where another one has come in between.
            summary = {_COMMITS: msgspec.json.encode(said).decode()}
            with change.update_snapshot(snapshot_properties=summary).merge_append() as added:
                for each in found:
                    added.append_data_file(each)
            return _committed(change)

    def sync(self, table: Table) -> None:
        """Sync the files of the table's metadata, which `pyiceberg` does not, and the names of its directories.

        What an object store has said that it has is durable.
        """
        if not is_local(table.location()):
            return
        snapshot = table.current_snapshot()
        with self._errors():
            manifests = [] if snapshot is None else snapshot.manifests(table.io)
        late = {each.snapshot_id for each in table.metadata.snapshots[-_SYNCED:]}
        names = [table.metadata_location, *([] if snapshot is None else [snapshot.manifest_list])]
        recent = [each.manifest_path for each in manifests if each.added_snapshot_id in late]
        places = frozenset(map(local, (*names, *recent)))
        for place in places - self._synced:
            sync_again(place)
        for directory in {*(place.parent for place in places), local(table.location())}:
            sync_directory(directory)
        self._synced = places

    def add(self, table: Table, file: Path, name: str) -> TableFile:
        """Move a file to its unique name in the table's directory, or copy it to the table's store. Raises OSError."""
        if is_local(name):
            sync_file(file)
            file.rename(local(name))
            return TableFile(name, local(name))
        place, _, last = name.rpartition("/")
        with self._errors():
            TablePut(table.io, place)(file, last)
        return TableFile(name, file)

    def reader(self, table: Table) -> Callable[[str], Any]:
        """What opens a data file by its name. Raises FileNotFoundError, OSError."""
        return lambda name: local(name).open("rb") if is_local(name) else table.io.new_input(name).open()

    def sync_names(self, directory: Path) -> None:
        """Of a directory and of those above it, any of which may have just been made."""
        for each in directory.parents:
            with suppress(PermissionError):
                sync_directory(each)

    def history(self, table: Table) -> IcebergHistory:
        snapshots = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number or 0)
        summaries = (each.summary.additional_properties for each in snapshots if each.summary is not None)
        ours = (msgspec.json.decode(each[_COMMITS], type=CommitNote) for each in summaries if _COMMITS in each)
        # Tables of version 1 do not number their snapshots.
        return IcebergHistory(not snapshots or snapshots[0].sequence_number == 1, tuple(ours))

    def files(self, table: Table) -> frozenset[str]:
        """The current data files."""
        with self._errors():
            return frozenset(task.file.file_path for task in table.scan().plan_files())

    def require_simple(self, table: Table) -> None:
        """Raises NotOurs for a table whose files we cannot write."""
        place, theirs, ours = table.location(), partitioning(table.metadata), list(self._to.partition_by)
        if not is_local(place) and not place.startswith(_STORES):
            stores = ", ".join(_STORES)
            raise NotOurs(f"the table {self._to.table} is at {place}: supported are directories, and {stores}")
        if (version := table.metadata.format_version) > 2:
            raise NotOurs(f"the table {self._to.table} has format version {version}; 1 and 2 are supported")
        if theirs != ours and (theirs or table.schema().fields):
            raise NotOurs(f"partition_by is {ours}, and the table {self._to.table} is partitioned by {theirs}")

    def _connected(self) -> Catalog:
        if self._catalog is None:
            catalog = load_catalog(self._to.catalog, **self._to.catalog_options)
            if (kind := type(catalog).__name__) not in CATALOGS:
                known = ", ".join(each.removesuffix("Catalog").lower() for each in CATALOGS)
                raise NotOurs(f"the catalog {self._to.catalog} is a {kind}: supported are those of type {known}")
            for key, seconds in _CLIENT.items():
                catalog.properties.setdefault(key, seconds)
            if kind == _HIVE:
                from kzconsumer_spark.destinations.iceberg_hive import compare_and_set  # thrift is an extra

                compare_and_set(catalog)
            self._catalog = catalog
        return self._catalog

    def _made(self) -> Table:
        with self._errors():
            namespace = self._to.table.rpartition(".")[0]
            if not self._connected().namespace_exists(namespace):
                with suppress(NamespaceAlreadyExistsError):
                    self._connected().create_namespace(namespace)
            return self._connected().create_table_if_not_exists(self._to.table, Schema())

    def _data_file(self, table: Table, file: TableFile) -> DataFile:
        found = parquet_file_to_data_file(table.io, table.metadata, file.name)
        names = partitioning(table.metadata)
        if file.whole or not names:
            found[_PARTITION] = partition_of(file.here, names)
            return found
        with closing(self.reader(table)(file.name)) as stored:
            found[_PARTITION] = partition_of(stored, names)
        return found

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of this table as one line: TableError, Misfit."""
        try:
            yield
        except (TableError, NotOurs):
            raise
        except (Misfit, ValidationError) as error:
            raise Misfit(f"Iceberg table {self._to.table}: {redacted_line(error)}") from error
        except Exception as error:  # whatever the catalog's library raises
            self._catalog = None  # a token may have expired, a connection be broken
            raise TableError(f"Iceberg table {self._to.table}: {redacted_line(error)}") from error


def is_local(name: str) -> bool:
    """Whether a location is a directory or a file on a mounted file system."""
    return name.startswith(("/", "file:/"))


def local(name: str) -> Path:
    """The path of a name in a table's metadata, as `pyiceberg` finds the file."""
    return Path(PyArrowFileIO.parse_location(name)[2])


def _begun(table: Table) -> Transaction:
    """A transaction that fails if the columns or the partitioning of the table have changed since it was read."""
    change, read = table.transaction(), table.metadata
    columns = AssertCurrentSchemaId.model_validate({"current-schema-id": read.current_schema_id})
    spec = AssertDefaultSpecId.model_validate({"default-spec-id": read.default_spec_id})
    change._stage((), (columns, spec))
    return change


def _committed(change: Transaction) -> bool:
    """False if the table was changed since it was read.

    `pyiceberg` by itself would add the snapshot behind that of another writer; and where a commit was made and is
    reported as refused, it would delete files that the table needs. It does neither without its list of snapshots to
    repeat.
    """
    change._snapshot_producers.clear()
    try:
        change.commit_transaction()
    except CommitFailedException:
        return False
    return True


def redacted_line(error: BaseException) -> str:
    """The first line of an error, without secrets; its kind if it has no text."""
    lines = redacted_text(str(error)).splitlines()
    return next((line.strip() for line in lines if line.strip()), type(error).__name__)


# What `pyiceberg` needs to reach a catalog, checked before one is asked: its type, address and packages.

_WHERE: Final = "[sink.options] catalog"
SUPPORTED: Final = ("rest", "sql", "hive")
_OF_TYPES: Final = {"sql": "sqlalchemy", "hive": "thrift"}
#: By what a URI begins with: its type, the package beside that of the type, and the extra of pyiceberg.
_OF_URIS: Final = {
    "sqlite": ("sql", "sqlite3", "sql-sqlite"),
    "postgresql+psycopg2": ("sql", "psycopg2", "sql-postgres"),
    "postgresql": ("sql", "psycopg2", "sql-postgres"),
    "thrift": ("hive", "thrift", "hive"),
}


def require_drivers(to: ToIceberg) -> None:
    """Raises ConfigError for a package that is missing, or a catalog that is not configured or not supported."""
    if "py-catalog-impl" in to.catalog_options:
        return
    known = {**(Config().get_catalog_config(to.catalog) or {}), **to.catalog_options}
    uri = str(known.get("uri") or "")
    scheme = uri.partition(":")[0]
    kind, driver, extra = _OF_URIS.get(scheme, (None, None, None))
    kind = str(known.get("type") or kind or "").lower()
    if not kind and scheme.startswith("http"):
        kind = "rest"
    if kind and kind not in SUPPORTED:
        raise ConfigError([f'{_WHERE}: {to.catalog} is of type "{kind}": supported are {", ".join(SUPPORTED)}'])
    if not uri:
        variable = f"PYICEBERG_CATALOG__{to.catalog}__URI".upper().replace(".", "__").replace("-", "_")
        places = f"catalog_options, the variable {variable} or ~/.pyiceberg.yaml"
        raise ConfigError([f"{_WHERE}: {to.catalog} is without uri: use {places}"])
    if not kind:
        raise ConfigError(
            [f"{_WHERE}: {to.catalog}: type is missing, and its uri does not say it: one of {', '.join(SUPPORTED)}"]
        )
    packages = [_OF_TYPES.get(kind), driver if kind in _OF_TYPES else None]
    if missing := [each for each in packages if each is not None and importlib.util.find_spec(each) is None]:
        raise ConfigError(
            [f'{_WHERE}: {to.catalog}, of type "{kind}", needs {missing[0]}: pip install "pyiceberg[{extra or kind}]"']
        )
