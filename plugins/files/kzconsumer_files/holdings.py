"""The ranges that a target of files holds, checked against its files: for `kzconsumer sink verify` and `replay`.

Changes nothing and blocks. Members may be publishing meanwhile: `files` reads in an order in which a range that is
being published does not look like a stray file.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from io import BufferedIOBase
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from kzconsumer.model import OffsetRange
from kzconsumer.sinks.interface import HeldRange
from kzconsumer_files.directory_target import AnyTarget
from kzconsumer_files.fold_plan import Span
from kzconsumer_files.ledger import Folded
from kzconsumer_files.range_names import LedgerEntry, NamedRange, parsed, range_name

_READERS: Final = 8
_PIECE: Final = 1 << 20
_RowsIn: TypeAlias = Callable[[str], int | None]


class Held(NamedTuple):
    """See `kzconsumer.sinks.interface.Holdings`."""

    ranges: tuple[HeldRange, ...]
    strays: tuple[str, ...]
    leftovers: tuple[str, ...]


class Damaged(Exception):
    """A file that the ledger names is missing or unreadable; the text says which."""


def files(target: AnyTarget, kind: str, count_rows: bool) -> Held:
    """What `target`, whose files are of format `kind`, holds. Raises OSError, NotOurs.

    The directory is listed first, then the decisions, then the ledger: a file that was being published while the
    directory was listed is named by one of the others.
    """
    visible = set(target.visible()) if count_rows else set()
    decided = target.decisions()
    ledger, folded = target.ledger()
    entries = [each for each in ledger if not each.kept_aside]
    rows = partial(_rows_in, target, kind)
    named = {name for each in (*entries, *decided) for name in each.files}
    of_folded = FoldedFiles(folded)
    # Listed again: ranges that were published since the first listing may be folded by now.
    late = set(target.visible()) if count_rows and folded else set()
    of_folded.add((visible | late) - named)
    strays = [f"{name} is of no range of the ledger" for name in sorted(visible - named - of_folded.names)]
    names = {range_name(each.identity) for each in ledger}
    undone = [each for each in decided if range_name(each.identity) not in names and not target.has(each.identity)]
    undone_text = "is decided for and not there yet: the next start, or the next write of it, finishes it"
    leftovers = [f"{each.range} {undone_text}" for each in undone]
    leftovers += [kept_aside(each.range) for each in ledger if each.kept_aside]
    leftovers += target.leftovers()
    if not count_rows:
        older = (_held_folded(line, each) for line, each in folded)
        return Held((*older, *(held_range(each) for each in entries)), (), tuple(leftovers))
    with ThreadPoolExecutor(_READERS) as readers:
        counted = readers.map(lambda each: _counted_folded(each[0], each[1], of_folded, rows), folded)
        ranges = (*counted, *readers.map(lambda entry: _counted(entry, rows), entries))
    return Held(ranges, tuple(strays), tuple(leftovers))


class FoldedFiles:
    """Which data files belong to which folded item: items do not list files, so by the ranges in their names."""

    def __init__(self, folded: Iterable[tuple[str, Folded]]) -> None:
        self._runs: dict[str, list[tuple[Span, Folded]]] = {}
        for line, each in folded:
            alias = NamedRange(line, Span(each.first, each.until)).alias
            self._runs.setdefault(alias, []).extend((run, each) for run in each.runs)
        for runs in self._runs.values():
            runs.sort(key=lambda run: run[0])
        self._files: dict[NamedRange, list[str]] = {}
        self.names: set[str] = set()

    def add(self, names: Iterable[str]) -> None:
        """Those of them that belong to a folded item; others are ignored."""
        for name in sorted(names):
            if (found := parsed(os.path.basename(name))) is None:
                continue
            # The name of a file may have a topic shortened that the shorter name of its line has whole.
            runs = self._runs.get(found.alias, [])
            place = bisect_right(runs, found.span.first, key=lambda run: run[0].first)
            if place and found.span.until <= runs[place - 1][0].until:
                item = runs[place - 1][1]
                self._files.setdefault(NamedRange(found.alias, Span(item.first, item.until)), []).append(name)
                self.names.add(name)

    def of(self, line: str, folded: Folded) -> list[str]:
        named = NamedRange(line, Span(folded.first, folded.until))
        return self._files.get(named._replace(line=named.alias), [])


def kept_aside(part: OffsetRange) -> str:
    return f"{part} was set aside, as a member could not write it or its log was cut off: it is never written"


def _rows_in(target: AnyTarget, kind: str, name: str) -> int | None:
    """How many rows a file has; None if its format does not say. Raises Damaged."""
    count = _ROWS.get(kind)
    try:
        with closing(target.open(name)) as file:
            if count is not None:
                return count(file, name)
    except FileNotFoundError:
        raise Damaged(f"{name} is gone") from None
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"{name} cannot be read: {error}") from error
    return None


def _counted(entry: LedgerEntry, rows_in: _RowsIn) -> HeldRange:
    return held_range(entry, *_sum(entry.files, rows_in))


def _counted_folded(line: str, folded: Folded, files: FoldedFiles, rows_in: _RowsIn) -> HeldRange:
    names = files.of(line, folded)
    rows, faults = _sum(names, rows_in)
    if len(names) != folded.files:
        faults = (*faults, f"{len(names)} files are there of {folded.ranges} ranges, which had {folded.files}")
    return _held_folded(line, folded, None if faults else rows, faults)


def _sum(names: Iterable[str], rows_in: _RowsIn) -> tuple[int | None, tuple[str, ...]]:
    rows: int | None = 0
    faults = []
    for name in names:
        try:
            found = rows_in(name)
        except Damaged as damage:
            faults.append(str(damage))
            continue
        rows = rows + found if rows is not None and found is not None else None
    return None if faults else rows, tuple(faults)


def held_range(entry: LedgerEntry, rows: int | None = None, faults: tuple[str, ...] = ()) -> HeldRange:
    return HeldRange(
        identity=entry.identity,
        records_in=entry.records_in,
        records_out=entry.records_out,
        records_quarantined=entry.records_quarantined,
        rows=rows,
        faults=faults,
    )


def _held_folded(line: str, each: Folded, rows: int | None = None, faults: tuple[str, ...] = ()) -> HeldRange:
    return HeldRange(
        identity=NamedRange(line, Span(each.first, each.until)).identity(each.topic),
        records_in=each.records_in,
        records_out=each.records_out,
        records_quarantined=each.records_quarantined,
        rows=rows,
        faults=faults,
        ranges=each.ranges,
        gaps=each.gaps,
    )


def _lines(file: BufferedIOBase, name: str) -> int:
    """Rows of a file of JSON lines. The suffix of its name gives the compression."""
    with pa.input_stream(file, compression=_compression(name)) as stream:
        return sum(piece.count(b"\n") for piece in iter(lambda: stream.read(_PIECE), b""))


def _compression(name: str) -> Any:
    try:
        return pa.Codec.detect(name).name
    except ValueError:
        return None


# Rows of CSV cannot be counted without Spark: a field may contain line ends, escaped by Spark's options.
_ROWS: Final[dict[str, Callable[[Any, str], int]]] = {
    "parquet": lambda file, _: pq.read_metadata(file).num_rows,
    "orc": lambda file, _: orc.ORCFile(file).nrows,
    "json": _lines,
}
