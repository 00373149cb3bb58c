"""A target directory of the parquet destination: its owner, its ledger, and the publication of ranges.

Owns what lies under `<path>/_kzconsumer/` (readers of Spark and Hive skip names that begin with `_`) and the final
names beside it. The daemon claims the target, the worker publishes. It never replaces or deletes what is published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kzconsumer.offsets.destination import RangeIdentity
from kzconsumer.sinks.durable_files import put_in_place, sync_directory, sync_file, write_new
from kzconsumer_spark.identity import Owner, data_file, ledger_entry, range_name
from kzconsumer_spark.messages import SpooledRange
from kzconsumer_spark.private_directory import PrivateDirectory


class NotOurs(Exception):
    """The directory belongs to another group, or holds files that no group of ours put there."""


class Target:
    """One directory on a local file system that several members of one group publish into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = path / "_kzconsumer"
        self.attempts = self._state / "attempts"

    def __repr__(self) -> str:
        return f"Target({self.path})"

    def claim(self, owner: Owner) -> None:
        """Make the directory and mark it as `owner`'s. Raises NotOurs, or OSError when it cannot be written."""
        self.attempts.mkdir(parents=True, exist_ok=True)
        marker = self._state / "owner.json"
        if not marker.exists():
            foreign = next((each for each in sorted(self.path.iterdir()) if each.name[0] not in "._"), None)
            if foreign is not None and not marker.exists():
                raise NotOurs(f"{self.path} is not empty ({foreign.name}) and not marked as a target of any group")
            private = PrivateDirectory(self.attempts)
            try:
                staged = private.path / marker.name
                write_new(staged, msgspec.json.format(msgspec.json.encode(owner)))
                put_in_place(staged, marker)
            finally:
                private.remove()
            sync_directory(self._state)
        try:
            found = msgspec.json.decode(marker.read_bytes(), type=Owner)
        except msgspec.DecodeError as error:
            raise NotOurs(f"{marker} cannot be read: {error}") from error
        if found != owner:
            raise NotOurs(f"{self.path} belongs to {found}; this is {owner}")

    def has(self, part: SpooledRange | RangeIdentity) -> bool:
        """Whether the range is published: whether its ledger entry exists, never whether data files do."""
        return self._entry(part).exists()

    def publish(
        self, staged: Sequence[tuple[SpooledRange, Path | None]], scratch: Path, require_lease: Callable[[], None]
    ) -> int:
        """Put ranges in place, ledger entries last; how many entries are ours rather than another writer's.

        `staged` files (None for a range without rows) and `scratch` are on the target's file system. When this returns,
        every range of `staged` is published and on disk, whoever wrote it.
        """
        for _, file in staged:
            if file is not None:
                sync_file(file)
        require_lease()
        for part, file in staged:
            if file is not None:
                put_in_place(file, self.path / data_file(part))
        sync_directory(self.path)  # no entry may outlive a crash that its data did not
        entries = []
        for part, _ in staged:
            entry = scratch / f"{range_name(part)}.json"
            write_new(entry, msgspec.json.encode(ledger_entry(part)))
            entries.append((entry, part))
        require_lease()
        won = sum(put_in_place(entry, self._entry(part)) for entry, part in entries)
        sync_directory(self._state)
        return won

    def _entry(self, part: SpooledRange | RangeIdentity) -> Path:
        return self._state / f"{range_name(part)}.json"
