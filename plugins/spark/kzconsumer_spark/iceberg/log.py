"""The metadata of an Iceberg table: reading it, and adding a snapshot directly after the last one read.

All calls of the package `pyiceberg` are here. They block, and whatever a catalog raises is raised as OSError.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationError
from pyiceberg.io.pyarrow import parquet_file_to_data_file, pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform

from kzconsumer.durable_files import sync_directory, sync_file
from kzconsumer_files.layout import Misfit
from kzconsumer_files.names import NotOurs
from kzconsumer_spark.pipe.messages import ToIceberg
from kzconsumer_spark.ranges.committed import Committed

# It warns of each column for which a file has no statistics, with each file.
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)

_COMMITS: Final = "kzconsumer"  # our key in a snapshot's summary
_VERSION: Final = "kzconsumer."  # what the property of an application's version begins with
_TRIES: Final = 100
_WIDER: Final = {("int", "long"), ("float", "double")}  # types of a file, and of a table that it fits into


class History(NamedTuple):
    """Our snapshots in order, as far back as the table keeps them; `complete` if that is to the first one."""

    complete: bool
    commits: tuple[Committed, ...]


class IcebergLog:
    """The table of `to`, in its catalog."""

    def __init__(self, to: ToIceberg) -> None:
        self._to = to
        self._catalog: Catalog | None = None

    def open(self) -> Table | None:
        """The table as it is now, or None."""
        with self._errors():
            try:
                return self._connected().load_table(self._to.table)
            except NoSuchTableError:
                return None

    def make(self) -> Table:
        """The table, which is made without columns if there is none: it gets those of its first rows."""
        with self._errors():
            catalog = self._connected()
            catalog.create_namespace_if_not_exists(self._to.table.rpartition(".")[0])
            table = catalog.create_table_if_not_exists(self._to.table, Schema())
            _sync_names(local(table.location()))
            return table

    def take_columns(self, table: Table, file: Path) -> Table:
        """The table with every column of a Parquet file: what is missing is added. Raises Misfit."""
        columns = pq.read_schema(file)
        for _ in range(_TRIES):
            with self._errors():
                try:
                    _require_types(table, columns)
                    known = {field.name for field in table.schema().fields}
                    further = [field.with_nullable(True) for field in columns if field.name not in known]
                    if further:
                        with table.update_schema() as update:
                            update.union_by_name(pa.schema(further))
                    missing = [name for name in self._to.partition_by if name not in _partitioning(table)]
                    if missing:
                        with table.update_spec() as spec:
                            for name in missing:
                                spec.add_identity(name)
                    return table
                except CommitFailedException:  # another writer was first
                    table = self._reopened()
        raise OSError(f"Iceberg table {self._to.table}: others changed its columns first, {_TRIES} times")

    def version(self, table: Table, application: str) -> int | None:
        found = table.properties.get(_VERSION + application)
        return None if found is None else int(found)

    def commit(
        self, table: Table, said: Committed, versions: Mapping[str, int], files: Sequence[Path] = ()
    ) -> Table | None:
        """Add a snapshot with files, and set versions of applications; the table then. None if it was changed since.

        If it raises, the commit may have been made nevertheless.
        """
        properties = {_VERSION + application: str(version) for application, version in versions.items()}
        with self._errors():
            change = _without_retries(table).transaction()
            if files and change.table_metadata.name_mapping() is None:  # files of Spark have no ids of fields
                mapping = change.table_metadata.schema().name_mapping.model_dump_json()
                properties[TableProperties.DEFAULT_NAME_MAPPING] = mapping
            change.set_properties(properties)
            summary = {_COMMITS: msgspec.json.encode(said).decode()}
            found = [parquet_file_to_data_file(table.io, change.table_metadata, file.as_uri()) for file in files]
            try:
                # Without files, too: only a new snapshot is refused where another one has come in between.
                with change.update_snapshot(snapshot_properties=summary).fast_append() as added:
                    for each in found:
                        added.append_data_file(each)
                return change.commit_transaction()
            except CommitFailedException:
                return None

    def sync(self, table: Table) -> None:
        """Sync the files of the table's metadata, which `pyiceberg` does not."""
        snapshot = table.current_snapshot()
        with self._errors():
            manifests = [] if snapshot is None else [each.manifest_path for each in snapshot.manifests(table.io)]
        names = [table.metadata_location, *([] if snapshot is None else [snapshot.manifest_list]), *manifests]
        places = {local(name) for name in names}
        for place in places:
            sync_file(place)
        for directory in {place.parent for place in places}:
            sync_directory(directory)

    def history(self, table: Table) -> History:
        snapshots = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number or 0)
        summaries = (each.summary.additional_properties for each in snapshots if each.summary is not None)
        ours = (msgspec.json.decode(each[_COMMITS], type=Committed) for each in summaries if _COMMITS in each)
        complete = not snapshots or (snapshots[0].sequence_number or 1) == 1
        return History(complete, tuple(ours))

    def files(self, table: Table) -> frozenset[str]:
        """The current data files, as URIs."""
        with self._errors():
            return frozenset(task.file.file_path for task in table.scan().plan_files())

    def require_simple(self, table: Table) -> None:
        """Raises NotOurs for a table whose files we cannot write."""
        place = table.location()
        if urlsplit(place).scheme not in ("", "file"):
            raise NotOurs(f"the table {self._to.table} is at {place}: only a directory that all members mount will do")
        theirs, ours = _partitioning(table), list(self._to.partition_by)
        if theirs != ours and (theirs or table.schema().fields):
            raise NotOurs(f"partition_by is {ours}, and the table {self._to.table} is partitioned by {theirs}")

    def _connected(self) -> Catalog:
        if self._catalog is None:
            self._catalog = load_catalog(self._to.catalog, **self._to.catalog_options)
        return self._catalog

    def _reopened(self) -> Table:
        table = self.open()
        if table is None:
            raise OSError(f"Iceberg table {self._to.table} is gone")
        return table

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of this table as one line: OSError, Misfit."""
        try:
            yield
        except (OSError, CommitFailedException):
            raise
        except (Misfit, ValidationError) as error:
            raise Misfit(f"Iceberg table {self._to.table}: {error}") from error
        except Exception as error:  # whatever the catalog's library raises
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            said = lines[0] if lines else type(error).__name__
            raise OSError(f"Iceberg table {self._to.table}: {said}") from error


def local(name: str) -> Path:
    """The path of a URI or path in a table's metadata."""
    return Path(unquote(urlsplit(name).path)) if name.startswith("file:") else Path(name)


def _require_types(table: Table, columns: pa.Schema) -> None:
    """Raises Misfit where a column of a file is not of the table's type: `pyiceberg` takes bytes for text, say."""
    schema = table.schema()
    common = [field for field in columns if field.name in {each.name for each in schema.fields}]
    for field in pyarrow_to_schema(pa.schema(common), schema.name_mapping).fields:
        # Whether a nested value may be null makes no difference to files.
        ours, theirs = (
            str(each).replace("required", "optional") for each in (field.field_type, schema.find_type(field.field_id))
        )
        if ours != theirs and (ours, theirs) not in _WIDER:
            raise Misfit(f'column "{field.name}" is {ours}, in the table {theirs}')


def _sync_names(directory: Path) -> None:
    """Of the directory and of those above it, any of which `pyiceberg` may have made."""
    for each in directory.parents:
        with suppress(PermissionError):
            sync_directory(each)


def _without_retries(table: Table) -> Table:
    """For one transaction, which fails if another one came first: `pyiceberg` would add its snapshot behind that."""
    retries = {TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": {**table.metadata.properties, **retries}})
    return table


def _partitioning(table: Table) -> list[str]:
    """The columns by which the table is partitioned; of another transform, its description."""
    named = table.schema().find_column_name
    return [
        str(named(each.source_id)) if isinstance(each.transform, IdentityTransform) else f"{each.transform} {each.name}"
        for each in table.spec().fields
    ]
