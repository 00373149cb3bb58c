"""A Delta table that ranges are committed to: its marker, the end of each partition in it, and the commit of a range.

State is in `<path>/_kzconsumer/`: readers and VACUUM of Delta skip names that begin with `_`. A partition is an
*application* of Delta's protocol, whose version is the end of its last range; so is each range that is set aside.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
from deltalake import DeltaTable

from kzconsumer.model import RangeIdentity
from kzconsumer_files.holdings import Held
from kzconsumer_files.object_store import ObjectStore, Put, is_object_store
from kzconsumer_files.private_directory import dead_attempts
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
    scoped_file,
    scoped_files,
    unique_file,
)
from kzconsumer_files.target_marker import DELTA_MARKER, MARKER, require_outside, require_outside_in_store
from kzconsumer_files.target_writer import require_usable as require_place
from kzconsumer_spark.destinations.delta_columns import partition_values
from kzconsumer_spark.destinations.delta_log import AddedFile, DeltaHistory, DeltaLog, place_of
from kzconsumer_spark.destinations.table_history import CommitNote, Positions, held_by_commits
from kzconsumer_spark.worker_protocol.messages import ToDelta

_TRIES: Final = 100
# Directories of files that say something of a range before there is a table: it was set aside, or has no rows.
_ASIDE: Final = "aside"
_EMPTY: Final = "empty"
_Range = TypeVar("_Range", bound=AnyRange)


class _DeltaAddition(NamedTuple):
    part: RecordRange
    entry: LedgerEntry
    files: tuple[AddedFile, ...]


class DeltaTarget:
    """Calls block. Errors of the table's log are raised as OSError."""

    remembers = True

    def __init__(self, to: ToDelta) -> None:
        self._to = to
        self._place = place_of(to)
        self.log = DeltaLog(self._place)
        self._state = self._place.state
        self.attempts = self._place.attempts
        self._id = ""

    @property
    def to(self) -> ToDelta:
        """With the scope once `mark` or `find` has returned."""
        return self._to

    @property
    def fingerprint(self) -> str:
        """Contains the id in the directory, not its path: members may mount it under different names."""
        return fingerprint("delta", self._id, self._to.partition_by)

    def mark(self, owner: TargetOwner) -> None:
        """Make the directory, if need be, and mark it. The table is made with the first rows, whose columns it has.

        Raises NotOurs for a directory with other content, or a table that requires more of writers than we do: nothing
        is made there.
        """
        if is_new := self._state.read(DELTA_MARKER) is None:
            self._require_place()
        self._require_simple()
        self._place.make()
        if is_new:
            self._state.create(DELTA_MARKER, msgspec.json.encode({"version": 1, "id": uuid.uuid4().hex}))
        self._identify(owner)

    def find(self, owner: TargetOwner) -> None:
        self._identify(owner)
        self._require_simple()

    def _identify(self, owner: TargetOwner) -> None:
        marker = self._state.read(DELTA_MARKER)
        if marker is None:
            raise NotOurs(f"{self._place.uri} is not marked as a Delta table that a group writes to")
        try:
            self._id = msgspec.json.decode(marker)["id"]
        except (msgspec.DecodeError, LookupError, TypeError) as error:
            raise NotOurs(f"{self._state.place(DELTA_MARKER)} cannot be read: {error}") from error
        self._to = msgspec.structs.replace(self._to, scope=scope(owner.cluster, owner.group, owner.sink))

    def _require_simple(self) -> None:
        if (table := self.open()) is not None:
            self.log.require_simple(table, self._to.partition_by)

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        table = self.open()
        if table is None:
            return [each for each in ranges if self._is_empty(each)]
        self.log.sync(table)
        positions = self._positions(table)
        found = (each for each in ranges if positions.reaches(each) or self._is_empty(each))
        return [each for each in found if not self._is_aside(table, each)]

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """By an entry of the log. Without a table a file records it, which the table's creator reads."""
        table = self.open()
        if table is None:
            self._state.create(self._mark(_ASIDE, part), b"")
            table = self.open()
        if table is None:
            return True
        said = CommitNote(self._to.scope, (aside_entry(part, records, ""),))
        positions = self._positions(table)
        # The table's creator may have looked before the file was there: from here on only the log counts.
        while not positions.is_aside(part):
            if positions.reaches(part):
                self.log.sync(table)
                return False
            positions.require_behind([part])
            self.log.commit(table, said, positions.settled(part))
            self.log.refresh(table)
        self.log.sync(table)
        return True

    def require_usable(self, conf: Mapping[str, str]) -> None:
        require_place(self._to.path)

    def held(self, count_rows: bool) -> Held:
        """The ranges that the table holds, from our commits in its log, and the rows in its current files.

        A log keeps entries for 30 days unless the table says otherwise; OPTIMIZE, DELETE and MERGE replace our files.
        Earlier ranges, and rows in replaced files, are not counted. Raises OSError.
        """
        notes = list(dead_attempts(self.attempts))
        table = self.open()
        if table is None:
            return Held((), (), tuple(notes))
        begins, commits = self.history(table)
        if begins > 0:
            notes.append(
                f"the table's log begins at version {begins}: ranges that were committed before are not looked at"
            )
        return held_by_commits(commits, self.read, self.files(table) if count_rows else None, notes)

    def finish(self) -> None:
        return None

    def open(self) -> DeltaTable | None:
        """The table as it is now. Raises OSError."""
        return self.log.open()

    def put(self, table: DeltaTable | None) -> Put | None:
        """See `kzconsumer_spark.worker.range_writers`."""
        return self._place.put

    def missing(self, table: DeltaTable | None, ranges: Sequence[_Range]) -> list[_Range]:
        """The ranges that the table does not have; the others are durable. Raises SetAside, RangeOverlap, OSError."""
        self._require_not_aside(table, ranges)
        if table is None:
            return list(ranges)
        self.log.sync(table)
        positions = self._positions(table)
        missing = [part for part in ranges if not positions.reaches(part)]
        positions.require_behind(missing)
        return missing

    def publish(
        self,
        table: DeltaTable | None,
        staged: Sequence[StagedRange],
        attempt: str,
        columns: str | None,
        require_lease: Callable[[], None],
        follows: Sequence[RangeIdentity] = (),
    ) -> int:
        """See `kzconsumer_spark.worker.range_writers`. Columns that the table lacks are added to it.

        Files that are moved into the table's directory and not committed are no part of the table; VACUUM removes them.
        """
        if table is None:
            self._positions(table).require_followed(follows, self._is_empty)
        if table is None and columns is not None:
            self.log.make(columns, self._to.partition_by)
        table = self.log.refresh(table) if table is not None else self.open()
        if table is None:
            # No table and no rows: readers see nothing of these ranges, but a claim asks for the last one.
            for each in staged:
                self._state.create(self._mark(_EMPTY, each.part), b"")
            return 0
        self.log.require_simple(table, self._to.partition_by)
        if columns is not None:
            self.log.require_fit(table, columns)
        additions = [self._moved(each, attempt) for each in staged]
        self._place.sync()
        positions = self._positions(table)
        for _ in range(_TRIES):
            missing = [each for each in additions if self._is_open(table, each.part)]
            if not missing:
                break
            positions.require_followed(follows, self._is_empty)
            positions.require_behind(each.part for each in missing)
            self.log.require_simple(table, self._to.partition_by)
            if columns is None or self.log.take_columns(table, columns):
                said = CommitNote(self._to.scope, tuple(each.entry for each in missing))
                versions = {positions.application(each.part): each.part.until for each in missing}
                require_lease()
                committed = self.log.commit(table, said, versions, [file for each in missing for file in each.files])
            else:
                committed = False
            self.log.refresh(table)
            if committed:
                break
        else:
            raise OSError(f"{self._place.uri}: others committed to the table first, {_TRIES} times")
        self.log.sync(table)
        # What this call has committed was not set aside before, and cannot be any more.
        self._require_not_aside(table, [each.part for each in additions if each not in missing])
        return len(missing)

    def history(self, table: DeltaTable) -> DeltaHistory:
        """Of this group. Raises OSError."""
        begins, commits = self.log.history(table)
        return DeltaHistory(begins, tuple(each for each in commits if each.scope == self._to.scope))

    def read(self, name: str) -> BufferedIOBase:
        """A data file. Raises FileNotFoundError, OSError."""
        return self._place.open(name)

    def files(self, table: DeltaTable) -> frozenset[str]:
        """Those that the table consists of now. Raises OSError."""
        return self.log.files(table)

    def _moved(self, staged: StagedRange, attempt: str) -> _DeltaAddition:
        """Move the files of a range into the table's directory, under unique names, unless tasks have put them."""
        files = []
        for number, (file, name) in enumerate(staged.files):
            final = staged.stored[number] if staged.stored else unique_file(staged.part, attempt, number)
            here = file if staged.stored else self._place.add(file, final)
            files.append(AddedFile(final, here, partition_values(name)))
        names = tuple(file.name for file in files)
        entry = ledger_entry(staged.part, staged.rows, staged.quarantined, names, attempt)
        return _DeltaAddition(staged.part, entry, tuple(files))

    def _positions(self, table: DeltaTable | None) -> Positions:
        """Of the table, as it is whenever it is asked."""

        def version(application: str) -> int | None:
            return None if table is None else self.log.version(table, application)

        def applications() -> Mapping[str, int]:
            return {} if table is None else self.log.applications(table)

        return Positions(self._to.scope, f"at {self._place.uri}", version, applications, self._to.former_scope)

    def _is_aside(self, table: DeltaTable | None, part: AnyRange) -> bool:
        """Whether the range is set aside. Its file no longer counts once a later range is published."""
        if table is None or not self._positions(table).reaches(part):
            return self._is_marked(_ASIDE, part)
        return self._positions(table).is_aside(part)

    def _is_open(self, table: DeltaTable, part: AnyRange) -> bool:
        return not self._positions(table).reaches(part) and not self._is_aside(table, part)

    def _is_empty(self, part: AnyRange) -> bool:
        return self._is_marked(_EMPTY, part)

    def _mark(self, kind: str, part: AnyRange) -> str:
        return f"{kind}/{scoped_file(part, self._to.scope)}"

    def _is_marked(self, kind: str, part: AnyRange) -> bool:
        return any(self._state.read(f"{kind}/{name}") is not None for name in scoped_files(part, self._to.scope))

    def _require_not_aside(self, table: DeltaTable | None, ranges: Sequence[AnyRange]) -> None:
        for part in ranges:
            if self._is_aside(table, part):
                raise SetAside(range_name(part))

    def _require_place(self) -> None:
        if self._state.read(MARKER) is not None:
            raise NotOurs(f"{self._place.uri} is a target of files: give another path")
        foreign = next((each for each in self._place.names() if each[0] not in "._"), None)
        if foreign is not None and self.open() is None:
            raise NotOurs(f"{self._place.uri} is not empty ({foreign}) and no Delta table")
        if is_object_store(self._place.uri):
            require_outside_in_store(ObjectStore(self._place.uri, self._to.store_options))
        else:
            require_outside(Path(self._place.uri))
