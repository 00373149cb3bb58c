"""What is published in a target of files: an entry for each range, folded into few items when ranges follow each other.

Owns `<range>.json` (the entries, which `publication` makes) and `folded/<line>/<level>/<first>+<until>.json` in the
state directory, where a line is a partition with its incarnation and epoch. An item of level n+1 says all that items of
level n (entries: level 0) said, which are removed once it is on disk. No item is ever changed, every item is true for
ever, and what makes it redundant is always of a higher level. A reader that goes **from the lowest level upwards**
finds what is published, whatever is folded meanwhile. A process that folds late does no harm: its items are true, too.
Where an entry and a folded item disagree, the item is right: a writer may enter a range again that was folded long ago.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from kzconsumer.durable_files import put_in_place, sync_directory, write_new
from kzconsumer.model import RangeIdentity
from kzconsumer_spark import fold_plan
from kzconsumer_spark.fold_plan import Item, Span
from kzconsumer_spark.identity import LedgerEntry, NamedRange, named, parsed, range_name
from kzconsumer_spark.overlap import Overlap, require_apart


class Folded(msgspec.Struct, frozen=True, kw_only=True):
    """Published ranges of `[first, until)`, none of them kept aside: how many, and their sums.

    In `gaps`, which are in order, nothing was published.
    """

    version: int = 1
    first: int
    until: int
    ranges: int
    records_in: int
    records_out: int
    records_quarantined: int
    files: int
    gaps: tuple[Span, ...] = ()

    @property
    def runs(self) -> list[Span]:
        """The published offsets, in order."""
        return fold_plan.runs(Span(self.first, self.until), self.gaps)


class Contents(NamedTuple):
    """Each published range once: in an entry, or in a folded item of its line. Ranges kept aside are entries.

    Both in order.
    """

    entries: list[LedgerEntry]
    folded: list[tuple[str, Folded]]


class FoldedFiles:
    """Which data files belong to which folded item, by their names, which no item keeps."""

    def __init__(self, folded: Iterable[tuple[str, Folded]]) -> None:
        self._runs: dict[str, list[tuple[Span, Folded]]] = {}
        for line, each in folded:
            self._runs.setdefault(line, []).extend((run, each) for run in each.runs)
        for runs in self._runs.values():
            runs.sort(key=lambda run: run[0])
        self._files: dict[NamedRange, list[str]] = {}
        self.names: set[str] = set()

    def __repr__(self) -> str:
        return f"FoldedFiles({len(self.names)})"

    def add(self, names: Iterable[str]) -> None:
        """Those of them that are of a folded item; others are passed over."""
        for name in sorted(names):
            if (found := parsed(os.path.basename(name))) is None:
                continue
            runs = self._runs.get(found.line, [])
            place = bisect_right(runs, found.span.first, key=lambda run: run[0].first)
            if place and found.span.until <= runs[place - 1][0].until:
                item = runs[place - 1][1]
                self._files.setdefault(NamedRange(found.line, Span(item.first, item.until)), []).append(name)
                self.names.add(name)

    def of(self, line: str, folded: Folded) -> list[str]:
        return self._files.get(NamedRange(line, Span(folded.first, folded.until)), [])


class UnreadableItem(Exception):
    """A file of the ledger says nothing; the text names it."""


_Kind = TypeVar("_Kind", LedgerEntry, Folded)


class Ledger:
    """Of one state directory. Raises OSError."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._folded = state / "folded"
        self._left: dict[str, frozenset[str]] = {}  # entries of which a fold of ours could make nothing more

    def __repr__(self) -> str:
        return f"Ledger({self._state})"

    def entry(self, name: str) -> Path:
        return self._state / f"{name}.json"

    def read(self, name: str) -> LedgerEntry | None:
        """What is entered under a range's name; None if it is folded, or if there is nothing. Raises UnreadableItem."""
        found = next(read_all([self.entry(name)], LedgerEntry), None)
        return None if found is None or self._is_folded(name) else found

    def has(self, name: str) -> bool:
        """Whether the range is settled: published, or kept aside. Once true, it stays true."""
        return self.entry(name).exists() or self._is_folded(name)

    def contents(self) -> Contents:
        """Raises UnreadableItem."""
        lines = {line: _by_item(files) for line, files in self._entry_files().items()}
        entries: list[LedgerEntry] = []
        folded: list[tuple[str, Folded]] = []
        for line in sorted({*lines, *(each.name for each in _listed(self._folded) or ())}):
            own, items = lines.get(line, {}), dict(self._folded_contents(line))
            stale = set(_redundant([*own, *items], items.get))
            entries += [each for item, each in sorted(own.items()) if item not in stale]
            left = [each for item, each in items.items() if item not in stale]
            folded += [(line, each) for each in sorted(left, key=lambda each: each.first)]
        return Contents(entries, folded)

    def overlaps(self, parts: Collection[RangeIdentity], decided: Iterable[str]) -> dict[RangeIdentity, Overlap]:
        """Those that overlap what is published or kept aside; `decided` are names of what is about to be."""
        entries: dict[str, list[Span]] = {named(range_name(part)).line: [] for part in parts}
        for name in (*decided, *os.listdir(self._state)):
            if (entry := parsed(name)) is not None and entry.line in entries:
                entries[entry.line].append(entry.span)
        found: dict[RangeIdentity, Overlap] = {}
        for part in parts:
            line = named(range_name(part)).line
            own = Span(part.first, part.until)
            touched = self._folded_contents(line, lambda span, own=own: _overlap(span, own))  # type: ignore[misc]
            try:
                require_apart(part, entries[line], (run for _, folded in touched for run in folded.runs))
            except Overlap as error:
                found[part] = error
        return found

    def fold(self, scratch: Path, is_settled: Callable[[LedgerEntry], bool], bits: int = fold_plan.FAN_OUT_BITS) -> int:
        """Fold what can be folded; how many items were removed.

        `scratch` is a directory of the caller's own on the same file system. Entries of which something is staged stay.
        Safe beside writers and others that fold. Raises UnreadableItem.
        """
        # Listed twice: of what was published before the second look nothing is missing there.
        before = self._entry_files()
        removed = 0
        for line, files in self._entry_files().items():
            names = frozenset(file.name for file in files)
            known = {file.name for file in before.get(line, ())}
            if len(files) <= 1 << bits or not known or self._left.get(line) == names:
                continue
            newest = max(named(name).span.first for name in known)
            entries = _by_item(files)
            ranges = [item._replace(is_fixed=not is_settled(e)) for item, e in entries.items() if not e.kept_aside]
            removed += self._fold_line(line, entries, ranges, scratch, newest, bits)
            if names == known and not any(each.is_fixed for each in ranges):
                self._left[line] = frozenset(file.name for file in files if file.exists())
        return removed

    def _fold_line(
        self,
        line: str,
        entries: Mapping[Item, LedgerEntry],
        ranges: Sequence[Item],
        scratch: Path,
        newest: int,
        bits: int,
    ) -> int:
        above = list(self._folded_items(line))  # after the entries: see above

        @cache
        def contents(item: Item) -> Folded | None:
            return next(read_all([self._file(line, item)], Folded), None)

        removed = 0
        for level in count():
            for group in fold_plan.foldable(line, [*ranges, *above], level, newest, bits):
                if (folded := self._sum(line, group, entries)) is not None:
                    item = Item(Span(folded.first, folded.until), level + 1)
                    self._add(line, item, folded, scratch)
                    above.append(item)
            # What is in place decides, which may be another's that saw less.
            if stale := [each for each in _redundant([*entries, *above], contents) if each.level == level]:
                self._sync(line)
                for item in stale:
                    self._file(line, item).unlink(missing_ok=True)
                removed += len(stale)
            if not any(each.level > level for each in above):
                return removed
        raise AssertionError("count() ended")

    def _sum(self, line: str, group: list[Item], entries: Mapping[Item, LedgerEntry]) -> Folded | None:
        """None if an item has been folded meanwhile."""
        level = group[0].level
        if level:
            parts = list(read_all((self._file(line, item) for item in group), Folded))
        else:
            parts = [_as_folded(entries[item._replace(is_fixed=False)]) for item in group]
        if len(parts) < len(group):
            return None
        gaps = list(parts[0].gaps)
        for one, other in pairwise(parts):
            gaps += [Span(one.until, other.first)] if one.until < other.first else []
            gaps += other.gaps
        return Folded(
            first=parts[0].first,
            until=parts[-1].until,
            ranges=sum(each.ranges for each in parts),
            records_in=sum(each.records_in for each in parts),
            records_out=sum(each.records_out for each in parts),
            records_quarantined=sum(each.records_quarantined for each in parts),
            files=sum(each.files for each in parts),
            gaps=tuple(gaps),
        )

    def _add(self, line: str, item: Item, folded: Folded, scratch: Path) -> None:
        final = self._file(line, item)
        final.parent.mkdir(parents=True, exist_ok=True)
        staged = scratch / f"{line}+{item.level}+{final.name}"
        write_new(staged, msgspec.json.encode(folded))
        put_in_place(staged, final)

    def _sync(self, line: str) -> None:
        """Nothing is removed before what replaces it is on disk, whichever process wrote that."""
        top = self._folded / line
        for directory in (*(_listed(top) or ()), top, self._folded, self._state):
            sync_directory(directory)

    def _is_folded(self, name: str) -> bool:
        line, own = named(name)
        found = self._folded_contents(line, lambda span: span.first <= own.first and own.until <= span.until)
        return any(fold_plan.is_within([own], folded.runs) for _, folded in found)

    def _folded_items(self, line: str) -> Iterator[Item]:
        """From the lowest level upwards; a level is listed when the one below has been taken."""
        for level in count(1):
            files = _listed(self._folded / line / str(level))
            if files is None:
                return
            for file in files:
                first, until = file.stem.split("+")
                yield Item(Span(int(first), int(until)), level)

    def _folded_contents(
        self, line: str, concerns: Callable[[Span], bool] = lambda span: True
    ) -> Iterator[tuple[Item, Folded]]:
        # Read as they are listed: one that is gone by then is part of one above, which is listed later.
        for item in self._folded_items(line):
            if concerns(item.span):
                for folded in read_all([self._file(line, item)], Folded):
                    yield item, folded

    def _file(self, line: str, item: Item) -> Path:
        name = f"{item.span.first:020d}+{item.span.until:020d}.json"
        return self._state / f"{line}+{name}" if item.level == 0 else self._folded / line / str(item.level) / name

    def _entry_files(self) -> dict[str, list[Path]]:
        """By lines."""
        lines: dict[str, list[Path]] = {}
        for file in self._state.glob("*+*.json"):
            if (found := parsed(file.name)) is not None:
                lines.setdefault(found.line, []).append(file)
        return lines


def _by_item(files: Iterable[Path]) -> dict[Item, LedgerEntry]:
    return {Item(Span(each.first, each.until), 0): each for each in read_all(files, LedgerEntry)}


def _redundant(items: Iterable[Item], contents: Callable[[Item], Folded | None]) -> Iterator[Item]:
    """Items that one of a higher level stands for; `contents` reads a folded item, None if it is gone."""
    for item, others in fold_plan.enclosed(set(items)):
        own = contents(item) if item.level else None
        spans = [item.span] if own is None else own.runs
        found = (folded for folded in map(contents, others) if folded is not None)
        if any(fold_plan.is_within(spans, folded.runs) for folded in found):
            yield item


def _overlap(one: Span, other: Span) -> bool:
    return one.first < other.until and other.first < one.until


def _as_folded(entry: LedgerEntry) -> Folded:
    return Folded(
        first=entry.first,
        until=entry.until,
        ranges=1,
        records_in=entry.records_in,
        records_out=entry.records_out,
        records_quarantined=entry.records_quarantined,
        files=len(entry.files),
    )


def _listed(directory: Path) -> list[Path] | None:
    """None where there is no such directory."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return None


def read_all(files: Iterable[Path], kind: type[_Kind]) -> Iterator[_Kind]:
    """Without those that are gone. Raises UnreadableItem."""
    for file in files:
        try:
            yield msgspec.json.decode(file.read_bytes(), type=kind)
        except FileNotFoundError:
            continue
        except msgspec.DecodeError as error:
            raise UnreadableItem(f"{file} cannot be read: {error}") from error
