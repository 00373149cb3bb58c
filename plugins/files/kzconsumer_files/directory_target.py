"""A target directory of files: its owner, its ledger, and the directories in which attempts are staged.

The state is in `<path>/_kzconsumer/` (readers of Spark and Hive skip names that begin with `_`), published files beside
it. Nothing that is published is ever replaced or deleted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import TypeAlias, TypeVar

from kzconsumer.durable_files import make_directory, put_in_place, sync_directory, write_new
from kzconsumer.model import RangeIdentity
from kzconsumer_files.ledger import Folder, Ledger, LedgerContents, LedgerItems, UnreadableItem, read_all
from kzconsumer_files.object_store import ObjectStore, StateDirectory, is_object_store
from kzconsumer_files.object_target import ObjectTarget
from kzconsumer_files.private_directory import PrivateDirectory, dead_attempts, sweep
from kzconsumer_files.publication import Publication, StagedRange, log_blocked
from kzconsumer_files.range_names import AnyRange, LedgerEntry, NotOurs, TargetOwner, range_name
from kzconsumer_files.target_marker import MARKER, STATE, MarkedPlace, new_marker, require_outside, require_unused

_Range = TypeVar("_Range", bound=AnyRange)


class Target(MarkedPlace):
    """One directory on a local file system that several members of one group publish into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = path / STATE
        super().__init__(path, StateDirectory(self._state))
        self.attempts = self._state / "attempts"
        items = LedgerItems(self._state)
        self._ledger = Ledger(items)
        self._folder = Folder(items)
        self.publication = Publication(path, self._state, self.attempts, self._ledger)

    def mark(self, owner: TargetOwner) -> str:
        """Make the directory, mark it as `owner`'s and return its permanent id. Raises NotOurs, OSError.

        In a directory that is refused nothing is made.
        """
        marker = self._state / MARKER
        if is_new := not marker.exists():
            names = sorted(each.name for each in self.path.iterdir()) if self.path.exists() else []
            if not marker.exists():
                require_unused(self.path, names, self._files)
            require_outside(self.path)
        make_directory(self.attempts)
        self.publication.prepare()
        if is_new:
            private = PrivateDirectory(self.attempts)
            try:
                staged = private.path / marker.name
                write_new(staged, new_marker(owner))
                put_in_place(staged, marker)
            finally:
                private.remove()
            sync_directory(self._state)
        return self.find(owner)

    def has(self, part: AnyRange) -> bool:
        """Whether the ledger has the range: published, or set aside. Data files do not count."""
        return self._ledger.has(range_name(part))

    def missing(self, ranges: Sequence[_Range]) -> list[_Range]:
        """Those that the ledger does not have once decisions for them are carried out. Raises OSError.

        A range whose decision cannot be carried out is missing, and the reason is logged; others are not affected.
        """
        unknown = [part for part in ranges if not self.has(part)]
        log_blocked(self.publication.finish(map(range_name, unknown)))
        return [part for part in unknown if not self.has(part)]

    def require_published(self, part: AnyRange) -> None:
        """Raises SetAside for a range that the ledger has as set aside; OSError."""
        self.publication.require_published(part)

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Keep the range from ever being published; False if it is published. Raises OSError."""
        private = PrivateDirectory(self.attempts)
        try:
            return self.publication.set_aside(part, records, private.path)
        finally:
            self.discard(private.path)
            private.remove()

    def ledger(self) -> LedgerContents:
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
            return self._folder.fold(private.path, self.publication.is_settled)
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

    def publish(
        self,
        staged: Sequence[StagedRange],
        attempt: Path,
        require_lease: Callable[[], None],
        follows: Sequence[RangeIdentity] = (),
    ) -> int:
        """See `Publication.publish`."""
        return self.publication.publish(staged, attempt, require_lease, follows)

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

    def visible(self) -> Iterator[str]:
        """The files that readers of Spark, Hive and Arrow see."""
        for directory, below, names in os.walk(self.path):
            # Spark reads a directory `_column=value`.
            below[:] = [each for each in below if each[0] != "." and (each[0] != "_" or "=" in each)]
            for name in names:
                if name[0] not in "._":
                    yield os.path.relpath(os.path.join(directory, name), self.path)

    def open(self, name: str) -> BufferedIOBase:
        """A published file. Raises FileNotFoundError."""
        return (self.path / name).open("rb")

    def leftovers(self) -> Iterator[str]:
        """What dead writers left, as a sentence."""
        return dead_attempts(self.attempts)

    def _is_needed(self, attempt: Path) -> bool:
        """Whether it has files of a decided range that cannot be published."""
        self.publication.remove_probes(attempt)
        blocked = self.publication.finish_staged_under(attempt)
        log_blocked(blocked)
        return bool(blocked)


AnyTarget: TypeAlias = Target | ObjectTarget


def target_at(path: str, store_options: Mapping[str, str]) -> AnyTarget:
    """At a directory, or at the URI of an object store: both have the same methods. Raises ConfigError, PluginError."""
    return ObjectTarget(ObjectStore(path, store_options)) if is_object_store(path) else Target(Path(path))
