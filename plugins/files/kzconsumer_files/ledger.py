"""Which ranges of a target are settled: published, or set aside permanently.

Its files are described in `ledger_items`. `publication` adds entries, `folding` replaces them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from kzconsumer.durable_files import refresh_directory
from kzconsumer.errors import DestinationWentBackError
from kzconsumer.model import RangeIdentity
from kzconsumer_files import fold_plan
from kzconsumer_files.fold_plan import Span
from kzconsumer_files.ledger_items import Folded, LedgerItems, by_item, read_all, redundant
from kzconsumer_files.names import LedgerEntry, named, parsed, range_name
from kzconsumer_files.overlap import Overlap, require_apart


class Contents(NamedTuple):
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

    def contents(self) -> Contents:
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
        return Contents(entries, folded)

    def overlaps(self, parts: Collection[RangeIdentity], decided: Iterable[str]) -> dict[RangeIdentity, Overlap]:
        """Those that overlap a settled range or one whose name is in `decided`."""
        entries: dict[str, list[Span]] = {named(range_name(part)).line: [] for part in parts}
        for name in (*decided, *os.listdir(self._items.state)):
            if (entry := parsed(name)) is not None and entry.line in entries:
                entries[entry.line].append(entry.span)
        found: dict[RangeIdentity, Overlap] = {}
        for part in parts:
            line = named(range_name(part)).line
            own = Span(part.first, part.until)
            touched = self._items.folded_contents(line, lambda span, own=own: _overlap(span, own))  # type: ignore[misc]
            try:
                require_apart(part, entries[line], (run for _, folded in touched for run in folded.runs))
            except Overlap as error:
                found[part] = error
        return found

    def _entries(self, line: str) -> list[LedgerEntry]:
        return list(read_all(self._items.entry_files().get(line, ()), LedgerEntry))

    def _is_folded(self, name: str) -> bool:
        line, own = named(name)
        found = self._items.folded_contents(line, lambda span: span.first <= own.first and own.until <= span.until)
        return any(fold_plan.is_within([own], folded.runs) for _, folded in found)


def _overlap(one: Span, other: Span) -> bool:
    return one.first < other.until and other.first < one.until
