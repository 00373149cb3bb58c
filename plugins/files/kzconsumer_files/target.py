"""A target directory of files: its owner, its ledger, and the directories in which attempts are staged.

The state is in `<path>/_kzconsumer/` (readers of Spark and Hive skip names that begin with `_`), published files beside
it. Nothing that is published is ever replaced or deleted.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from kzconsumer.durable_files import make_directory, put_in_place, sync_directory, write_new
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer_files.folding import Folder
from kzconsumer_files.layout import Layouts, Misfit
from kzconsumer_files.ledger import Contents, Ledger
from kzconsumer_files.ledger_items import LedgerItems, UnreadableItem, read_all
from kzconsumer_files.names import AnyRange, LedgerEntry, Marker, NotOurs, Owner, range_name
from kzconsumer_files.private_directory import PrivateDirectory, sweep
from kzconsumer_files.publication import Publication, StagedRange

_Range = TypeVar("_Range", bound=AnyRange)
_log = get_logger("kzconsumer.files")


class Target:
    """One directory on a local file system that several members of one group publish into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = path / "_kzconsumer"
        self.attempts = self._state / "attempts"
        items = LedgerItems(self._state)
        self._ledger = Ledger(items)
        self._folder = Folder(items)
        self._publication = Publication(path, self._state, self.attempts, self._ledger)
        self._layouts = Layouts(self._state)

    def claim(self, owner: Owner) -> str:
        """Make the directory, mark it as `owner`'s and return its permanent id. Raises NotOurs, OSError."""
        make_directory(self.attempts)
        self._publication.prepare()
        marker = self._state / "owner.json"
        if not marker.exists():
            # Readers of a Delta table, which `_delta_log` makes it, would not see our files.
            names = sorted(each.name for each in self.path.iterdir())
            foreign = next((each for each in names if each[0] not in "._" or each == "_delta_log"), None)
            if foreign is not None and not marker.exists():
                raise NotOurs(f"{self.path} is not empty ({foreign}) and not marked as a target of any group")
            made = Marker(id=uuid.uuid4().hex, **msgspec.structs.asdict(owner))
            private = PrivateDirectory(self.attempts)
            try:
                staged = private.path / marker.name
                write_new(staged, msgspec.json.format(msgspec.json.encode(made)))
                put_in_place(staged, marker)
            finally:
                private.remove()
            sync_directory(self._state)
        return self.find(owner)

    def find(self, owner: Owner) -> str:
        """The id of a target that is marked as `owner`'s. Raises NotOurs, also if there is no target; OSError."""
        marker = self._state / "owner.json"
        try:
            found = msgspec.json.decode(marker.read_bytes(), type=Marker)
        except FileNotFoundError:
            raise NotOurs(f"{self.path} is not marked as a target of any group") from None
        except msgspec.DecodeError as error:
            raise NotOurs(f"{marker} cannot be read: {error}") from error
        if found.owner != owner:
            raise NotOurs(f"{self.path} belongs to {found.owner}; this is {owner}: give another path")
        return found.id

    def settle_layout(self, kind: str, partition_by: Sequence[str]) -> None:
        """Record format and partition columns of the target. Raises NotOurs if it has others; OSError."""
        with self._same_layout():
            self._layouts.settle(kind, partition_by)

    def require_layout(self, kind: str, partition_by: Sequence[str]) -> None:
        """As `settle_layout`, but nothing is recorded."""
        with self._same_layout():
            self._layouts.require(kind, partition_by)

    def take_columns(self, schema: str, *, whole: bool) -> None:
        """Record columns, Spark's as JSON, as those of the target; see `Layouts.take`. Raises Misfit, OSError."""
        try:
            added = self._layouts.take(schema, whole=whole)
        except Misfit as misfit:
            raise Misfit(f"{self.path}: {misfit}; or give another path") from None
        if added:
            note = "null in earlier rows; a reader that takes its columns from one file may not see them"
            _log.warning("columns added to the target", columns=list(added), note=note)

    @contextmanager
    def _same_layout(self) -> Iterator[None]:
        try:
            yield
        except Misfit as misfit:
            raise NotOurs(f"{self.path}: {misfit}: readers would miss rows; keep it, or give another path") from None

    def has(self, part: AnyRange) -> bool:
        """Whether the ledger has the range: published, or set aside. Data files do not count."""
        return self._ledger.has(range_name(part))

    def missing(self, ranges: Sequence[_Range]) -> list[_Range]:
        """Those that the ledger does not have once decisions for them are carried out. Raises OSError.

        A range whose decision cannot be carried out is missing, and the reason is logged; others are not affected.
        """
        unknown = [part for part in ranges if not self.has(part)]
        _report(self._publication.finish(map(range_name, unknown)))
        return [part for part in unknown if not self.has(part)]

    def require_published(self, part: AnyRange) -> None:
        """Raises KeptAside for a range that the ledger has as set aside; OSError."""
        self._publication.require_published(part)

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Keep the range from ever being published; False if it is published. Raises OSError."""
        private = PrivateDirectory(self.attempts)
        try:
            return self._publication.set_aside(part, records, private.path)
        finally:
            self.discard(private.path)
            private.remove()

    def ledger(self) -> Contents:
        """Raises OSError; NotOurs if a file of it cannot be decoded."""
        try:
            return self._ledger.contents()
        except UnreadableItem as error:
            raise NotOurs(str(error)) from error

    def entries(self) -> list[LedgerEntry]:
        """The ledger's entries: newer ranges, and ranges set aside. Raises as `ledger`."""
        return self.ledger().entries

    def fold(self) -> int:
        """Fold the ledger; returns the number of removed items. Raises as `ledger`."""
        private = PrivateDirectory(self.attempts)
        try:
            return self._folder.fold(private.path, self._publication.is_settled)
        except UnreadableItem as error:
            raise NotOurs(str(error)) from error
        finally:
            private.remove()

    def decisions(self) -> list[LedgerEntry]:
        """Decisions that are not carried out yet. Raises as `ledger`."""
        try:
            return list(read_all(sorted((self._state / "publishing").glob("*+*.json")), LedgerEntry))
        except UnreadableItem as error:
            raise NotOurs(str(error)) from error

    def finish(self) -> None:
        """Carry out all decisions, also those of dead writers. Raises OSError if that is not possible."""
        if left := self.missing([each.identity for each in self.decisions()]):
            raise OSError(f"{range_name(left[0])} is decided for and cannot be published: sink verify says why")

    def publish(self, staged: Sequence[StagedRange], attempt: Path, require_lease: Callable[[], None]) -> int:
        """See `Publication.publish`."""
        return self._publication.publish(staged, attempt, require_lease)

    def discard(self, attempt: Path) -> bool:
        """Remove a directory of staged files once those that are decided for are published.

        False if they cannot be published, which is logged: the directory stays.
        """
        if self._is_needed(attempt):
            return False
        shutil.rmtree(attempt, ignore_errors=True)
        return True

    def sweep(self) -> int:
        """Discard the staged files of dead processes, as `discard` does; returns the number of processes."""
        return sweep(self.attempts, self._is_needed)

    def _is_needed(self, attempt: Path) -> bool:
        """Whether it has files of a decided range that cannot be published."""
        self._publication.remove_probes(attempt)
        blocked = self._publication.finish_staged_under(attempt)
        _report(blocked)
        return bool(blocked)


def _report(blocked: Mapping[OffsetRange, OSError]) -> None:
    for part, error in blocked.items():
        _log.warning("decided range not published", range=str(part), error=str(error))
