"""What a commit of ours leaves in a table's own history, and what a table holds by that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer.sinks.reports import HeldRange
from kzconsumer_files.holdings import Held, held_range, kept_aside
from kzconsumer_files.names import LedgerEntry

_READERS: Final = 8


class Committed(msgspec.Struct, frozen=True):
    """The writer and the ranges of one commit."""

    scope: str
    ranges: tuple[LedgerEntry, ...]


def held_by_commits(
    commits: Iterable[Committed], place: Callable[[str], Any], active: frozenset[str] | None, notes: Iterable[str]
) -> Held:
    """The ranges of the commits; with `active`, the table's current files, their rows are counted.

    `place` opens a file. Files that were replaced since (by a compaction, DELETE, MERGE) are
    not counted. Raises OSError.
    """
    ledger = [entry for commit in commits for entry in commit.ranges]
    entries = [each for each in ledger if not each.kept_aside]
    leftovers = [*(kept_aside(each.range) for each in ledger if each.kept_aside), *notes]
    if active is None:
        return Held(tuple(map(held_range, entries)), (), tuple(leftovers))
    with ThreadPoolExecutor(_READERS) as readers:
        ranges = tuple(readers.map(lambda entry: _counted(entry, place, active), entries))
    if rewritten := sum(not active.issuperset(entry.files) for entry in entries):
        leftovers.append(
            f"files of {rewritten} ranges are no longer the table's (compaction, say): their rows are not counted"
        )
    return Held(ranges, (), tuple(leftovers))


def _counted(entry: LedgerEntry, place: Callable[[str], Any], active: frozenset[str]) -> HeldRange:
    if not active.issuperset(entry.files):
        return held_range(entry)
    rows = 0
    faults = []
    for name in entry.files:
        try:
            with closing(place(name)) as file:
                rows += pq.read_metadata(file).num_rows
        except FileNotFoundError:
            faults.append(f"{name} is gone")
        except (OSError, pa.ArrowException) as error:
            faults.append(f"{name} cannot be read: {error}")
    return held_range(entry, None if faults else rows, tuple(faults))
