"""How staged files become visible: one writer of a range is decided for first, then its files appear, the entry last.

Owns `publishing/` in the state directory of a target, and makes the entries of its `ledger`. Two writers of one range
may have staged different files (a column of the current time, say), so that the first to link each *name* is not
enough: readers would see rows of both. Therefore a **decision** comes before any file: the ledger entry of one attempt,
linked into `publishing/`, where the first one wins. From then on anybody carries it out, also when its writer is dead:
links the staged files to their final names, links the decision itself as the ledger entry, removes the decision. A
second decision can only be made after the range is in the ledger, and is void. So it is with the decision that a range
is not published at all, but kept aside: a writer that comes later, or has lost its partitions, finds it.

A decision stands for ever, so the final names are tried before it is made: the length of each, and whether its file can
be linked into its directory, under a name that readers skip. The attempt's directory keeps where: whoever removes it
when its writer is dead removes that link, too. A range that fails there is not decided for. A decision that cannot be
carried out all the same (a directory was replaced since) fails its own range, and no other.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kzconsumer.durable_files import put_in_place, sync_directory, sync_file, write_new
from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer_spark.destinations import KeptAside
from kzconsumer_spark.identity import LedgerEntry, aside_entry, ledger_entry, range_name
from kzconsumer_spark.ledger import Ledger
from kzconsumer_spark.messages import SpooledRange
from kzconsumer_spark.overlap import Overlap, identity_of

_PROBE: Final = ".kzconsumer-probe-"


class NotPublished(OSError):
    """A range cannot be published: the file system refuses a name that it needs, or it is one of several `Overlap`s."""

    def __init__(self, part: OffsetRange, reason: OSError, more: int = 0) -> None:
        others = f" (and {more} more ranges)" if more else ""
        super().__init__(f"{part} cannot be published: {reason}{others}")


class StagedRange(NamedTuple):
    """A range as its writer has it: rows, records in quarantine, each file with its final name under the target."""

    part: SpooledRange
    rows: int
    quarantined: int
    files: Sequence[tuple[Path, str]]


class Publication:
    """Publishes into `target`; decisions and the ledger are in `state`, staged files in `attempts/<attempt>/`."""

    def __init__(self, target: Path, state: Path, attempts: Path, ledger: Ledger) -> None:
        self._target = target
        self._state = state
        self._attempts = attempts
        self._ledger = ledger
        self._decisions = state / "publishing"

    def __repr__(self) -> str:
        return f"Publication({self._target})"

    def prepare(self) -> None:
        self._decisions.mkdir(parents=True, exist_ok=True)

    def publish(self, staged: Sequence[StagedRange], attempt: Path, require_lease: Callable[[], None]) -> int:
        """Publish ranges; how many are published as we staged them, rather than as another writer did.

        `attempt` is ours under `attempts`, its staged files on the same file system. When this returns, every range of
        `staged` is published and on disk, by us or by another writer. Raises KeptAside for one that never will be;
        NotPublished for one whose names the file system refuses, and Overlap for one that is cut otherwise than one
        that is published, once the others are published.
        """
        blocked: dict[OffsetRange, OSError] = {}
        entries = []
        for each in staged:
            try:
                self._require_names(each, attempt)
            except OSError as error:
                blocked[each.part.range] = error
            else:
                entries.append((each.part, self._stage(each, attempt)))
        # No decision may outlive a crash that the staged names did not.
        for directory in (attempt, attempt.parent, self._attempts):
            sync_directory(directory)
        require_lease()
        overlaps = self._overlaps([identity_of(part) for part, _ in entries])
        blocked |= {part.range: overlaps[named] for part, _ in entries if (named := identity_of(part)) in overlaps}
        entries = [(part, entry) for part, entry in entries if part.range not in blocked]
        for _, entry in entries:
            put_in_place(entry, self._decisions / entry.name)
        require_lease()
        blocked |= self.finish(range_name(part) for part, _ in entries)
        ours = str(attempt.relative_to(self._attempts))
        published = [self.require_published(part) for part, _ in entries if part.range not in blocked]
        _require_none(blocked)
        return sum(entry is not None and entry.attempt == ours for entry in published)

    def require_published(self, part: SpooledRange | RangeIdentity) -> LedgerEntry | None:
        """The entry of a range that the ledger has; None if it is folded. Raises KeptAside."""
        entry = self._ledger.read(range_name(part))
        assert entry is not None or self._ledger.has(range_name(part)), f"{range_name(part)} is not in the ledger"
        if entry is not None and entry.kept_aside:
            raise KeptAside(range_name(part))
        return entry

    def set_aside(self, part: RangeIdentity, records: int, attempt: Path) -> bool:
        """Have the range never published; False when it is. `attempt` is a directory of ours, as of `publish`.

        Raises Overlap.
        """
        for overlap in self._overlaps([part]).values():
            raise overlap
        name = range_name(part)
        path = attempt / f"{name}.json"
        write_new(path, msgspec.json.encode(aside_entry(part, records, str(attempt.relative_to(self._attempts)))))
        put_in_place(path, self._decisions / path.name)
        _require_none(self.finish([name]))
        entry = self._ledger.read(name)
        return entry is not None and entry.kept_aside

    def is_settled(self, entry: LedgerEntry) -> bool:
        """Whether nobody can bring its files back once they are gone: what was staged of them is gone, too."""
        return not any(self._staged(entry, number).exists() for number in range(len(entry.files)))

    def finish(self, names: Iterable[str]) -> dict[OffsetRange, OSError]:
        """Carry out what is decided of these ranges; those whose files cannot be put in place, with the reason.

        Raises OSError where the ledger itself cannot be written. In either case it is to be called again, by anybody.
        """
        blocked: dict[OffsetRange, OSError] = {}
        decided: list[tuple[str, Path, LedgerEntry]] = []
        for name in names:
            decision = self._decisions / f"{name}.json"
            # Read before the ledger is asked: what is read while it has not the range yet cannot be a void one.
            entry = self._read(decision)
            if self._ledger.has(name):
                decision.unlink(missing_ok=True)  # carried out, or void
            elif entry is not None:
                decided.append((name, decision, entry))
        if decided:
            sync_directory(self._decisions)  # no file may outlive a crash that its decision did not
        directories = {self._target}
        carried_out = []
        for name, decision, entry in decided:
            try:
                directories |= self._reveal_all(name, entry)
            except OSError as error:
                blocked[entry.range] = error
            else:
                carried_out.append((name, decision))
        if carried_out:
            for directory in sorted(directories, key=lambda each: -len(each.parts)):
                sync_directory(directory)  # no entry may outlive a crash that its files did not
            for name, decision in carried_out:
                self._enter(decision, name)
            sync_directory(self._state)
            for _, decision in carried_out:
                decision.unlink(missing_ok=True)
        return blocked

    def finish_staged_under(self, directory: Path) -> dict[OffsetRange, OSError]:
        """Carry out every decision for files that were staged under `directory`; as `finish`.

        The directory may be removed unless one is left.
        """
        found = [(path.stem, self._read(path)) for path in self._decisions.glob("*.json")]
        return self.finish(
            name for name, entry in found if entry and (self._attempts / entry.attempt).is_relative_to(directory)
        )

    def remove_probes(self, attempt: Path) -> None:
        """Links that a dead writer has left where it tried names; `attempt` is its directory, or the one around it."""
        for noted in (*attempt.glob(f"{_PROBE}*"), *attempt.glob(f"*/{_PROBE}*")):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._target.joinpath(os.readlink(noted), noted.name).unlink()

    def _require_names(self, staged: StagedRange, attempt: Path) -> None:
        """Raises OSError where a file of the range could not be linked to its final name."""
        if (self._decisions / f"{range_name(staged.part)}.json").exists():
            return  # another writer's files it will be
        for file, name in staged.files:
            final = self._target / name
            final.parent.mkdir(parents=True, exist_ok=True)
            if final.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(final))
            with contextlib.suppress(FileNotFoundError):
                final.lstat()  # raises OSError for a name that is too long
            noted = attempt / f"{_PROBE}{uuid.uuid4().hex}"
            noted.symlink_to(Path(name).parent)
            probe = final.with_name(noted.name)
            try:
                probe.hardlink_to(file)
                probe.unlink()
            finally:
                noted.unlink()

    def _overlaps(self, ranges: Sequence[RangeIdentity]) -> dict[RangeIdentity, Overlap]:
        """Those that overlap what is published, kept aside or decided for."""
        # The decisions first: one that is carried out between the two looks has an entry then.
        return self._ledger.overlaps(ranges, os.listdir(self._decisions))

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

    def _reveal_all(self, name: str, entry: LedgerEntry) -> set[Path]:
        """Put the files of a decided range in place; the directories to be synced."""
        directories: set[Path] = set()
        for number, file in enumerate(entry.files):
            final = self._target / file
            final.parent.mkdir(parents=True, exist_ok=True)
            self._reveal(self._staged(entry, number), final, name)
            directories.update(each for each in final.parents if each.is_relative_to(self._target))
        return directories

    def _reveal(self, staged: Path, final: Path, name: str) -> None:
        """Link a decided file to its final name, unless somebody has: they linked the same file."""
        try:
            final.hardlink_to(staged)
        except FileExistsError:
            pass
        except FileNotFoundError:
            if not final.exists() and not self._ledger.has(name):
                raise FileNotFoundError(
                    f"{staged} is gone, which {self._decisions / name}.json says is published"
                ) from None

    def _enter(self, decision: Path, name: str) -> None:
        try:
            self._ledger.entry(name).hardlink_to(decision)
        except FileExistsError:
            pass
        except FileNotFoundError:
            if not self._ledger.has(name):
                raise

    def _read(self, decision: Path) -> LedgerEntry | None:
        try:
            return msgspec.json.decode(decision.read_bytes(), type=LedgerEntry)
        except FileNotFoundError:
            return None


def _require_none(blocked: Mapping[OffsetRange, OSError]) -> None:
    for part, error in blocked.items():
        if isinstance(error, Overlap) and len(blocked) == 1:
            raise error
        raise NotPublished(part, error, len(blocked) - 1) from error
