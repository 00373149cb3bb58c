"""Folding a ledger: entries of consecutive ranges become few items, so that it stays small at any age.

Needs no lock: processes that fold at the same time, or late, make the same items (`fold_plan`), and an item is removed
only once one of a higher level that contains it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count, pairwise
from pathlib import Path

import msgspec

from kzconsumer.durable_files import put_in_place, sync_directory, write_new
from kzconsumer_files import fold_plan
from kzconsumer_files.fold_plan import Item, Span
from kzconsumer_files.ledger_items import Folded, LedgerItems, by_item, listed, read_all, redundant
from kzconsumer_files.names import LedgerEntry, named, range_name


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
