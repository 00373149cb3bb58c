"""Publishes staged files: decide on one writer of a range, link its files, enter it in the ledger.

Two writers of one range may have staged different files (a column with the current time, for example), so it is not
enough that the first one to link each *name* wins: readers could see rows of both. Therefore a **decision** comes
first: the ledger entry of one attempt, linked into `publishing/` of the state directory, where the first one wins. From
then on any process can carry it out, also when its writer is dead: link the staged files to their final names, link the
decision as the ledger entry, remove the decision. A second decision can only be made after the range is in the ledger,
and is void. The decision to set a range aside works the same way: a late writer, or one that has lost its partitions,
finds it.

A decision cannot be withdrawn, so the final names are tried before it is made: the length of each, and whether its file
can be linked into its directory, under a name that readers skip. A symbolic link in the attempt's directory records
where, so that the probe of a dead writer is removed with its directory. No decision is made for a range that fails this
test. A decision that cannot be carried out nevertheless (a directory was replaced since) fails its own range only.
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

from kzconsumer.durable_files import (
    make_directory,
    put_in_place,
    refresh_directory,
    sync_directory,
    sync_file,
    write_new,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer_files.ledger import Ledger
from kzconsumer_files.range_names import (
    AnyRange,
    LedgerEntry,
    RangeOverlap,
    RecordRange,
    aside_entry,
    identity_of,
    ledger_entry,
    range_name,
    staged_file,
)

_log = get_logger("kzconsumer.files")
_PROBE: Final = ".kzconsumer-probe-"


class SetAside(Exception):
    """A range that is never published: a member could not write it, and has quarantined it, or its log was cut off."""

    def __init__(self, name: str) -> None:
        why = "a member could not write it, or its log was cut off"
        way_out = 'with [sink] on_batch_failure = "quarantine" the group continues'
        super().__init__(f"{name} was set aside ({why}); {way_out}")


class NotPublished(OSError):
    """The file system refuses a name that a range needs, or there are several `RangeOverlap`s."""

    def __init__(self, part: OffsetRange, reason: OSError, more: int = 0) -> None:
        others = f" (and {more} more ranges)" if more else ""
        super().__init__(f"{part} cannot be published: {reason}{others}")


class StagedRange(NamedTuple):
    """A range ready to be published: rows, records in quarantine, each file with its final name below the target.

    `stored`: where each file is in the destination's store already, if a task on another machine has put it there. Then
    the file that is here has only its footer, and its size.
    """

    part: RecordRange
    rows: int
    quarantined: int
    files: Sequence[tuple[Path, str]]
    stored: Sequence[str] = ()


class Publication:
    """Publishes into `target`; decisions and the ledger are in `state`, staged files in `attempts/<attempt>/`."""

    def __init__(self, target: Path, state: Path, attempts: Path, ledger: Ledger) -> None:
        self._target = target
        self._state = state
        self._attempts = attempts
        self._ledger = ledger
        self.decisions = state / "publishing"
        """Where each range has a file from the decision to publish it until all of it is in place."""

    def prepare(self) -> None:
        make_directory(self.decisions)

    def publish(
        self,
        staged: Sequence[StagedRange],
        attempt: Path,
        require_lease: Callable[[], None],
        follows: Sequence[RangeIdentity] = (),
    ) -> int:
        """Publish ranges; returns how many are published from our files and not from those of another writer.

        `attempt` is the caller's directory below `attempts`, with the staged files. When this returns, every range of
        `staged` is published and on disk. Raises DestinationWentBackError, with nothing published, if one of `follows`
        is not settled; SetAside for a range that is set aside and, once the others are published, NotPublished for one
        whose names the file system refuses, RangeOverlap for one that overlaps a published range with other bounds.
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
        # The staged names have to be on disk before the decision is.
        for directory in (attempt, attempt.parent, self._attempts):
            sync_directory(directory)
        require_lease()
        self._ledger.require(follows)
        overlaps = self._overlaps([identity_of(part) for part, _ in entries])
        blocked |= {
            part.range: overlaps[identity] for part, _ in entries if (identity := identity_of(part)) in overlaps
        }
        entries = [(part, entry) for part, entry in entries if part.range not in blocked]
        for _, entry in entries:
            put_in_place(entry, self.decisions / entry.name)
        require_lease()
        blocked |= self.finish(range_name(part) for part, _ in entries)
        ours = str(attempt.relative_to(self._attempts))
        published = [self.require_published(part) for part, _ in entries if part.range not in blocked]
        require_none(blocked)
        return sum(entry is not None and entry.attempt == ours for entry in published)

    def require_published(self, part: AnyRange) -> LedgerEntry | None:
        """The entry of a settled range; None if it is folded. Raises SetAside."""
        entry = self._ledger.read(range_name(part))
        assert entry is not None or self._ledger.has(range_name(part)), f"{range_name(part)} is not in the ledger"
        if entry is not None and entry.kept_aside:
            raise SetAside(range_name(part))
        return entry

    def set_aside(self, part: RangeIdentity, records: int, attempt: Path) -> bool:
        """Keep the range from ever being published; False if it is. `attempt`: see `publish`. Raises RangeOverlap."""
        for overlap in self._overlaps([part]).values():
            raise overlap
        name = range_name(part)
        path = attempt / f"{name}.json"
        write_new(path, msgspec.json.encode(aside_entry(part, records, str(attempt.relative_to(self._attempts)))))
        put_in_place(path, self.decisions / path.name)
        require_none(self.finish([name]))
        entry = self._ledger.read(name)
        return entry is not None and entry.kept_aside

    def is_settled(self, entry: LedgerEntry) -> bool:
        """Whether no staged file of the range is left, with which a late writer could link its files again."""
        return not any(self._staged(entry, number).exists() for number in range(len(entry.files)))

    def finish(self, names: Iterable[str]) -> dict[OffsetRange, OSError]:
        """Carry out the decisions for these ranges; returns those whose files cannot be put in place, with the reason.

        Raises OSError if the ledger cannot be written. In either case any process may call it again.
        """
        blocked: dict[OffsetRange, OSError] = {}
        decided: list[tuple[str, Path, LedgerEntry]] = []
        for name in names:
            decision = self.decisions / f"{name}.json"
            # Read before the ledger is checked: a decision read while the range is not settled yet cannot be void.
            entry = self._read(decision)
            if self._ledger.has(name):
                decision.unlink(missing_ok=True)  # it is carried out, or void
            elif entry is not None:
                decided.append((name, decision, entry))
        if decided:
            # Another machine may have settled a range and removed its decision, after which the decision that was read
            # is a second one, and void. That it could be made shows that the entry was there before. But NFS may still
            # answer that the entry is missing: that was true when it was asked before the files were staged. (An entry
            # that is folded has gone for longer than NFS remembers: later ranges had to be planned and published.)
            # tests/files/plain/test_nfs.py plays it.
            refresh_directory(self._state)
            void = {name for name, *_ in decided if self._ledger.has(name)}
            for name in void:
                (self.decisions / f"{name}.json").unlink(missing_ok=True)
            decided = [each for each in decided if each[0] not in void]
        if decided:
            sync_directory(self.decisions)  # the decision has to be on disk before any of its files is
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
                sync_directory(directory)  # the files have to be on disk before the entry is
            for name, decision in carried_out:
                self._ledger.enter(name, decision)
            sync_directory(self._state)
            for _, decision in carried_out:
                decision.unlink(missing_ok=True)
        return blocked

    def finish_staged_under(self, directory: Path) -> dict[OffsetRange, OSError]:
        """As `finish`, for all decisions whose files were staged below `directory`.

        If it returns none, the directory may be removed.
        """
        found = [(path.stem, self._read(path)) for path in self.decisions.glob("*.json")]
        return self.finish(
            name for name, entry in found if entry and (self._attempts / entry.attempt).is_relative_to(directory)
        )

    def remove_probes(self, attempt: Path) -> None:
        """Remove the probes of a dead writer. `attempt` is its directory, or the one around it."""
        for noted in (*attempt.glob(f"{_PROBE}*"), *attempt.glob(f"*/{_PROBE}*")):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._target.joinpath(os.readlink(noted), noted.name).unlink()

    def _require_names(self, staged: StagedRange, attempt: Path) -> None:
        """Raises OSError where a file of the range could not be linked to its final name."""
        if (self.decisions / f"{range_name(staged.part)}.json").exists():
            return  # another writer's files will be published
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

    def _overlaps(self, ranges: Sequence[RangeIdentity]) -> dict[RangeIdentity, RangeOverlap]:
        """Those that overlap a range that is published, set aside or decided for."""
        # Decisions are listed first: one that is carried out meanwhile is found as an entry.
        return self._ledger.overlaps(ranges, os.listdir(self.decisions))

    def _stage(self, staged: StagedRange, attempt: Path) -> Path:
        """Move a range's files to names that follow from its entry, sync them, and write the entry beside them."""
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
        return self._attempts / entry.attempt / staged_file(entry.topic, entry.partition, number)

    def _reveal_all(self, name: str, entry: LedgerEntry) -> set[Path]:
        """Put the files of a decided range in place; returns the directories to be synced."""
        directories: set[Path] = set()
        for number, file in enumerate(entry.files):
            final = self._target / file
            final.parent.mkdir(parents=True, exist_ok=True)
            self._reveal(self._staged(entry, number), final, name)
            directories.update(each for each in final.parents if each.is_relative_to(self._target))
        return directories

    def _reveal(self, staged: Path, final: Path, name: str) -> None:
        """Link a decided file to its final name, unless another process has linked this same file."""
        try:
            final.hardlink_to(staged)
        except FileExistsError:
            pass
        except FileNotFoundError:
            if not final.exists() and not self._ledger.has(name):
                raise FileNotFoundError(
                    f"{staged} is gone, which {self.decisions / name}.json says is published"
                ) from None

    def _read(self, decision: Path) -> LedgerEntry | None:
        try:
            return msgspec.json.decode(decision.read_bytes(), type=LedgerEntry)
        except FileNotFoundError:
            return None


def log_blocked(blocked: Mapping[OffsetRange, OSError]) -> None:
    for part, error in blocked.items():
        _log.warning("decided range not published", range=str(part), error=str(error))


def require_none(blocked: Mapping[OffsetRange, OSError]) -> None:
    for part, error in blocked.items():
        if isinstance(error, RangeOverlap) and len(blocked) == 1:
            raise error
        raise NotPublished(part, error, len(blocked) - 1) from error
