"""Which ranges of a target in an object store are settled: published, or set aside permanently.

An entry is an object, and entries are not folded. Calls block, and raise OSError.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

import msgspec

from kzconsumer.model import RangeIdentity
from kzconsumer_files.fold_plan import Span
from kzconsumer_files.names import LedgerEntry, NotOurs, named, parsed, range_name
from kzconsumer_files.object_store import ObjectStore
from kzconsumer_files.overlap import Overlap, require_apart


class ObjectLedger:
    """`place`: what the names of its objects begin with."""

    def __init__(self, store: ObjectStore, place: str) -> None:
        self._store = store
        self._place = place
        self._spans: dict[str, list[Span]] = {}  # of settled ranges, by line; those without a gap are one
        self._listed: dict[str, str] = {}  # by line, the last of their names

    def has(self, name: str) -> bool:
        """Whether the range is settled. Once true, it stays true."""
        return self._store.exists(self._entry(name))

    def read(self, name: str) -> LedgerEntry | None:
        """The entry of a range; None if it is not settled. Raises NotOurs if it cannot be decoded."""
        return read_entry(self._store, self._entry(name))

    def enter(self, name: str, entry: LedgerEntry) -> None:
        """Settle a range, unless it is settled."""
        self._store.create(self._entry(name), msgspec.json.encode(entry))

    def objects(self) -> list[str]:
        """The names of its objects, in order, for `read_entry`."""
        return [each.name for each in self._store.listed(self._place)]

    def overlaps(self, parts: Collection[RangeIdentity], decided: Iterable[str]) -> dict[RangeIdentity, Overlap]:
        """Those that overlap a settled range or one whose name is in `decided`, which was listed before."""
        ahead = [each for each in map(parsed, decided) if each is not None]
        found = {}
        for part in parts:
            line = named(range_name(part)).line
            settled = self._settled(line)
            try:
                require_apart(part, [each.span for each in ahead if each.line == line])
                other = next((each for each in settled if each.first < part.until and part.first < each.until), None)
                if other is not None and not self.has(range_name(part)):
                    raise Overlap(part, other, settled[-1].until)
            except Overlap as error:
                found[part] = error
        return found

    def _settled(self, line: str) -> list[Span]:
        """The ranges of a line: new ones lie behind those that were listed before."""
        spans, below = self._spans.setdefault(line, []), f"{self._place}/{line}"
        for each in self._store.listed(below, after=self._listed.get(line)):
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


def read_entry(store: ObjectStore, name: str) -> LedgerEntry | None:
    """The content of an object, that of a decision too; None if there is none. Raises NotOurs if it is unreadable."""
    data = store.read(name)
    try:
        return None if data is None else msgspec.json.decode(data, type=LedgerEntry)
    except msgspec.DecodeError as error:
        raise NotOurs(f"{store}/{name} cannot be read: {error}") from error
