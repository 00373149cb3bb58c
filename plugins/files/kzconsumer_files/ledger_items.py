"""The files of a ledger: an entry for each range, and folded items that replace entries of consecutive ranges.

Entries are `<range>.json`, folded items `folded/<line>/<level>/<first>+<until>.json` in the state directory; a line is
a partition with its incarnation and epoch. An item of level n+1 contains everything that items of level n (entries:
level 0) said, which are removed once it is on disk. An item is never changed and stays true, and what makes it
redundant is always of a higher level: a reader that goes **from the lowest level upwards** finds all published ranges,
whatever is folded meanwhile. Where an entry and a folded item disagree, the item is right: a late writer may enter a
range again that was folded long ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec

from kzconsumer_files import fold_plan
from kzconsumer_files.fold_plan import Item, Span
from kzconsumer_files.names import LedgerEntry, parsed


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
