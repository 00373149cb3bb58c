"""The ranges that an Iceberg table holds, from the snapshots that it keeps, and the rows in its current files."""

from __future__ import annotations

from kzconsumer_files.holdings import Held
from kzconsumer_files.private_directory import dead_attempts
from kzconsumer_spark.iceberg.target import IcebergTarget
from kzconsumer_spark.pipe.messages import ToIceberg
from kzconsumer_spark.ranges.committed import held_by_commits


def held(to: ToIceberg, count_rows: bool) -> Held:
    """Raises OSError."""
    target = IcebergTarget(to)
    table = target.open()
    complete, commits = target.history(table)
    notes = list(dead_attempts(target.attempts))
    if not complete:
        notes.append(
            "the table's first snapshots may have expired: ranges that were committed in them are not looked at"
        )
    return held_by_commits(commits, target.reader(table), target.files(table) if count_rows else None, notes)
