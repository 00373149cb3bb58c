"""A target of files in an object store: the state of a directory, with puts that fail if there is such an object.

A process cannot tell whether another one is alive, so each step can be repeated by any process, at any time:

1. The files of a range are put under a unique name in `attempts/`.
2. The decision, which names them, is put into `publishing/`: the first writer wins.
3. Each process that finds a decision copies its files to their final names. All copy the same objects.
4. The decision is put into `ledger/`, also by the first one. Then the staged files and the decision are removed.

State is in `_kzconsumer/`, which readers skip.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from kzconsumer.errors import DestinationWentBackError
from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer_files import fold_plan
from kzconsumer_files.fold_plan import Span
from kzconsumer_files.ledger import LedgerContents
from kzconsumer_files.object_store import ObjectStore, StateObjects, StorePut, StoreUnavailable
from kzconsumer_files.private_directory import local_attempts, make_local_attempts, sweep
from kzconsumer_files.publication import SetAside, StagedRange, log_blocked, require_none
from kzconsumer_files.range_names import (
    AnyRange,
    LedgerEntry,
    NamedRange,
    NotOurs,
    RangeOverlap,
    TargetOwner,
    aside_entry,
    ledger_entry,
    line_epochs,
    lines_before,
    named,
    overlapping,
    parsed,
    range_name,
    range_names,
    require_apart,
    staged_file,
)
from kzconsumer_files.target_marker import (
    MARKER,
    STATE,
    MarkedPlace,
    new_marker,
    require_outside_in_store,
    require_unused,
)

# The ledger of a target in a store: an entry is an object, and entries are not folded. A range, and so its line, may
# have two names (`names.range_names`). Calls block, and raise OSError.


class ObjectLedger:
    """`place`: what the names of its objects begin with."""

    def __init__(self, store: ObjectStore, place: str) -> None:
        self._store = store
        self._place = place
        self._spans: dict[str, list[Span]] = {}  # of settled ranges, by line; those without a gap are one
        self._listed: dict[str, str] = {}  # by line, the last of their names

    def has(self, part: AnyRange) -> bool:
        """Whether the range is settled. Once true, it stays true."""
        return any(self._store.exists(self._entry(name)) for name in range_names(part))

    def read(self, part: AnyRange) -> LedgerEntry | None:
        """The entry of a range; None if it is not settled. Raises NotOurs if it cannot be decoded."""
        found = (read_entry(self._store, self._entry(name)) for name in range_names(part))
        return next((each for each in found if each is not None), None)

    def enter(self, name: str, entry: LedgerEntry) -> None:
        """Settle a range under one of its names, unless it is settled under that."""
        self._store.create(self._entry(name), msgspec.json.encode(entry))

    def objects(self) -> list[str]:
        """The names of its objects, in order, for `read_entry`."""
        return [each.name for each in self._store.listed(self._place) if each.size]

    def overlaps(
        self, parts: Collection[RangeIdentity], decided: Iterable[str], follows: Iterable[RangeIdentity] = ()
    ) -> dict[RangeIdentity, RangeOverlap]:
        """Those that overlap a settled range, of their epoch or a later one, or one whose name is in `decided`.

        `decided` was listed before. `follows` has at most one range of a line. Raises DestinationWentBackError if it is
        not settled.
        """
        ahead = [each for each in map(parsed, decided) if each is not None]
        later = self._later(parts, ahead)
        before = {_lines(each): each for each in follows}
        found = {}
        for part in parts:
            lines = _lines(part)
            own, settled = Span(part.first, part.until), sorted(chain(*map(self._settled, lines)))
            if (followed := before.get(lines)) is not None:
                self._require(followed, settled)
            others = [each.span for each in ahead if each.line in lines]
            beyond = [span for line in lines for span in later.get(line, ())]
            end = max((each.until for each in (*others, *settled[-1:], *beyond)), default=0)
            try:
                require_apart(part, others, later=beyond, end=end)
                other = next((each for each in settled if each.overlaps(own)), None)
                if other is not None and not self.has(part):
                    raise RangeOverlap(part, overlapping(other), end)
            except RangeOverlap as error:
                found[part] = error
        return found

    def _later(self, parts: Iterable[RangeIdentity], ahead: Iterable[NamedRange]) -> dict[str, list[Span]]:
        """The ranges of later epochs that are settled or `ahead`, by the lines of `parts`."""
        found: dict[str, list[Span]] = {}
        epochs = line_epochs(line for part in parts for line in _lines(part))
        for each in ahead:
            for line in lines_before(each.line, epochs):
                found.setdefault(line, []).append(each.span)
        for place in self._store.tops(self._place)[0]:
            other = os.path.basename(place)
            for line in lines_before(other, epochs):
                found.setdefault(line, []).extend(self._settled(other))
        return found

    def _require(self, part: RangeIdentity, settled: list[Span]) -> None:
        if not fold_plan.is_within([Span(part.first, part.until)], settled) and not self.has(part):
            raise DestinationWentBackError(part, settled[-1].until if settled else None)

    def _settled(self, line: str) -> list[Span]:
        """The ranges of a line: new ones lie behind those that were listed before.

        The last of these is listed again. If it is gone, the store was restored from a copy.
        """
        spans, below = self._spans.setdefault(line, []), f"{self._place}/{line}"
        if (known := self._listed.get(line)) is None:
            found = self._store.listed(below)
        else:
            found = self._store.listed(below, after=known.removesuffix(".json"))
            if (again := next(found, None)) is None or again.name != known:
                spans.clear()
                found = self._store.listed(below)
        for each in found:
            if not each.size:
                continue  # clients that show directories put an empty object in the place of each
            first, until = os.path.basename(each.name).removesuffix(".json").split("+")
            if spans and spans[-1].until == int(first):
                spans[-1] = Span(spans[-1].first, int(until))
            else:
                spans.append(Span(int(first), int(until)))
            self._listed[line] = each.name
        return spans

    def _entry(self, name: str) -> str:
        line, (first, until) = named(name)
        return f"{self._place}/{line}/{first:020d}+{until:020d}.json"


def _lines(part: AnyRange) -> tuple[str, ...]:
    return tuple(named(name).line for name in range_names(part))


def read_entry(store: ObjectStore, name: str) -> LedgerEntry | None:
    """The content of an object, that of a decision too; None if there is none. Raises NotOurs if it is unreadable."""
    data = store.read(name)
    try:
        return None if data is None else msgspec.json.decode(data, type=LedgerEntry)
    except msgspec.DecodeError as error:
        raise NotOurs(f"{store}/{name} cannot be read: {error}") from error


_THREADS: Final = 16  # a request takes some ten milliseconds, most of them waiting
# Seconds to wait for a copy, and between looks at it.
_COPY_LIMIT: Final = 30
_COPY_POLL: Final = 0.1
_Range = TypeVar("_Range", bound=AnyRange)
_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class ObjectTarget(MarkedPlace):
    """A place in a store that several members of one group publish into. Methods raise OSError.

    `attempts` is a local directory, for files before they are put.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store, StateObjects(store, STATE))
        self._store = store
        self.attempts = local_attempts()
        self._ledger = ObjectLedger(store, f"{STATE}/ledger")
        self._put: list[LedgerEntry] = []  # with objects that this process has staged, and not removed

    def mark(self, owner: TargetOwner) -> str:
        """Mark the place as `owner`'s and return its permanent id. Raises NotOurs, also for an unsuitable store.

        In a place that is refused nothing is made.
        """
        names = sorted(chain(*self._store.tops()))
        if is_new := self._files.read(MARKER) is None:
            require_unused(self._store, names, self._files)
            require_outside_in_store(self._store)
        else:
            self.find(owner)
        make_local_attempts()
        self._store.require_conditional_puts(STATE)
        if is_new:
            self._files.create(MARKER, new_marker(owner))
        return self.find(owner)

    def has(self, part: AnyRange) -> bool:
        """Whether the ledger has the range: published, or set aside."""
        return self._ledger.has(part)

    def missing(self, ranges: Sequence[_Range]) -> list[_Range]:
        """As `Target.missing`."""
        # Not before their ranges are settled: a put of a decision that seemed to fail may still arrive.
        self._all(self._remove_staged, [each for each in self._put if self.has(each.identity)])
        unknown = self._unsettled(ranges)
        log_blocked(self._finish(unknown))
        return self._unsettled(unknown)

    def require_published(self, part: AnyRange) -> LedgerEntry:
        """The entry of a settled range. Raises SetAside."""
        entry = self._ledger.read(part)
        if entry is None:
            raise FileNotFoundError(f"{self._store}: {range_name(part)} is not in the ledger")
        if entry.kept_aside:
            raise SetAside(range_name(part))
        return entry

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Keep the range from ever being published; False if it is published."""
        for overlap in self._overlaps([part]).values():
            raise overlap
        self._decide(aside_entry(part, records, ""))
        require_none(self._finish([part]))
        try:
            self.require_published(part)
        except SetAside:
            return True
        return False

    def ledger(self) -> LedgerContents:
        """Raises NotOurs if an entry cannot be decoded."""
        found = self._all(self._read, self._ledger.objects())
        entries = [entry for entry in found if entry is not None]
        return LedgerContents(sorted(entries, key=lambda entry: range_names(entry.identity)[0]), [])

    def entries(self) -> list[LedgerEntry]:
        return self.ledger().entries

    def fold(self) -> int:
        """Entries are not folded."""
        return 0

    def decisions(self) -> list[LedgerEntry]:
        """Decisions that are not carried out yet. Raises NotOurs if one cannot be decoded."""
        found = self._all(self._read, [each.name for each in self._store.listed(f"{STATE}/publishing") if each.size])
        return [entry for entry in found if entry is not None]

    def finish(self) -> None:
        """Carry out all decisions, also those of dead writers, and remove those that are void."""
        decided = [each.identity for each in self.decisions()]
        log_blocked(self._finish(decided))
        if left := self._unsettled(decided):
            raise OSError(f"{range_name(left[0])} is decided for and cannot be published: sink verify says why")

    def publish(
        self,
        staged: Sequence[StagedRange],
        attempt: Path,
        require_lease: Callable[[], None],
        follows: Sequence[RangeIdentity] = (),
    ) -> int:
        """As `Publication.publish`."""
        name = str(attempt.relative_to(self.attempts))
        entries = self._all(lambda each: self._upload(each, name), staged)
        require_lease()
        try:
            overlaps = self._overlaps([entry.identity for entry in entries], follows)
        except DestinationWentBackError:
            self._all(self._remove_staged, entries)
            raise
        blocked: dict[OffsetRange, OSError] = {_range(part): error for part, error in overlaps.items()}
        self._all(self._remove_staged, [entry for entry in entries if entry.range in blocked])
        entries = [entry for entry in entries if entry.range not in blocked]
        self._all(self._decide, entries)
        require_lease()
        blocked |= self._finish([entry.identity for entry in entries])
        entries = [entry for entry in entries if entry.range not in blocked]
        settled = self._all(lambda entry: self._ledger.read(entry.identity), entries)
        ours = [found is not None and found.attempt == name for found in settled]
        self._all(self._remove_staged, [entry for entry, is_ours in zip(entries, ours, strict=True) if not is_ours])
        for entry, found in zip(entries, settled, strict=True):
            if found is None:
                raise OSError(f"{self._store}: no decision was kept for {entry.range}")
            if found.kept_aside:
                raise SetAside(range_name(entry.identity))
        require_none(blocked)
        return sum(ours)

    def put(self, attempt: Path) -> StorePut:
        """How tasks on other machines put files of an attempt. Only what a decision names is ever published."""
        return StorePut(f"{self._store.uri}/{STATE}/attempts/{attempt.relative_to(self.attempts)}", self._store.options)

    def discard(self, attempt: Path) -> bool:
        """Remove a local directory of files that are put, or will not be."""
        shutil.rmtree(attempt, ignore_errors=True)
        return True

    def sweep(self) -> int:
        """Remove the local files of dead processes; returns their number."""
        return sweep(self.attempts)

    def visible(self) -> Iterator[str]:
        """The files that readers of Spark, Hive and Arrow see."""
        directories, names = self._store.tops()
        for top in directories:
            if top[0] != "." and (top[0] != "_" or "=" in top):
                names += [each.name for each in self._store.listed(top) if each.size]
        return (name for name in names if os.path.basename(name)[0] not in "._")

    def open(self, name: str) -> BufferedIOBase:
        """A published file. Raises FileNotFoundError."""
        return self._store.open(name)

    def leftovers(self) -> Iterator[str]:
        """What writers that were killed have put in vain, as a sentence."""
        needed = {_staged(each, number) for each in self.decisions() for number in range(len(each.files))}
        found = [each for each in self._store.listed(f"{STATE}/attempts") if each.name not in needed]
        if found:
            size = sum(each.size for each in found)
            place = f"{self._store}/{STATE}/attempts"
            yield f"{len(found)} staged objects ({size} bytes) in {place} are of running writes, or of killed members"

    def _unsettled(self, ranges: Sequence[_Range]) -> list[_Range]:
        return [part for part, known in zip(ranges, self._all(self.has, ranges), strict=True) if not known]

    def _upload(self, staged: StagedRange, attempt: str) -> LedgerEntry:
        names = tuple(name for _, name in staged.files)
        entry = ledger_entry(staged.part, staged.rows, staged.quarantined, names, attempt, tuple(staged.stored))
        if names:
            self._put.append(entry)
        if not staged.stored:
            for number, (file, _) in enumerate(staged.files):
                self._store.upload(file, _staged(entry, number))
        return entry

    def _decide(self, entry: LedgerEntry) -> None:
        self._store.create(_decision(range_name(entry.identity)), msgspec.json.encode(entry))

    def _finish(self, parts: Sequence[AnyRange]) -> dict[OffsetRange, OSError]:
        """Carry out the decisions for these ranges; returns those that cannot be, with the reason. Raises OSError."""
        reasons = self._all(self._finish_one, parts)
        return {_range(part): each for part, each in zip(parts, reasons, strict=True) if each is not None}

    def _finish_one(self, part: AnyRange) -> OSError | None:
        try:
            # A decision of an earlier version comes first for every process: one that was made beside it is void.
            for name in range_names(part):
                self._finish_decision(part, name)
        except StoreUnavailable:
            raise  # says nothing about this range
        except OSError as error:
            return error
        return None

    def _finish_decision(self, part: AnyRange, name: str) -> None:
        # Read before the ledger is: a decision that was there while the range was not settled cannot be void.
        entry = self._read(_decision(name))
        if entry is None:
            return
        if not self._ledger.has(part):
            self._reveal(name, entry)
        self._remove_staged(entry)
        self._store.remove([_decision(name)])

    def _reveal(self, name: str, entry: LedgerEntry) -> None:
        try:
            for number, file in enumerate(entry.files):
                self._copy(_staged(entry, number), file)
        except FileNotFoundError as error:
            if self._ledger.has(entry.identity):
                return
            way_out = f"stop the group, remove the objects that {_decision(name)} names, then it, and start the group"
            raise FileNotFoundError(f"{error}: staged objects are gone, perhaps expired: {way_out}") from None
        self._ledger.enter(name, entry)

    def _copy(self, source: str, name: str) -> None:
        deadline = time.monotonic() + _COPY_LIMIT
        while not self._store.copy(source, name):
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{self._store}/{name}: its copy has not ended within {_COPY_LIMIT} s; if it never does, remove it"
                )
            time.sleep(_COPY_POLL)

    def _remove_staged(self, entry: LedgerEntry) -> None:
        self._store.remove([_staged(entry, number) for number in range(len(entry.files))])
        with suppress(ValueError):
            self._put.remove(entry)

    def _overlaps(
        self, parts: Sequence[RangeIdentity], follows: Sequence[RangeIdentity] = ()
    ) -> dict[RangeIdentity, RangeOverlap]:
        """Those that overlap a range that is published, set aside or decided for. `follows`: see `ObjectLedger`."""
        # Decisions are listed first: one that is carried out meanwhile is found as an entry.
        decided = [os.path.basename(each.name) for each in self._store.listed(f"{STATE}/publishing")]
        return self._ledger.overlaps(parts, decided, follows)

    def _read(self, name: str) -> LedgerEntry | None:
        return read_entry(self._store, name)

    def _all(self, call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
        if len(items) < 2:
            return list(map(call, items))
        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(call, items))


def _range(part: AnyRange) -> OffsetRange:
    return OffsetRange(part.topic, part.partition, part.first, part.until)


def _staged(entry: LedgerEntry, number: int) -> str:
    name = entry.staged[number] if entry.staged else staged_file(entry.topic, entry.partition, number)
    return f"{STATE}/attempts/{entry.attempt}/{name}"


def _decision(name: str) -> str:
    return f"{STATE}/publishing/{name}.json"
