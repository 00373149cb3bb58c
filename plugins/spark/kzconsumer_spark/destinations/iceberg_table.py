"""An Iceberg table that ranges are committed to: the end of each partition in it, and the commit of ranges.

A commit is one snapshot that adds the ranges' files, and sets a table property for each partition to the end of its
last range (`table_history`). A snapshot is only added directly after the one that was read, so a writer that was
overtaken reads the properties again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from pyiceberg.table import Table

from kzconsumer.durable_files import make_directory, sync_directory
from kzconsumer.model import RangeIdentity
from kzconsumer_files.holdings import Held
from kzconsumer_files.object_store import Put
from kzconsumer_files.private_directory import dead_attempts, local_attempts, make_local_attempts
from kzconsumer_files.publication import SetAside, StagedRange
from kzconsumer_files.range_names import (
    AnyRange,
    LedgerEntry,
    NotOurs,
    RecordRange,
    TargetOwner,
    aside_entry,
    fingerprint,
    ledger_entry,
    range_name,
    scope,
    unique_file,
)
from kzconsumer_files.target_marker import STATE
from kzconsumer_spark.destinations.iceberg_log import (
    IcebergHistory,
    IcebergLog,
    TableFile,
    TablePut,
    is_local,
    local,
    require_drivers,
)
from kzconsumer_spark.destinations.table_history import CommitNote, Positions, held_by_commits
from kzconsumer_spark.worker_protocol.messages import ToIceberg

_TRIES: Final = 100
_Range = TypeVar("_Range", bound=AnyRange)


class _IcebergAddition(NamedTuple):
    part: RecordRange
    entry: LedgerEntry
    files: tuple[TableFile, ...]


class IcebergTarget:
    """Calls block. What a catalog raises is raised as OSError."""

    remembers = True

    def __init__(self, to: ToIceberg) -> None:
        self._to = to
        self._log = IcebergLog(to)
        self._id = ""

    @property
    def to(self) -> ToIceberg:
        """With the scope once `mark` or `find` has returned."""
        return self._to

    @property
    def fingerprint(self) -> str:
        """Contains the table's UUID, not its name: members may name catalogs differently."""
        return fingerprint("iceberg", self._id, self._to.partition_by)

    def mark(self, owner: TargetOwner) -> None:
        """Make the namespace and the table, if need be. Raises NotOurs for a table that cannot be written to."""
        table = self._log.make()
        if not is_local(table.location()):
            make_local_attempts()
        self._take(owner, table)

    def find(self, owner: TargetOwner) -> None:
        table = self._log.open()
        if table is None:
            raise NotOurs(f"there is no Iceberg table {self._to.table} in the catalog {self._to.catalog}")
        self._take(owner, table)

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        table = self.open()
        self._log.sync(table)
        positions = self._positions(table)
        return [each for each in ranges if positions.reaches(each) and not positions.is_aside(each)]

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """By a snapshot without files."""
        said = CommitNote(self._to.scope, (aside_entry(part, records, ""),))
        table = self.open()
        while not (positions := self._positions(table)).is_aside(part):
            if positions.reaches(part):
                self._log.sync(table)
                return False
            positions.require_behind([part])
            self._log.commit(table, said, positions.settled(part))
            table = self.open()
        self._log.sync(table)
        return True

    def require_usable(self, conf: Mapping[str, str]) -> None:
        require_drivers(self._to)

    def held(self, count_rows: bool) -> Held:
        """The ranges that the table holds, by the snapshots it keeps, and the rows in its files. Raises OSError."""
        table = self.open()
        complete, commits = self.history(table)
        notes = list(dead_attempts(self.attempts))
        if not complete:
            notes.append(
                "the table's first snapshots may have expired: ranges that were committed in them are not looked at"
            )
        return held_by_commits(commits, self.reader(table), self.files(table) if count_rows else None, notes)

    def finish(self) -> None:
        return None

    def open(self) -> Table:
        """The table as it is now. Raises OSError, also if it is gone, or another one."""
        table = self._log.open()
        if table is None:
            raise OSError(f"there is no Iceberg table {self._to.table} in the catalog {self._to.catalog}")
        if self._to.uuid not in ("", str(table.metadata.table_uuid)):
            raise OSError(f"the Iceberg table {self._to.table} was dropped and made again: restart the member")
        return table

    @property
    def attempts(self) -> Path:
        """The directory for files that are not committed yet: on the file system of the table, or of this machine.

        Raises OSError.
        """
        place = self.open().location()
        return local(place) / STATE / "attempts" if is_local(place) else local_attempts()

    def put(self, table: Table) -> Put | None:
        """See `kzconsumer_spark.worker.range_writers`."""
        return None if is_local(table.location()) else TablePut(table.io, _data(table))

    def missing(self, table: Table, ranges: Sequence[_Range]) -> list[_Range]:
        """The ranges that the table does not have; the others are durable. Raises SetAside, RangeOverlap, OSError."""
        positions = self._positions(table)
        _require_not_aside(positions, ranges)
        self._log.sync(table)
        missing = [part for part in ranges if not positions.reaches(part)]
        positions.require_behind(missing)
        return missing

    def publish(
        self,
        table: Table,
        staged: Sequence[StagedRange],
        attempt: str,
        columns: str | None,
        require_lease: Callable[[], None],
        follows: Sequence[RangeIdentity] = (),
    ) -> int:
        """See `kzconsumer_spark.worker.range_writers`. Columns that the table lacks are added to it.

        Files that are moved into the table's directory and not committed are no part of the table; the removal of
        orphan files removes them.
        """
        self._log.require_simple(table)
        additions = self._moved(table, staged, attempt)
        sample = next((file.here for each in additions for file in each.files), None)
        for _ in range(_TRIES):
            positions = self._positions(table)
            missing = [each for each in additions if not positions.reaches(each.part)]
            if not missing:
                break
            positions.require_followed(follows)
            positions.require_behind(each.part for each in missing)
            self._log.require_simple(table)
            if sample is None or self._log.take_columns(table, sample):
                said = CommitNote(self._to.scope, tuple(each.entry for each in missing))
                versions = {positions.application(each.part): each.part.until for each in missing}
                require_lease()
                committed = self._log.commit(table, said, versions, [file for each in missing for file in each.files])
            else:
                committed = False
            table = self.open()
            if committed:
                break
        else:
            raise OSError(f"Iceberg table {self._to.table}: others committed first or held its lock, {_TRIES} times")
        self._log.sync(table)
        _require_not_aside(self._positions(table), [each.part for each in staged])
        return len(missing)

    def history(self, table: Table) -> IcebergHistory:
        """Of this group."""
        complete, commits = self._log.history(table)
        return IcebergHistory(complete, tuple(each for each in commits if each.scope == self._to.scope))

    def reader(self, table: Table) -> Callable[[str], Any]:
        """See `IcebergLog.reader`."""
        return self._log.reader(table)

    def files(self, table: Table) -> frozenset[str]:
        """Those that the table consists of now. Raises OSError."""
        return self._log.files(table)

    def _moved(self, table: Table, staged: Sequence[StagedRange], attempt: str) -> list[_IcebergAddition]:
        """Move files of ranges to the table's, under unique names, unless tasks have put them there."""
        data = _data(table)
        if is_local(data):
            make_directory(local(data))
        additions = []
        for each in staged:
            files = []
            for number, (file, _) in enumerate(each.files):
                if each.stored:
                    files.append(TableFile(f"{data}/{each.stored[number]}", file, whole=False))
                    continue
                final = f"{data}/{unique_file(each.part, attempt, number)}"
                files.append(self._log.add(table, file, final))
            names = tuple(file.name for file in files)
            entry = ledger_entry(each.part, each.rows, each.quarantined, names, attempt)
            additions.append(_IcebergAddition(each.part, entry, tuple(files)))
        if is_local(data):
            sync_directory(local(data))
        return additions

    def _take(self, owner: TargetOwner, table: Table) -> None:
        self._id = str(table.metadata.table_uuid)
        self._log.require_simple(table)
        identity = scope(owner.cluster, owner.group, owner.sink)
        self._to = msgspec.structs.replace(self._to, scope=identity, uuid=self._id)

    def _positions(self, table: Table) -> Positions:
        return Positions(
            self._to.scope,
            self._to.table,
            lambda application: self._log.version(table, application),
            lambda: self._log.applications(table),
            self._to.former_scope,
        )


def _data(table: Table) -> str:
    return f"{table.location().rstrip('/')}/data"


def _require_not_aside(positions: Positions, ranges: Sequence[AnyRange]) -> None:
    for part in ranges:
        if positions.is_aside(part):
            raise SetAside(range_name(part))
