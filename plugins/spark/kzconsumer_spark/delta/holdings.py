"""The ranges that a Delta table holds, from our commits in its log, and the rows in its current files.

A log keeps entries for 30 days unless the table says otherwise; OPTIMIZE, DELETE and MERGE replace our files. Earlier
ranges, and rows in replaced files, are not counted.
"""

from __future__ import annotations

from kzconsumer_files.holdings import Held
from kzconsumer_files.private_directory import dead_attempts
from kzconsumer_spark.delta.target import DeltaTarget
from kzconsumer_spark.pipe.messages import ToDelta
from kzconsumer_spark.ranges.committed import held_by_commits


def held(to: ToDelta, count_rows: bool) -> Held:
    """Raises OSError."""
    target = DeltaTarget(to)
    notes = list(dead_attempts(target.attempts))
    table = target.open()
    if table is None:
        return Held((), (), tuple(notes))
    begins, commits = target.history(table)
    if begins > 0:
        notes.append(f"the table's log begins at version {begins}: ranges that were committed before are not looked at")
    return held_by_commits(commits, target.read, target.files(table) if count_rows else None, notes)
