"""The ranges that a Delta table holds, from our commits in its log, and the rows in its current files.

A log keeps entries for 30 days unless the table says otherwise; OPTIMIZE, DELETE and MERGE replace our files. Earlier
ranges, and rows in replaced files, are not counted.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer.sinks.reports import HeldRange
from kzconsumer_files.holdings import Held, dead_attempts, held_range, kept_aside
from kzconsumer_files.names import LedgerEntry
from kzconsumer_spark.delta.target import DeltaTarget
from kzconsumer_spark.pipe.messages import ToDelta

_READERS: Final = 8


def held(to: ToDelta, count_rows: bool) -> Held:
    """Raises OSError."""
    target = DeltaTarget(to)
    table = target.open()
    if table is None:
        return Held((), (), tuple(dead_attempts(target.attempts)))
    begins, commits = target.history(table)
    ledger = [entry for commit in commits for entry in commit.ranges]
    entries = [each for each in ledger if not each.kept_aside]
    notes = [kept_aside(each.range) for each in ledger if each.kept_aside]
    notes += dead_attempts(target.attempts)
    if begins > 0:
        notes.append(f"the table's log begins at version {begins}: ranges that were committed before are not looked at")
    if not count_rows:
        return Held(tuple(map(held_range, entries)), (), tuple(notes))
    active = target.files(table)
    with ThreadPoolExecutor(_READERS) as readers:
        ranges = tuple(readers.map(lambda entry: _counted(entry, target.path, active), entries))
    if rewritten := sum(not active.issuperset(entry.files) for entry in entries):
        notes.append(
            f"files of {rewritten} ranges are no longer the table's (OPTIMIZE, say): their rows are not counted"
        )
    return Held(ranges, (), tuple(notes))


def _counted(entry: LedgerEntry, top: Path, active: frozenset[str]) -> HeldRange:
    if not active.issuperset(entry.files):
        return held_range(entry)
    rows = 0
    faults = []
    for name in entry.files:
        try:
            rows += pq.read_metadata(top / name).num_rows
        except FileNotFoundError:
            faults.append(f"{name} is gone")
        except (OSError, pa.ArrowException) as error:
            faults.append(f"{name} cannot be read: {error}")
    return held_range(entry, None if faults else rows, tuple(faults))
