"""What a commit of ours leaves in a table's own history, and what a table holds by that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer.errors import DestinationWentBackError
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import HeldRange
from kzconsumer_files.holdings import Held, held_range, kept_aside
from kzconsumer_files.range_names import (
    AnyRange,
    LedgerEntry,
    RangeOverlap,
    line_epochs,
    lines_before,
    partition_name,
    range_names,
)

_READERS: Final = 8


class CommitNote(msgspec.Struct, frozen=True):
    """The writer and the ranges of one commit."""

    scope: str
    ranges: tuple[LedgerEntry, ...]


def held_by_commits(
    commits: Iterable[CommitNote], place: Callable[[str], Any], active: frozenset[str] | None, notes: Iterable[str]
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


# What a table says of ranges by the end offset of each partition in it: Delta's `txn` versions, properties of
# Iceberg.
#
# A partition is an *application*, whose version is the end of its last range; so is each range that is set aside.


_ASIDE: Final = "+aside"
_UPGRADED: Final = (
    "The group has written that while its cluster had no id, as before Kafka 0.10.1: it was not stopped in order before"
    " the brokers were upgraded"
)


class Positions(NamedTuple):
    """The versions of applications in a table at one moment. `scope` stands for the group."""

    scope: str
    table: str
    """As errors name it."""
    version: Callable[[str], int | None]
    applications: Callable[[], Mapping[str, int]]
    """All of them."""
    former_scope: str = ""
    """See `kzconsumer_spark.worker_protocol.messages.ToDelta`."""

    def reaches(self, part: AnyRange) -> bool:
        """Whether the table has the range, or it can no longer be written."""
        return (self.version(self.application(part)) or 0) >= part.until

    def is_aside(self, part: AnyRange) -> bool:
        return any(self.version(each) is not None for each in self._aside_applications(part))

    def require_behind(self, ranges: Iterable[AnyRange]) -> None:
        """Raises RangeOverlap for a range that begins below the end of its partition and ends above it.

        And for one that begins below the end of a later epoch. (Where that begins is unknown: before a reset to a later
        offset it would skip the records that the reset has skipped.) And for one that begins below what the group has
        written of its partition and epoch before the cluster had an id: it was in flight, and follows no range by which
        that would be noticed.
        """
        parts = list(ranges)
        later: dict[str, int] = {}
        epochs = line_epochs({self.application(part) for part in parts})
        applications = self.applications()
        for name, end in applications.items():
            if not name.endswith(_ASIDE):
                later |= {line: max(end, later.get(line, 0)) for line in lines_before(name, epochs)}
        for part in parts:
            application = self.application(part)
            own, beyond = self.version(application) or 0, later.get(application, 0)
            if part.first < beyond or part.first < own < part.until:
                which, end = (" of a later epoch", beyond) if part.first < beyond else ("", own)
                there = f"the table {self.table} has {part.topic}-{part.partition}{which} up to offset {end}"
                raise RangeOverlap(part, there, max(own, beyond))
            former = applications.get(partition_name(part, self.former_scope), 0) if self.former_scope else 0
            if part.first < former:
                there = f"the table {self.table} has {part.topic}-{part.partition} up to offset {former}"
                raise RangeOverlap(part, there, former, _UPGRADED)

    def require_followed(
        self, follows: Iterable[RangeIdentity], is_elsewhere: Callable[[RangeIdentity], bool] = lambda part: False
    ) -> None:
        """Raises DestinationWentBackError for a range that the table does not reach, unless it `is_elsewhere`.

        For a commit that is made only directly after the state of the table that this is of.
        """
        for part in follows:
            if not self.reaches(part) and not is_elsewhere(part):
                raise DestinationWentBackError(part, self.version(self.application(part)))

    def application(self, part: AnyRange) -> str:
        return partition_name(part, self.scope)

    def _aside_applications(self, part: AnyRange) -> list[str]:
        """The first is that which is written: names of applications have no limit."""
        return [f"{self.scope}+{name}{_ASIDE}" for name in range_names(part)]

    def settled(self, part: AnyRange) -> dict[str, int]:
        """The versions that set a range aside."""
        return {self.application(part): part.until, self._aside_applications(part)[0]: part.until}
