"""What a destination holds, for `kzconsumer sink verify` and `replay`: its ledger, and what is there of each entry.

Owns no state, changes nothing; blocking. The sink calls it once the destination has been found. Members may be
publishing meanwhile: `files` says by which order of reading a range under way is not taken for a stray.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from kzconsumer.model import OffsetRange
from kzconsumer.sinks.reports import HeldRange
from kzconsumer_spark.fold_plan import Span
from kzconsumer_spark.identity import LedgerEntry, NamedRange, range_name
from kzconsumer_spark.ledger import Folded, FoldedFiles
from kzconsumer_spark.messages import To, ToDelta, ToFiles, ToFunction, ToJdbc
from kzconsumer_spark.private_directory import abandoned
from kzconsumer_spark.target import NotOurs, Target

_READERS: Final = 8
_PIECE: Final = 1 << 20
_RowsIn: TypeAlias = Callable[[str], int | None]


class Held(NamedTuple):
    """See `kzconsumer.sinks.reports.Holdings`."""

    ranges: tuple[HeldRange, ...]
    strays: tuple[str, ...]
    leftovers: tuple[str, ...]


class Damaged(Exception):
    """What the ledger names is not there as it should be; the text says what."""


def described(to: To) -> str:
    match to:
        case ToFiles():
            return f"{to.format} files in {to.path}"
        case ToDelta():
            return f"Delta table {to.path}"
        case ToJdbc():
            return f"table {to.table} at {to.url.removeprefix('jdbc:')}"
        case ToFunction():
            return f"function {to.function}"


def held_by(to: To, quarantine: str | None, count_rows: bool) -> Held:
    """What the destination holds. `quarantine` is where the records that could not be decoded are. Raises OSError."""
    match to:
        case ToFiles():
            found = files(Target(Path(to.path)), to.format, count_rows)
        case ToDelta():
            from kzconsumer_spark.delta_holdings import held

            found = held(to, count_rows)
        case ToJdbc():
            from kzconsumer_spark.jdbc_holdings import JdbcHoldings

            found = JdbcHoldings(to).held(count_rows)
        case ToFunction():
            raise NotOurs("a function cannot be asked what it has done")
    if not count_rows or quarantine is None:
        return found
    return found._replace(ranges=tuple(_with_bad(each, Path(quarantine)) for each in found.ranges))


def finish(to: To) -> None:
    """Have it there what a writer that may be dead has decided for: whoever goes on behind must know of it.

    Raises OSError where that cannot be done.
    """
    if isinstance(to, ToFiles):
        target = Target(Path(to.path))
        decided = [each.identity for each in target.decisions()]
        if left := target.missing(decided):
            raise OSError(f"{range_name(left[0])} is decided for and cannot be published: sink verify says why")


def files(target: Target, kind: str, count_rows: bool) -> Held:
    """The directory is listed first, then what is decided for, then the ledger: a file of a range that was being
    published at the first look is named by one of the others. Of the files named by the ledger nobody takes any away.
    """
    visible = set(_visible(target.path)) if count_rows else set()
    decided = target.decisions()
    ledger, folded = target.ledger()
    entries = [each for each in ledger if not each.kept_aside]
    rows = partial(_rows_in, target.path, kind)
    named = {name for each in (*entries, *decided) for name in each.files}
    of_folded = FoldedFiles(folded)
    # Looked at once more: ranges may have been published since the first look, and folded by now.
    late = set(_visible(target.path)) if count_rows and folded else set()
    of_folded.add((visible | late) - named)
    strays = [f"{name} is of no range of the ledger" for name in sorted(visible - named - of_folded.names)]
    names = {range_name(each.identity) for each in ledger}
    undone = [each for each in decided if range_name(each.identity) not in names and not target.has(each.identity)]
    undone_text = "is decided for and not there yet: whoever meets it next finishes it"
    leftovers = [f"{each.range} {undone_text}" for each in undone]
    leftovers += [kept_aside(each.range) for each in ledger if each.kept_aside]
    leftovers += dead_attempts(target.attempts)
    if not count_rows:
        older = (_held_folded(line, each) for line, each in folded)
        return Held((*older, *(held_range(each) for each in entries)), (), tuple(leftovers))
    with ThreadPoolExecutor(_READERS) as readers:
        counted = readers.map(lambda each: _counted_folded(each[0], each[1], of_folded, rows), folded)
        ranges = (*counted, *readers.map(lambda entry: _counted(entry, rows), entries))
    return Held(ranges, tuple(strays), tuple(leftovers))


def kept_aside(part: OffsetRange) -> str:
    return f"{part} was kept aside by a member that could not write it: nobody writes it any more"


def dead_attempts(attempts: Path) -> Iterator[str]:
    if found := abandoned(attempts):
        size = sum(file.stat().st_size for each in found for file in each.rglob("*") if file.is_file())
        them = "1 dead attempt has" if len(found) == 1 else f"{len(found)} dead attempts have"
        it = "it" if len(found) == 1 else "them"
        yield f"{them} left {size} bytes in {attempts}; the next start removes {it}"


def _visible(top: Path) -> Iterator[str]:
    """The files that readers of Spark, Hive and Arrow see."""
    for directory, below, names in os.walk(top):
        # Spark reads a directory `_column=value`.
        below[:] = [each for each in below if each[0] != "." and (each[0] != "_" or "=" in each)]
        for name in names:
            if name[0] not in "._":
                yield os.path.relpath(os.path.join(directory, name), top)


def _rows_in(top: Path, kind: str, name: str) -> int | None:
    """How many rows a file has; None if its format does not say. Raises Damaged."""
    file, count = top / name, _ROWS.get(kind)
    try:
        if count is not None:
            return count(file)
        file.stat()
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
        identity=NamedRange(line, Span(each.first, each.until)).identity,
        records_in=each.records_in,
        records_out=each.records_out,
        records_quarantined=each.records_quarantined,
        rows=rows,
        faults=faults,
        ranges=each.ranges,
        gaps=each.gaps,
    )


def _with_bad(held: HeldRange, quarantine: Path) -> HeldRange:
    """With a fault where the records put aside are not those that the ledger counts; of folded ranges nobody knows."""
    if not held.records_quarantined or held.ranges > 1:
        return held
    file = quarantine / f"{range_name(held.identity)}.parquet"
    try:
        there = pq.read_metadata(file).num_rows
    except FileNotFoundError:
        return held  # taken away by whoever looks after them
    except (OSError, pa.ArrowException) as error:
        return _faulty(held, f"{file} cannot be read: {error}")
    if there == held.records_quarantined:
        return held
    return _faulty(held, f"{file} holds {there} records, the ledger says {held.records_quarantined}")


def _faulty(held: HeldRange, fault: str) -> HeldRange:
    return msgspec.structs.replace(held, faults=(*held.faults, fault))


def _lines(file: Path) -> int:
    """Rows of JSON: Spark writes each as one line. Compression is told by the name."""
    with pa.input_stream(str(file), compression="detect") as stream:
        return sum(piece.count(b"\n") for piece in iter(lambda: stream.read(_PIECE), b""))


# Of CSV nobody can tell without Spark: a field may hold line ends, escaped as Spark was told to.
_ROWS: Final[dict[str, Callable[[Path], int]]] = {
    "parquet": lambda file: pq.read_metadata(file).num_rows,
    "orc": lambda file: orc.ORCFile(file).nrows,
    "json": _lines,
}
