"""How staged files become visible: one writer of a range is decided for first, then its files appear, the entry last.

Owns `publishing/` and the entries beside it, in the state directory of a target. Two writers of one range may have
staged different files (a column of the current time, say), so that the first to link each *name* is not enough: readers
would see rows of both. Therefore a **decision** comes before any file: the ledger entry of one attempt, linked into
`publishing/`, where the first one wins. From then on anybody carries it out, also when its writer is dead: links the
staged files to their final names, links the decision itself as the ledger entry, removes the decision. A second
decision can only be made after the entry is there, and is void. So it is with the decision that a range is not
published at all, but kept aside: a writer that comes later, or has lost its partitions, finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kzconsumer.offsets.destination import RangeIdentity
from kzconsumer.sinks.durable_files import put_in_place, sync_directory, sync_file, write_new
from kzconsumer_spark.destinations import KeptAside
from kzconsumer_spark.identity import LedgerEntry, aside_entry, ledger_entry, range_name
from kzconsumer_spark.messages import SpooledRange


class StagedRange(NamedTuple):
    """A range as its writer has it: rows, records in quarantine, each file with its final name under the target."""

    part: SpooledRange
    rows: int
    quarantined: int
    files: Sequence[tuple[Path, str]]


class Publication:
    """Publishes into `target`; decisions and entries are in `state`, staged files in `attempts/<attempt>/`."""

    def __init__(self, target: Path, state: Path, attempts: Path) -> None:
        self._target = target
        self._state = state
        self._attempts = attempts
        self._decisions = state / "publishing"

    def __repr__(self) -> str:
        return f"Publication({self._target})"

    def prepare(self) -> None:
        self._decisions.mkdir(parents=True, exist_ok=True)

    def publish(self, staged: Sequence[StagedRange], attempt: Path, require_lease: Callable[[], None]) -> int:
        """Publish ranges; how many are published as we staged them, rather than as another writer did.

        `attempt` is ours under `attempts`, its staged files on the same file system. When this returns, every range of
        `staged` is published and on disk, whoever wrote it. Raises KeptAside for one that is not, and will not be.
        """
        entries = [(range_name(each.part), self._stage(each, attempt)) for each in staged]
        # No decision may outlive a crash that the staged names did not.
        for directory in (attempt, attempt.parent, self._attempts):
            sync_directory(directory)
        require_lease()
        for name, entry in entries:
            put_in_place(entry, self._decisions / f"{name}.json")
        require_lease()
        self.finish(name for name, _ in entries)
        ours = str(attempt.relative_to(self._attempts))
        published = [self.require_published(each.part) for each in staged]
        return sum(entry.attempt == ours for entry in published)

    def require_published(self, part: SpooledRange | RangeIdentity) -> LedgerEntry:
        """The entry, which is there. Raises KeptAside."""
        entry = self._read(self.entry(range_name(part)))
        assert entry is not None, f"{range_name(part)} has no entry"
        if entry.kept_aside:
            raise KeptAside(range_name(part))
        return entry

    def set_aside(self, part: RangeIdentity, records: int, attempt: Path) -> bool:
        """Have the range never published; False when it is. `attempt` is a directory of ours, as of `publish`."""
        name = range_name(part)
        path = attempt / f"{name}.json"
        write_new(path, msgspec.json.encode(aside_entry(part, records, str(attempt.relative_to(self._attempts)))))
        put_in_place(path, self._decisions / path.name)
        self.finish([name])
        entry = self._read(self.entry(name))
        return entry is not None and entry.kept_aside

    def is_settled(self, entry: LedgerEntry) -> bool:
        """Whether nobody can bring its files back once they are gone: what was staged of them is gone, too."""
        return not any(self._staged(entry, number).exists() for number in range(len(entry.files)))

    def finish(self, names: Iterable[str]) -> None:
        """Carry out what is decided of these ranges. Raises OSError; then it is to be called again, by anybody."""
        decided: list[tuple[str, Path, LedgerEntry]] = []
        for name in names:
            decision = self._decisions / f"{name}.json"
            # Read before the entry is looked for: what is read while there is none yet cannot be a void one.
            entry = self._read(decision)
            if self.entry(name).exists():
                decision.unlink(missing_ok=True)  # carried out, or void
            elif entry is not None:
                decided.append((name, decision, entry))
        if decided:
            sync_directory(self._decisions)  # no file may outlive a crash that its decision did not
        directories = {self._target}
        for name, _, entry in decided:
            for number, file in enumerate(entry.files):
                final = self._target / file
                final.parent.mkdir(parents=True, exist_ok=True)
                self._reveal(self._staged(entry, number), final, name)
                directories.update(each for each in final.parents if each.is_relative_to(self._target))
        if decided:
            for directory in sorted(directories, key=lambda each: -len(each.parts)):
                sync_directory(directory)  # no entry may outlive a crash that its files did not
            for name, decision, _ in decided:
                self._enter(decision, name)
            sync_directory(self._state)
            for _, decision, _ in decided:
                decision.unlink(missing_ok=True)

    def finish_staged_under(self, directory: Path) -> None:
        """Carry out every decision for files that were staged under `directory`, which may be removed then."""
        found = [(path.stem, self._read(path)) for path in self._decisions.glob("*.json")]
        self.finish(
            name for name, entry in found if entry and (self._attempts / entry.attempt).is_relative_to(directory)
        )

    def entry(self, name: str) -> Path:
        return self._state / f"{name}.json"

    def _stage(self, staged: StagedRange, attempt: Path) -> Path:
        """Gather a range's files in the attempt's directory, under names that follow from the entry, and write that."""
        names = tuple(name for _, name in staged.files)
        attempt_name = str(attempt.relative_to(self._attempts))
        entry = ledger_entry(staged.part, staged.rows, staged.quarantined, names, attempt_name)
        for number, (file, _) in enumerate(staged.files):
            file.rename(self._staged(entry, number))
            sync_file(self._staged(entry, number))
        path = attempt / f"{range_name(staged.part)}.json"
        write_new(path, msgspec.json.encode(entry))
        return path

    def _staged(self, entry: LedgerEntry, number: int) -> Path:
        return self._attempts / entry.attempt / f"{entry.topic}+{entry.partition}+{number}"

    def _reveal(self, staged: Path, final: Path, name: str) -> None:
        """Link a decided file to its final name, unless somebody has: they linked the same file."""
        try:
            final.hardlink_to(staged)
        except FileExistsError:
            pass
        except FileNotFoundError:
            if not final.exists() and not self.entry(name).exists():
                raise FileNotFoundError(
                    f"{staged} is gone, which {self._decisions / name}.json says is published"
                ) from None

    def _enter(self, decision: Path, name: str) -> None:
        try:
            self.entry(name).hardlink_to(decision)
        except FileExistsError:
            pass
        except FileNotFoundError:
            if not self.entry(name).exists():
                raise

    def _read(self, decision: Path) -> LedgerEntry | None:
        try:
            return msgspec.json.decode(decision.read_bytes(), type=LedgerEntry)
        except FileNotFoundError:
            return None
