"""Which files of a target become one: neighbours in the ledger and in one directory, small, and of the same columns.

Pure. `compaction` gives it the ledger and what the footers say, and carries out what it finds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple, TypeAlias

from kzconsumer.model import RangeIdentity
from kzconsumer_spark.identity import LedgerEntry, range_name

#: A file of this part of what is wanted is large enough: else every run would write it anew.
_LARGE: Final = 2


class File(NamedTuple):
    """A file as its footer has it. `kind` is equal for files that can be one: columns, types, compression."""

    name: str
    rows: int
    size: int
    kind: str


class Union(NamedTuple):
    """These files, in the order of their offsets, are to be the file `name`; names are below the target."""

    name: str
    files: tuple[File, ...]


Look: TypeAlias = Callable[[str], File | None]


class _Piece(NamedTuple):
    first: RangeIdentity
    last: RangeIdentity
    file: File | None


def unions(
    entries: Sequence[LedgerEntry],
    current: Callable[[str], str],
    look: Look,
    is_taken: Callable[[str], bool],
    size: int,
) -> Iterator[Union]:
    """What is to be merged into files of at most about `size` bytes.

    `current` says which file has the rows of one that a ledger entry names; `look` what that file is, or None where it
    is to be left alone; `is_taken` whether a name means, or has ever meant, other rows. What is left alone, or missing
    between two ranges, is never bridged: a name says that all of it is there.
    """
    for neighbours in _neighbours(entries):
        directories: dict[PurePath, dict[str, _Piece]] = defaultdict(dict)
        for entry in neighbours:
            own = entry.identity
            for name in map(current, entry.files):
                pieces = directories[PurePath(name).parent]
                if name in pieces:
                    pieces[name] = pieces[name]._replace(last=own)
                else:
                    pieces[name] = _Piece(own, own, look(name))
        for directory, pieces in sorted(directories.items()):
            for group in _groups(list(pieces.values()), size):
                whole = group[0].first._replace(until=group[-1].last.until)
                name = str(directory / f"{range_name(whole)}.parquet")
                if not is_taken(name):
                    yield Union(name, tuple(each.file for each in group if each.file is not None))


def _neighbours(entries: Sequence[LedgerEntry]) -> Iterator[list[LedgerEntry]]:
    """Published ranges of one partition, each beginning where the one before it ends."""
    found: list[LedgerEntry] = []
    for entry in sorted(entries, key=lambda each: each.identity):
        if entry.kept_aside:
            continue
        if found and not _follows(found[-1], entry):
            yield found
            found = []
        found.append(entry)
    if found:
        yield found


def _follows(before: LedgerEntry, after: LedgerEntry) -> bool:
    one, other = before.identity, after.identity
    return one[:4] == other[:4] and one.until == other.first


def _groups(pieces: Sequence[_Piece], size: int) -> list[list[_Piece]]:
    groups: list[list[_Piece]] = [[]]
    held, kind = 0, ""
    for piece in pieces:
        file = piece.file
        if file is None or file.size * _LARGE >= size:
            groups.append([])
            held = 0
            continue
        if file.kind != kind or held + file.size > size:
            groups.append([])
            held = 0
        groups[-1].append(piece)
        held, kind = held + file.size, file.kind
    return [each for each in groups if len(each) > 1]
