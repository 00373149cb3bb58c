"""A target directory of files: its owner, its ledger, and the directories in which attempts are staged.

Owns what lies under `<path>/_kzconsumer/` (readers of Spark and Hive skip names that begin with `_`) and the final
names beside it. The daemon claims the target, the worker publishes. It never replaces or deletes what is published.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from kzconsumer.durable_files import put_in_place, sync_directory, write_new
from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer_spark.delta_columns import Misfit
from kzconsumer_spark.identity import LedgerEntry, Marker, Owner, range_name
from kzconsumer_spark.layout import Layouts
from kzconsumer_spark.ledger import Contents, Ledger, UnreadableItem, read_all
from kzconsumer_spark.messages import SpooledRange
from kzconsumer_spark.private_directory import PrivateDirectory, sweep
from kzconsumer_spark.publication import Publication, StagedRange

_Range = TypeVar("_Range", SpooledRange, RangeIdentity)
_log = structlog.get_logger(__name__)


class NotOurs(Exception):
    """The destination belongs to another group, or holds what no group of ours put there."""


class Target:
    """One directory on a local file system that several members of one group publish into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = path / "_kzconsumer"
        self.attempts = self._state / "attempts"
        self._ledger = Ledger(self._state)
        self._publication = Publication(path, self._state, self.attempts, self._ledger)
        self._layouts = Layouts(self._state)

    def __repr__(self) -> str:
        return f"Target({self.path})"

    def claim(self, owner: Owner) -> str:
        """Make the directory and mark it as `owner`'s; the id that it has for good.

        Raises NotOurs, or OSError when it cannot be written.
        """
        self.attempts.mkdir(parents=True, exist_ok=True)
        self._publication.prepare()
        marker = self._state / "owner.json"
        if not marker.exists():
            # `_delta_log` is that of a Delta table: its readers would see nothing of ours.
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
        """The id of a target that is marked as `owner`'s. Raises NotOurs, also where there is none; OSError."""
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
        """Have the target keep this format and these partition columns. Raises NotOurs if it has others; OSError."""
        with self._same_layout():
            self._layouts.settle(kind, partition_by)

    def require_layout(self, kind: str, partition_by: Sequence[str]) -> None:
        """As `settle_layout`, but nothing is recorded."""
        with self._same_layout():
            self._layouts.require(kind, partition_by)

    def take_columns(self, schema: str, *, whole: bool) -> None:
        """Have the target keep these columns, Spark's as JSON; see `Layouts.take`. Raises Misfit, OSError."""
        try:
            added = self._layouts.take(schema, whole=whole)
        except Misfit as misfit:
            raise Misfit(f"{self.path}: {misfit}; or give another path") from None
        if added:
            note = "null in earlier rows; a reader that takes its columns from one file has to be told of them"
            _log.warning("columns added to the target", columns=list(added), note=note)

    @contextmanager
    def _same_layout(self) -> Iterator[None]:
        try:
            yield
        except Misfit as misfit:
            raise NotOurs(f"{self.path}: {misfit}: readers would miss rows; keep it, or give another path") from None

    def has(self, part: SpooledRange | RangeIdentity) -> bool:
        """Whether the ledger has the range, never whether data files do: published, or kept aside."""
        return self._ledger.has(range_name(part))

    def missing(self, ranges: Sequence[_Range]) -> list[_Range]:
        """Those that the ledger has not, once what was decided of them is carried out. Raises OSError.

        One whose decision cannot be carried out is missing, and the reason is logged: others are not held up by it.
        """
        unknown = [part for part in ranges if not self.has(part)]
        _tell(self._publication.finish(map(range_name, unknown)))
        return [part for part in unknown if not self.has(part)]

    def require_published(self, part: SpooledRange | RangeIdentity) -> None:
        """Of a range that the ledger has. Raises KeptAside, OSError."""
        self._publication.require_published(part)

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Have the range never published; False when it is. Raises OSError."""
        private = PrivateDirectory(self.attempts)
        try:
            return self._publication.set_aside(part, records, private.path)
        finally:
            self.discard(private.path)
            private.remove()

    def ledger(self) -> Contents:
        """Raises OSError; NotOurs for an item that says nothing."""
        try:
            return self._ledger.contents()
        except UnreadableItem as error:
            raise NotOurs(str(error)) from error

    def entries(self) -> list[LedgerEntry]:
        """Those of the ledger: newer ranges, and what is kept aside. Raises as `ledger`."""
        return self.ledger().entries

    def fold(self) -> int:
        """Fold the ledger; how many items were removed. Raises as `ledger`."""
        private = PrivateDirectory(self.attempts)
        try:
            return self._ledger.fold(private.path, self._publication.is_settled)
        except UnreadableItem as error:
            raise NotOurs(str(error)) from error
        finally:
            private.remove()

    def decisions(self) -> list[LedgerEntry]:
        """What is decided for and not carried out yet. Raises as `ledger`."""
        try:
            return list(read_all(sorted((self._state / "publishing").glob("*+*.json")), LedgerEntry))
        except UnreadableItem as error:
            raise NotOurs(str(error)) from error

    def publish(self, staged: Sequence[StagedRange], attempt: Path, require_lease: Callable[[], None]) -> int:
        """See `Publication.publish`."""
        return self._publication.publish(staged, attempt, require_lease)

    def discard(self, attempt: Path) -> bool:
        """Remove a directory of staged files: those that a decision stands for are published first.

        False if that cannot be done, which is logged: the directory stays.
        """
        if self._is_needed(attempt):
            return False
        shutil.rmtree(attempt, ignore_errors=True)
        return True

    def sweep(self) -> int:
        """Discard what dead processes have staged; of how many. What cannot be published yet is logged and stays."""
        return sweep(self.attempts, self._is_needed)

    def _is_needed(self, attempt: Path) -> bool:
        """Whether a decided range cannot be published, and has its files there."""
        self._publication.remove_probes(attempt)
        blocked = self._publication.finish_staged_under(attempt)
        _tell(blocked)
        return bool(blocked)


def _tell(blocked: Mapping[OffsetRange, OSError]) -> None:
    for part, error in blocked.items():
        _log.warning("decided range not published", range=str(part), error=str(error))
