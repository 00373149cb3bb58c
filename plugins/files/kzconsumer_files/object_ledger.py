"""Which ranges of a target in an object store are settled: published, or set aside permanently.

An entry is an object, and entries are not folded. A range, and so its line, may have two names (`names.range_names`).
Calls block, and raise OSError.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from itertools import chain

import msgspec

from kzconsumer.errors import DestinationWentBackError
from kzconsumer.model import RangeIdentity
from kzconsumer_files import fold_plan
from kzconsumer_files.fold_plan import Span
from kzconsumer_files.names import AnyRange, LedgerEntry, NotOurs, named, parsed, range_names
from kzconsumer_files.object_store import ObjectStore
from kzconsumer_files.overlap import Overlap, require_apart


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
    ) -> dict[RangeIdentity, Overlap]:
        """Those that overlap a settled range or one whose name is in `decided`, which was listed before.

        `follows` has at most one range of a line. Raises DestinationWentBackError if it is not settled.
        """
        ahead = [each for each in map(parsed, decided) if each is not None]
        before = {_lines(each): each for each in follows}
        found = {}
        for part in parts:
            lines = _lines(part)
            settled = sorted(chain(*map(self._settled, lines)))
            if (followed := before.get(lines)) is not None:
                self._require(followed, settled)
            try:
                require_apart(part, [each.span for each in ahead if each.line in lines])
                other = next((each for each in settled if each.first < part.until and part.first < each.until), None)
                if other is not None and not self.has(part):
                    raise Overlap(part, other, settled[-1].until)
            except Overlap as error:
                found[part] = error
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
