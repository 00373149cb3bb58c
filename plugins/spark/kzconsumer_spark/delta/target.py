"""A Delta table that ranges are committed to: its marker, the end of each partition in it, and the commit of a range.

State is in `<path>/_kzconsumer/`: readers and VACUUM of Delta skip names that begin with `_`. A partition is an
*application* of Delta's protocol, whose version is the end of its last range; so is each range that is set aside.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
from deltalake import DeltaTable

from kzconsumer.durable_files import create_whole, make_directory, sync_directory, sync_file
from kzconsumer.model import RangeIdentity
from kzconsumer_files.names import (
    AnyRange,
    LedgerEntry,
    NotOurs,
    Owner,
    RecordRange,
    aside_entry,
    fingerprint,
    ledger_entry,
    range_name,
    scope,
)
from kzconsumer_files.publication import KeptAside, StagedRange
from kzconsumer_spark.delta.columns import partition_values
from kzconsumer_spark.delta.log import AddedFile, DeltaLog, History
from kzconsumer_spark.pipe.messages import ToDelta
from kzconsumer_spark.ranges.committed import Committed
from kzconsumer_spark.ranges.positions import Positions

_TRIES: Final = 100
_Range = TypeVar("_Range", bound=AnyRange)


class _Addition(NamedTuple):
    part: RecordRange
    entry: LedgerEntry
    files: tuple[AddedFile, ...]


class DeltaTarget:
    """Calls block. Errors of the table's log are raised as OSError."""

    remembers = True

    def __init__(self, to: ToDelta) -> None:
        self._to = to
        self.path = Path(to.path)
        self._log = DeltaLog(self.path)
        self._state = self.path / "_kzconsumer"
        self.attempts = self._state / "attempts"
        self._id = ""

    @property
    def to(self) -> ToDelta:
        """With the scope once `claim` or `find` has returned."""
        return self._to

    @property
    def fingerprint(self) -> str:
        """Contains the id in the directory, not its path: members may mount it under different names."""
        return fingerprint("delta", self._id, self._to.partition_by)

    def claim(self, owner: Owner) -> None:
        """Make the directory, if need be, and mark it. The table is made with the first rows, whose columns it has.

        Raises NotOurs for a directory with other content, or a table that requires more of writers than we do.
        """
        make_directory(self.attempts)
        marker = self._state / "delta.json"
        if not marker.exists():
            self._require_place()
            create_whole(marker, msgspec.json.encode({"version": 1, "id": uuid.uuid4().hex}))
        self.find(owner)

    def find(self, owner: Owner) -> None:
        marker = self._state / "delta.json"
        try:
            self._id = msgspec.json.decode(marker.read_bytes())["id"]
        except FileNotFoundError:
            raise NotOurs(f"{self.path} is not marked as a Delta table that a group writes to") from None
        except (msgspec.DecodeError, LookupError, TypeError) as error:
            raise NotOurs(f"{marker} cannot be read: {error}") from error
        self._to = msgspec.structs.replace(self._to, scope=scope(owner.cluster, owner.group, owner.sink))
        if (table := self.open()) is not None:
            self._log.require_simple(table, self._to.partition_by)

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        table = self.open()
        if table is None:
            return [each for each in ranges if self._empty_file(each).exists()]
        self._log.sync(table)
        positions = self._positions(table)
        found = (each for each in ranges if positions.reaches(each) or self._empty_file(each).exists())
        return [each for each in found if not self._is_aside(table, each)]

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """By an entry of the log. Without a table a file records it, which the table's creator reads."""
        table = self.open()
        if table is None:
            place = self._aside_file(part)
            _make_below(place)
            create_whole(place, b"")
            table = self.open()
        if table is None:
            return True
        said = Committed(self._to.scope, (aside_entry(part, records, ""),))
        positions = self._positions(table)
        # The table's creator may have looked before the file was there: from here on only the log counts.
        while not positions.is_aside(part):
            if positions.reaches(part):
                self._log.sync(table)
                return False
            self._log.commit(table, said, positions.settled(part))
            self._log.refresh(table)
        self._log.sync(table)
        return True

    def open(self) -> DeltaTable | None:
        """The table as it is now. Raises OSError."""
        return self._log.open()

    def missing(self, table: DeltaTable | None, ranges: Sequence[_Range]) -> list[_Range]:
        """The ranges that the table does not have; the others are durable. Raises KeptAside, Overtaken, OSError."""
        self._require_not_aside(table, ranges)
        if table is None:
            return list(ranges)
        self._log.sync(table)
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
    ) -> int:
        """See `kzconsumer_spark.ranges.table_destination`. Columns that the table lacks are added to it.

        Files that are moved into the table's directory and not committed are no part of the table; VACUUM removes them.
        """
        if table is None and columns is not None:
            self._log.make(columns, self._to.partition_by)
        table = self._log.refresh(table) if table is not None else self.open()
        if table is None:
            # No table and no rows: readers see nothing of these ranges, but a claim asks for the last one.
            for each in staged:
                place = self._empty_file(each.part)
                _make_below(place)
                create_whole(place, b"")
            return 0
        self._log.require_simple(table, self._to.partition_by)
        if columns is not None:
            self._log.require_fit(table, columns)
        additions = [self._moved(each, attempt) for each in staged]
        sync_directory(self.path)
        positions = self._positions(table)
        for _ in range(_TRIES):
            missing = [each for each in additions if self._is_open(table, each.part)]
            if not missing:
                break
            positions.require_behind(each.part for each in missing)
            self._log.require_simple(table, self._to.partition_by)
            if columns is None or self._log.take_columns(table, columns):
                said = Committed(self._to.scope, tuple(each.entry for each in missing))
                versions = {positions.application(each.part): each.part.until for each in missing}
                require_lease()
                committed = self._log.commit(table, said, versions, [file for each in missing for file in each.files])
            else:
                committed = False
            self._log.refresh(table)
            if committed:
                break
        else:
            raise OSError(f"{self.path}: others committed to the table first, {_TRIES} times")
        self._log.sync(table)
        self._require_not_aside(table, [each.part for each in staged])
        return len(missing)

    def history(self, table: DeltaTable) -> History:
        """Of this group. Raises OSError."""
        begins, commits = self._log.history(table)
        return History(begins, tuple(each for each in commits if each.scope == self._to.scope))

    def files(self, table: DeltaTable) -> frozenset[str]:
        """Those that the table consists of now. Raises OSError."""
        return self._log.files(table)

    def _moved(self, staged: StagedRange, attempt: str) -> _Addition:
        """Move the files of a range into the table's directory, under unique names."""
        files = []
        for number, (file, name) in enumerate(staged.files):
            final = f"{range_name(staged.part).replace('+', '-')}-{attempt}-{number}.parquet"
            sync_file(file)
            file.rename(self.path / final)
            files.append(AddedFile(final, partition_values(name)))
        names = tuple(file.name for file in files)
        entry = ledger_entry(staged.part, staged.rows, staged.quarantined, names, attempt)
        return _Addition(staged.part, entry, tuple(files))

    def _positions(self, table: DeltaTable) -> Positions:
        """Of the table, as it is whenever it is asked."""
        return Positions(self._to.scope, f"at {self.path}", lambda application: self._log.version(table, application))

    def _is_aside(self, table: DeltaTable | None, part: AnyRange) -> bool:
        """Whether the range is set aside. Its file no longer counts once a later range is published."""
        if table is None or not self._positions(table).reaches(part):
            return self._aside_file(part).exists()
        return self._positions(table).is_aside(part)

    def _is_open(self, table: DeltaTable, part: AnyRange) -> bool:
        return not self._positions(table).reaches(part) and not self._is_aside(table, part)

    def _aside_file(self, part: AnyRange) -> Path:
        return self._state / "aside" / f"{self._to.scope}+{range_name(part)}"

    def _empty_file(self, part: AnyRange) -> Path:
        """Record that a range without rows was published before there was a table."""
        return self._state / "empty" / f"{self._to.scope}+{range_name(part)}"

    def _require_not_aside(self, table: DeltaTable | None, ranges: Sequence[AnyRange]) -> None:
        for part in ranges:
            if self._is_aside(table, part):
                raise KeptAside(range_name(part))

    def _require_place(self) -> None:
        if (self._state / "owner.json").exists():
            raise NotOurs(f"{self.path} is a target of files: give another path")
        foreign = next((each for each in sorted(self.path.iterdir()) if each.name[0] not in "._"), None)
        if foreign is not None and self.open() is None:
            raise NotOurs(f"{self.path} is not empty ({foreign.name}) and no Delta table")


def _make_below(place: Path) -> None:
    """Create the directory of a file, not those above it: a table that was moved away is not made again."""
    place.parent.mkdir(exist_ok=True)
    sync_directory(place.parent.parent)
