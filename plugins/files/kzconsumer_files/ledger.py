"""Which ranges of a target are settled: published, or set aside permanently; and how the ledger stays small.

`publication` adds entries, `Folder` replaces them by folded items.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from kzconsumer.durable_files import put_in_place, refresh_directory, sync_directory, write_new
from kzconsumer.errors import DestinationWentBackError
from kzconsumer.model import RangeIdentity
from kzconsumer_files import fold_plan
from kzconsumer_files.fold_plan import Item, Span
from kzconsumer_files.range_names import (
    LedgerEntry,
    RangeOverlap,
    line_epochs,
    lines_before,
    named,
    parsed,
    range_name,
    require_apart,
)

# The files of a ledger: an entry for each range, and folded items that replace entries of consecutive ranges.
#
# Entries are `<range>.json`, folded items `folded/<line>/<level>/<first>+<until>.json` in the state directory; a line
# is a partition with its incarnation and epoch. An item of level n+1 contains everything that items of level n
# (entries: level 0) said, which are removed once it is on disk. An item is never changed and stays true, and what
# makes it redundant is always of a higher level: a reader that goes **from the lowest level upwards** finds all
# published ranges, whatever is folded meanwhile. Where an entry and a folded item disagree, the item is right: a late
# writer may enter a range again that was folded long ago.


class Folded(msgspec.Struct, frozen=True, kw_only=True):
    """Published ranges of `[first, until)`, none of them set aside: their number and the sums of their counts.

    In `gaps`, which are in order, nothing was published. `topic` is set if the name of the line has it shortened.
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
    topic: str = ""

    @property
    def runs(self) -> list[Span]:
        """The published offsets, in order."""
        return fold_plan.runs(Span(self.first, self.until), self.gaps)


class UnreadableItem(Exception):
    """A file of the ledger cannot be decoded; the text names it."""


_Kind = TypeVar("_Kind", LedgerEntry, Folded)


class LedgerItems:
    """Those of one state directory. Methods raise OSError, and UnreadableItem where they decode files."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.folded = state / "folded"

    def entry(self, name: str) -> Path:
        return self.state / f"{name}.json"

    def file(self, line: str, item: Item) -> Path:
        name = f"{item.span.first:020d}+{item.span.until:020d}.json"
        return self.state / f"{line}+{name}" if item.level == 0 else self.folded / line / str(item.level) / name

    def entry_files(self) -> dict[str, list[Path]]:
        """The files of all entries, by line."""
        lines: dict[str, list[Path]] = {}
        for file in self.state.glob("*+*.json"):
            if (found := parsed(file.name)) is not None:
                lines.setdefault(found.line, []).append(file)
        return lines

    def folded_lines(self) -> list[str]:
        return [each.name for each in listed(self.folded) or ()]

    def folded_items(self, line: str) -> Iterator[Item]:
        """From the lowest level upwards; a level is listed when the one below has been consumed."""
        for level in count(1):
            files = listed(self.folded / line / str(level))
            if files is None:
                return
            for file in files:
                first, until = file.stem.split("+")
                yield Item(Span(int(first), int(until)), level)

    def folded_contents(
        self, line: str, concerns: Callable[[Span], bool] = lambda span: True
    ) -> Iterator[tuple[Item, Folded]]:
        # Read as they are listed: an item that is gone by then is part of one above, which is listed later.
        for item in self.folded_items(line):
            if concerns(item.span):
                for folded in read_all([self.file(line, item)], Folded):
                    yield item, folded


def by_item(files: Iterable[Path]) -> dict[Item, LedgerEntry]:
    return {Item(Span(each.first, each.until), 0): each for each in read_all(files, LedgerEntry)}


def redundant(items: Iterable[Item], contents: Callable[[Item], Folded | None]) -> Iterator[Item]:
    """Items that are contained in one of a higher level. `contents` reads a folded item; None if it is gone."""
    for item, others in fold_plan.enclosed(set(items)):
        own = contents(item) if item.level else None
        spans = [item.span] if own is None else own.runs
        found = (folded for folded in map(contents, others) if folded is not None)
        if any(fold_plan.is_within(spans, folded.runs) for folded in found):
            yield item


def listed(directory: Path) -> list[Path] | None:
    """None if there is no such directory."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return None


def read_all(files: Iterable[Path], kind: type[_Kind]) -> Iterator[_Kind]:
    """Decode files, skipping those that are gone. Raises UnreadableItem."""
    for file in files:
        try:
            yield msgspec.json.decode(file.read_bytes(), type=kind)
        except FileNotFoundError:
            continue
        except msgspec.DecodeError as error:
            raise UnreadableItem(f"{file} cannot be read: {error}") from error


class LedgerContents(NamedTuple):
    """Each published range once: in an entry, or in a folded item of its line. Ranges set aside are entries.

    Both in order.
    """

    entries: list[LedgerEntry]
    folded: list[tuple[str, Folded]]


class Ledger:
    """The ledger whose files are `items`. Raises OSError."""

    def __init__(self, items: LedgerItems) -> None:
        self._items = items

    def read(self, name: str) -> LedgerEntry | None:
        """The entry of a range; None if the range is folded or not settled. Raises UnreadableItem."""
        found = next(read_all([self._items.entry(name)], LedgerEntry), None)
        return None if found is None or self._is_folded(name) else found

    def has(self, name: str) -> bool:
        """Whether the range is settled: published, or set aside. Once true, it stays true."""
        return self._items.entry(name).exists() or self._is_folded(name)

    def require(self, ranges: Iterable[RangeIdentity]) -> None:
        """Raises DestinationWentBackError if one of them is not settled."""
        for part in ranges:
            if not self.has(name := range_name(part)):
                refresh_directory(self._items.state)
                if not self.has(name):
                    line = named(name).line
                    spans = [item.span for item, _ in self._items.folded_contents(line)]
                    spans += [Span(each.first, each.until) for each in self._entries(line)]
                    raise DestinationWentBackError(part, max((each.until for each in spans), default=None))

    def enter(self, name: str, decision: Path) -> None:
        """Make the file of a decision the entry of its range, unless the range is settled."""
        try:
            self._items.entry(name).hardlink_to(decision)
        except FileExistsError:
            pass
        except FileNotFoundError:
            if not self.has(name):
                raise

    def contents(self) -> LedgerContents:
        """Raises UnreadableItem."""
        lines = {line: by_item(files) for line, files in self._items.entry_files().items()}
        entries: list[LedgerEntry] = []
        folded: list[tuple[str, Folded]] = []
        for line in sorted({*lines, *self._items.folded_lines()}):
            own, items = lines.get(line, {}), dict(self._items.folded_contents(line))
            stale = set(redundant([*own, *items], items.get))
            entries += [each for item, each in sorted(own.items()) if item not in stale]
            left = [each for item, each in items.items() if item not in stale]
            folded += [(line, each) for each in sorted(left, key=lambda each: each.first)]
        return LedgerContents(entries, folded)

    def overlaps(self, parts: Collection[RangeIdentity], decided: Iterable[str]) -> dict[RangeIdentity, RangeOverlap]:
        """Those that overlap a settled range, of their epoch or a later one, or one whose name is in `decided`."""
        entries: dict[str, list[Span]] = {named(range_name(part)).line: [] for part in parts}
        later: dict[str, list[Span]] = {line: [] for line in entries}
        epochs = line_epochs(entries)
        later_lines: dict[str, list[str]] = {}
        for name in (*decided, *os.listdir(self._items.state)):
            if (entry := parsed(name)) is not None:
                if entry.line in entries:
                    entries[entry.line].append(entry.span)
                for line in (earlier := lines_before(entry.line, epochs)):
                    later[line].append(entry.span)
                    later_lines[entry.line] = earlier
        for later_line, earlier in later_lines.items():  # with entries, as each folded line has them
            runs = [run for _, folded in self._items.folded_contents(later_line) for run in folded.runs]
            for line in earlier:
                later[line] += runs
        found: dict[RangeIdentity, RangeOverlap] = {}
        for part in parts:
            line = named(range_name(part)).line
            own = Span(part.first, part.until)
            touched = self._items.folded_contents(line, own.overlaps)
            try:
                require_apart(part, entries[line], (run for _, folded in touched for run in folded.runs), later[line])
            except RangeOverlap as error:
                found[part] = error
        return found

    def _entries(self, line: str) -> list[LedgerEntry]:
        return list(read_all(self._items.entry_files().get(line, ()), LedgerEntry))

    def _is_folded(self, name: str) -> bool:
        line, own = named(name)
        found = self._items.folded_contents(line, lambda span: span.first <= own.first and own.until <= span.until)
        return any(fold_plan.is_within([own], folded.runs) for _, folded in found)


# Folding: entries of consecutive ranges become few items, so that a ledger stays small at any age. It needs no lock:
# processes that fold at the same time, or late, make the same items (`fold_plan`), and an item is removed only once one
# of a higher level that contains it is on disk.


class Folder:
    """Folds the ledger whose files are `items`."""

    def __init__(self, items: LedgerItems) -> None:
        self._items = items
        self._left: dict[str, frozenset[str]] = {}  # by line, entries that our last fold could not fold any further

    def fold(self, scratch: Path, is_settled: Callable[[LedgerEntry], bool], bits: int = fold_plan.FAN_OUT_BITS) -> int:
        """Fold what can be folded; returns the number of removed items.

        `scratch` is a directory of the caller's own on the same file system. Entries of ranges that still have staged
        files stay. Safe beside writers and other folding processes. Raises UnreadableItem, OSError.
        """
        # Two listings: the second one has every range that was published before a range of the first one.
        before = self._items.entry_files()
        removed = 0
        for line, files in self._items.entry_files().items():
            names = frozenset(file.name for file in files)
            known = {file.name for file in before.get(line, ())}
            if len(files) <= 1 << bits or not known or self._left.get(line) == names:
                continue
            newest = max(named(name).span.first for name in known)
            entries = by_item(files)
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
        above = list(self._items.folded_items(line))  # listed after the entries: see above

        @cache
        def contents(item: Item) -> Folded | None:
            return next(read_all([self._items.file(line, item)], Folded), None)

        removed = 0
        for level in count():
            for group in fold_plan.foldable(line, [*ranges, *above], level, newest, bits):
                if (folded := self._sum(line, group, entries)) is not None:
                    item = Item(Span(folded.first, folded.until), level + 1)
                    self._add(line, item, folded, scratch)
                    above.append(item)
            # The item in place counts, which may be that of another process that knew fewer ranges.
            if stale := [each for each in redundant([*entries, *above], contents) if each.level == level]:
                self._sync(line)
                for item in stale:
                    self._items.file(line, item).unlink(missing_ok=True)
                removed += len(stale)
            if not any(each.level > level for each in above):
                return removed
        raise AssertionError("count() ended")

    def _sum(self, line: str, group: list[Item], entries: Mapping[Item, LedgerEntry]) -> Folded | None:
        """None if an item has been folded meanwhile."""
        level = group[0].level
        if level:
            parts = list(read_all((self._items.file(line, item) for item in group), Folded))
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
            topic=parts[0].topic,
        )

    def _add(self, line: str, item: Item, folded: Folded, scratch: Path) -> None:
        final = self._items.file(line, item)
        final.parent.mkdir(parents=True, exist_ok=True)
        staged = scratch / f"{item.level}+{final.name}"
        write_new(staged, msgspec.json.encode(folded))
        put_in_place(staged, final)

    def _sync(self, line: str) -> None:
        """Have all items of a line on disk, whichever process wrote them, before any is removed."""
        top = self._items.folded / line
        for directory in (*(listed(top) or ()), top, self._items.folded, self._items.state):
            sync_directory(directory)


def _as_folded(entry: LedgerEntry) -> Folded:
    return Folded(
        first=entry.first,
        until=entry.until,
        ranges=1,
        records_in=entry.records_in,
        records_out=entry.records_out,
        records_quarantined=entry.records_quarantined,
        files=len(entry.files),
        topic="" if range_name(entry.identity).startswith(f"{entry.topic}+") else entry.topic,
    )
