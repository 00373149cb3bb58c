"""The log of a Delta table, and where the table is: reading it, and adding an entry directly after the last one read.

All calls of the package `deltalake` are here. They block, and errors are raised as OSError.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from kzconsumer.display import redacted_text
from kzconsumer.durable_files import make_directory, sync_again, sync_directory, sync_file
from kzconsumer_files.layout import Misfit
from kzconsumer_files.object_store import (
    ObjectStore,
    Put,
    StateDirectory,
    StateFiles,
    StateObjects,
    StorePut,
    client_options,
    is_object_store,
)
from kzconsumer_files.private_directory import local_attempts, make_local_attempts
from kzconsumer_files.range_names import NotOurs
from kzconsumer_files.target_marker import STATE
from kzconsumer_spark.destinations.delta_columns import further_columns, rules_of, table_columns
from kzconsumer_spark.destinations.table_history import CommitNote
from kzconsumer_spark.worker_protocol.messages import ToDelta

# The versions of applications in a Delta table: where the log has each partition.
#
# `deltalake` reads the whole log since its last checkpoint for each question. So what it has found is kept, and
# brought up to date from the entries that have been added since.
#
# A table that was restored from a copy, and has grown again, may be at the version that is known, or a later one. So
# each time the table is opened at least one entry is read that shows that the log is still the same: the entry that
# this process has committed last, or the last one that is known.

_FOLLOWED: Final = 20
"""Entries that are read one by one; after more of them everything is asked for again."""
_KEPT: Final = 10_000
"""Applications; a range that is asked for is one."""


class _Txn(msgspec.Struct, frozen=True, rename="camel"):
    app_id: str
    version: int
    last_updated: int | None = None


class _Action(msgspec.Struct, frozen=True):
    txn: _Txn | None = None


_ACTIONS: Final = msgspec.json.Decoder(_Action)
_TXN: Final = "txn"


class _LastCheckpoint(msgspec.Struct, frozen=True):
    version: int
    parts: int | None = None

    @property
    def names(self) -> list[str]:
        number = f"{self.version:020d}.checkpoint"
        if self.parts is None:
            return [f"{number}.parquet"]
        return [f"{number}.{part:010d}.{self.parts:010d}.parquet" for part in range(1, self.parts + 1)]


class Applications:
    """Of one table; may be used by several threads. Methods raise as `deltalake`, and OSError."""

    def __init__(self, read: Callable[[str], BufferedIOBase]) -> None:
        """`read` opens a file of the table."""
        self._read = read
        self._lock = threading.Lock()
        self._table = ""
        self._at = -1
        self._found: dict[str, int | None] = {}
        self._all: Mapping[str, int] | None = None  # None: not read
        self._entry: bytes | None = None  # the content of entry `_at`, None: not read
        self._is_same = False  # the log of the table that was opened last is the one that is known
        self._committed: tuple[int, Mapping[str, int], int] | None = None

    def opened(self) -> None:
        """The table was opened again."""
        with self._lock:
            self._is_same = False

    def committed(self, number: int, versions: Mapping[str, int], time: int) -> None:
        """This process has added the entry `number`, with these versions of applications and this time in each."""
        with self._lock:
            self._committed = number, versions, time

    def version(self, table: DeltaTable, application: str) -> int | None:
        """In the table as it was read; None if it has none."""
        with self._lock:
            if not self._follows(table):
                return table.transaction_version(application)
            if application not in self._found:
                if len(self._found) >= _KEPT:
                    self._found.clear()
                self._found[application] = table.transaction_version(application)
            return self._found[application]

    def all(self, table: DeltaTable) -> Mapping[str, int]:
        """The versions of all applications: `deltalake` does not list them.

        Without those of entries that are gone, if the checkpoint that replaces them is not one that we can read.
        """
        with self._lock:
            if not self._follows(table):
                return self._read_all(table.version())
            if self._all is None:
                self._all = self._read_all(table.version())
            return self._all

    def _follows(self, table: DeltaTable) -> bool:
        """Bring what is kept to the table's version. False if that is an earlier one."""
        name, at = str(table.metadata().id), table.version()
        if name == self._table and at < self._at:
            return False
        if not (name == self._table and at <= self._at + _FOLLOWED and self._reads_on(range(self._at + 1, at + 1))):
            self._found.clear()
            self._all = None
            self._entry = self._content(at)
        self._table, self._at, self._is_same = name, at, True
        return True

    def _reads_on(self, numbers: range) -> bool:
        """Keep what these entries say. False if one is missing, or if the log is not the one that is known."""
        contents = {number: self._content(number) for number in numbers}
        entries = {number: content for number, content in contents.items() if content is not None}
        found = {number: actions for number in entries if (actions := _decoded(entries[number])) is not None}
        if len(found) < len(numbers) or not (self._is_same or self._is_known(found)):
            return False
        for number in numbers:
            versions = {each.app_id: each.version for each in found[number]}
            self._found |= versions
            self._all = None if self._all is None else {**self._all, **versions}
            self._entry = entries[number]
        return True

    def _read_all(self, at: int) -> dict[str, int]:
        last, found = self._checkpoint()
        for number in range(last + 1, at + 1):
            found |= {each.app_id: each.version for each in _decoded(self._content(number) or b"") or ()}
        return found

    def _checkpoint(self) -> tuple[int, dict[str, int]]:
        """The number of the last checkpoint, and what it has; -1 without one. It may be later than a table is read."""
        try:
            with self._read("_delta_log/_last_checkpoint") as file:
                last = msgspec.json.decode(file.read(), type=_LastCheckpoint)
            found: dict[str, int] = {}
            for name in last.names:
                with self._read(f"_delta_log/{name}") as file:
                    actions = pq.ParquetFile(pa.PythonFile(file, mode="r")).read([_TXN])
                txns: list[Any] = actions.column(0).drop_null().to_pylist() if actions.num_columns else []
                found |= {txn["appId"]: txn["version"] for txn in txns}
        except (FileNotFoundError, msgspec.DecodeError, pa.ArrowException):
            return -1, {}
        return last.version, found

    def _is_known(self, later: Mapping[int, Sequence[_Txn]]) -> bool:
        """Whether the entry that was committed last is among `later` ones, or else the last known one is unchanged.

        What is before our own entry is what it was committed after.
        """
        if self._committed is not None and self._committed[0] in later:
            number, versions, time = self._committed
            return {each.app_id: each.version for each in later[number] if each.last_updated == time} == versions
        return self._entry is not None and self._content(self._at) == self._entry

    def _content(self, number: int) -> bytes | None:
        try:
            with self._read(f"_delta_log/{number:020d}.json") as file:
                return file.read()
        except FileNotFoundError:
            return None


def _decoded(entry: bytes) -> list[_Txn] | None:
    try:
        return [each.txn for each in _ACTIONS.decode_lines(entry) if each.txn is not None]
    except msgspec.DecodeError:
        return None


# A Delta table and the state beside it are in a directory, or in an object store.


class DeltaPlace(Protocol):
    """Methods raise OSError. `attempts` is for files that are not committed yet; `options` are `deltalake`'s.

    `put` is how tasks on other machines add files; None for a directory.
    """

    uri: str
    options: dict[str, str]
    state: StateFiles
    attempts: Path
    put: Put | None

    def make(self) -> None:
        """Raises NotOurs for a store that cannot hold a table."""
        ...

    def names(self) -> list[str]:
        """What is directly in it."""
        ...

    def add(self, file: Path, name: str) -> Path:
        """Put a file under a unique name; returns where its content is on this machine."""
        ...

    def sync(self) -> None:
        """Once this returns, added files are durable."""
        ...

    def open(self, name: str) -> BufferedIOBase:
        """Raises FileNotFoundError."""
        ...


class DeltaDirectory:
    def __init__(self, path: Path) -> None:
        self.uri = str(path)
        self.options: dict[str, str] = {}
        self.state: StateFiles = StateDirectory(path / STATE)
        self.attempts = path / STATE / "attempts"
        self.put: Put | None = None
        self._path = path

    def make(self) -> None:
        make_directory(self.attempts)

    def names(self) -> list[str]:
        return sorted(each.name for each in self._path.iterdir()) if self._path.exists() else []

    def add(self, file: Path, name: str) -> Path:
        sync_file(file)
        return file.rename(self._path / name)

    def sync(self) -> None:
        sync_directory(self._path)

    def open(self, name: str) -> BufferedIOBase:
        return (self._path / name).open("rb")


class DeltaStore:
    def __init__(self, to: ToDelta) -> None:
        self._store = ObjectStore(to.path, to.store_options)
        self.uri = self._store.uri
        self.options = {**to.store_options, **client_options(to.store_options)}
        self.state: StateFiles = StateObjects(self._store, STATE)
        self.attempts = local_attempts()
        self.put: Put | None = StorePut(self._store.uri, to.store_options)

    def make(self) -> None:
        make_local_attempts()
        self._store.require_conditional_puts(STATE)

    def names(self) -> list[str]:
        return sorted(chain(*self._store.tops()))

    def add(self, file: Path, name: str) -> Path:
        self._store.upload(file, name)
        return file

    def sync(self) -> None:
        """What a store has said that it has is durable."""

    def open(self, name: str) -> BufferedIOBase:
        return self._store.open(name)


def place_of(to: ToDelta) -> DeltaPlace:
    return DeltaStore(to) if is_object_store(to.path) else DeltaDirectory(Path(to.path))


_COMMITS: Final = "kzconsumer"  # our key in the commit's `commitInfo`
_SYNCED: Final = 100  # entries of the log that are synced, also those of other processes


class AddedFile(NamedTuple):
    """A file in the table's directory: where its content is on this machine, its values of the partition columns."""

    name: str
    here: Path
    values: Mapping[str, str | None]


class DeltaHistory(NamedTuple):
    """Our commits in order, as far back as the log goes: to version `begins`."""

    begins: int
    commits: tuple[CommitNote, ...]


class DeltaLog:
    """The log of the table at `place`."""

    def __init__(self, place: DeltaPlace) -> None:
        self._uri = place.uri
        self._options = place.options
        self._synced = -1
        self._applications = Applications(place.open)

    def open(self) -> DeltaTable | None:
        """The current table, or None."""
        self._applications.opened()
        with self._errors():
            try:
                return DeltaTable(self._uri, storage_options=self._options)
            except TableNotFoundError:
                return None

    def refresh(self, table: DeltaTable) -> DeltaTable:
        """The same table, updated."""
        with self._errors():
            table.update_incremental()
        return table

    def make(self, columns: str, partition_by: Sequence[str]) -> None:
        """Create a table with Spark's columns, as JSON, unless there is one. Raises Misfit."""
        with self._errors():
            schema = Schema.from_json(table_columns(columns, partition_by))
            DeltaTable.create(
                self._uri, schema, mode="ignore", partition_by=list(partition_by), storage_options=self._options
            )

    def version(self, table: DeltaTable, application: str) -> int | None:
        with self._errors():
            return self._applications.version(table, application)

    def applications(self, table: DeltaTable) -> Mapping[str, int]:
        """The versions of all of them."""
        with self._errors():
            return self._applications.all(table)

    def commit(
        self, table: DeltaTable, said: CommitNote, versions: Mapping[str, int], files: Sequence[AddedFile] = ()
    ) -> bool:
        """Add files and set versions of applications; False if another commit was made since the table was read.

        If it raises, the commit may have been made nevertheless.
        """
        now = int(time.time() * 1000)
        properties = CommitProperties(
            custom_metadata={_COMMITS: msgspec.to_builtins(said)},
            # A retry by `deltalake` itself would add the entry behind others that have not been read here.
            max_commit_retries=0,
            app_transactions=[Transaction(application, version, now) for application, version in versions.items()],
        )
        with self._errors():
            try:
                table.create_write_transaction(
                    [self._action(file) for file in files],
                    "append",
                    table.schema(),
                    partition_by=table.metadata().partition_columns,
                    commit_properties=properties,
                )
            except CommitFailedError:
                return False
        self._applications.committed(table.version() + 1, versions, now)
        return True

    def sync(self, table: DeltaTable) -> None:
        """Sync the log entries that the table was read from, which `deltalake` does not.

        What an object store has said that it has is durable.
        """
        if is_object_store(self._uri):
            return
        log, last = Path(self._uri) / "_delta_log", table.version()
        for version in range(max(0, self._synced + 1, last - _SYNCED), last + 1):
            entry = log / f"{version:020d}.json"
            if entry.exists():
                sync_again(entry)
        sync_directory(log)
        self._synced = last

    def history(self, table: DeltaTable) -> DeltaHistory:
        with self._errors():
            found = sorted(table.history(), key=lambda each: each["version"])
        ours = (msgspec.convert(each[_COMMITS], CommitNote) for each in found if _COMMITS in each)
        return DeltaHistory(found[0]["version"] if found else table.version() + 1, tuple(ours))

    def files(self, table: DeltaTable) -> frozenset[str]:
        """The current files of the table."""
        with self._errors():
            return frozenset(table.get_add_actions(flatten=True).column("path").to_pylist())

    def require_simple(self, table: DeltaTable, partition_by: tuple[str, ...]) -> None:
        """Raises NotOurs if the table has properties that plain files do not satisfy."""
        metadata = table.metadata()
        if tuple(metadata.partition_columns) != partition_by:
            theirs = metadata.partition_columns
            raise NotOurs(
                f"partition_by is {list(partition_by)}, and the table at {self._uri} is partitioned by {theirs}"
            )
        if rules := rules_of(table.schema().to_json(), metadata.configuration):
            raise NotOurs(f"the table at {self._uri} has {', '.join(rules)}, which is not supported")

    def require_fit(self, table: DeltaTable, columns: str) -> None:
        """Raises Misfit for columns that cannot be written to the table, nor added to it."""
        with self._errors():
            further_columns(columns, table.schema().to_json())

    def take_columns(self, table: DeltaTable, columns: str) -> bool:
        """Add the columns that the table lacks; False if it was changed since it was read. Raises Misfit."""
        with self._errors():
            further = further_columns(columns, table.schema().to_json())
            if further is not None:
                try:
                    once = CommitProperties(max_commit_retries=0)
                    table.alter.add_columns(Schema.from_json(further).fields, commit_properties=once)
                except CommitFailedError:
                    return False
        return True

    def _action(self, file: AddedFile) -> AddAction:
        status = file.here.stat()
        modified = int(status.st_mtime * 1000)
        return AddAction(file.name, status.st_size, file.values, modified, True, statistics(file.here))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of this table as one line: OSError, Misfit."""
        try:
            yield
        except DeltaError as error:
            lines = [line.strip() for line in redacted_text(str(error)).splitlines() if line.strip()]
            raise OSError(f"Delta table {self._uri}: {lines[0] if lines else type(error).__name__}") from error
        except Misfit as error:
            raise Misfit(f"Delta table {self._uri}: {error}") from None


_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


def statistics(file: Path) -> str:
    """JSON. A bound that the log cannot have is left out: readers then read the file. Raises OSError."""
    footer = pq.read_metadata(file)
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        if column.path != column.name or column.max_definition_level > 1:
            continue  # nested in another column
        found: list[Any] = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        known = [each for each in found if each is not None and each.has_null_count]
        if len(known) < len(found):
            continue
        nulls[column.name] = sum(each.null_count for each in known)
        with suppress(OverflowError, ValueError):  # a time that Python does not have, or not in whole milliseconds
            bounds = [(each.min, each.max) for each in known if each.has_min_max]
            if len(bounds) == len(found) and bounds and isinstance(bounds[0][0], int | datetime.date):
                lowest[column.name] = _as_json(min(low for low, _ in bounds))
                highest[column.name] = _as_json(max(high for _, high in bounds), up=True)
    return msgspec.json.encode(
        {"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    ).decode()


def _as_json(value: Any, *, up: bool = False) -> Any:
    """As Delta's log has it: ISO 8601 with years of four digits, times in whole milliseconds. Raises OverflowError."""
    if not isinstance(value, datetime.datetime):
        return value.isoformat() if isinstance(value, datetime.date) else value
    if up and value.microsecond % 1000:
        value += _MILLISECOND
    whole = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return whole if value.tzinfo is None else f"{whole}Z"
