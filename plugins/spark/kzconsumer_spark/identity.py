"""The names by which a range is known in a target directory, what its ledger entry says, whose it is.

Pure. `target` and the destinations use it. A name holds the whole identity that is not already in the target's owner
marker (cluster, group, sink); it never holds a batch number or an attempt, so two writers of one range meet.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

import msgspec

from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer_spark.fold_plan import Span
from kzconsumer_spark.messages import SpooledRange

RANGE_TOPIC: Final = "_kz_topic"
RANGE_PARTITION: Final = "_kz_partition"
#: By these columns a staged row is known to be of a range: a batch has never two ranges of one partition.
RANGE_COLUMNS: Final = (RANGE_TOPIC, RANGE_PARTITION)
#: Of a row staged in a database: Spark's `monotonically_increasing_id`, the task's partition above and the row below.
STAGED_ROW: Final = "_kz_row"

_RANGE: Final = re.compile(r"([^+]+\+\d+\+-?[0-9a-f]+\.\d+)\+(\d+)\+(\d+)(?=[.+]|$)")


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose ranges a destination holds: offsets mean nothing without it."""

    version: int = 1
    cluster: str
    group: str
    sink: str = "spark"

    def __str__(self) -> str:
        return f"group {self.group} of cluster {self.cluster or '(unnamed)'}, sink {self.sink}"


class Marker(Owner, frozen=True, kw_only=True):
    """The owner as a target directory knows it. `id` is made with the directory and tells it from any other."""

    id: str

    @property
    def owner(self) -> Owner:
        return Owner(version=self.version, cluster=self.cluster, group=self.group, sink=self.sink)


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One published range. Counts are records of Kafka that came in and rows that readers see, in `files`.

    `attempt` names the directory in which the files were staged. A range that was `kept_aside` has none: its writer
    could not do it, its records are in the sink's quarantine, and never here.
    """

    version: int = 1
    topic: str
    partition: int
    incarnation: str
    epoch: int
    first: int
    until: int
    records_in: int
    records_out: int
    records_quarantined: int
    files: tuple[str, ...]
    attempt: str
    kept_aside: bool = False

    @property
    def identity(self) -> RangeIdentity:
        incarnation = int(self.incarnation.removeprefix("0x"), 16)
        return RangeIdentity(self.topic, self.partition, incarnation, self.epoch, self.first, self.until)

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.first, self.until)


def range_name(part: SpooledRange | RangeIdentity) -> str:
    """`<topic>+<partition>+<incarnation hex>.<epoch>+<first, 20 digits>+<until, 20 digits>`; topics have no `+`."""
    return f"{part.topic}+{part.partition}+{part.incarnation:x}.{part.epoch}+{part.first:020d}+{part.until:020d}"


def scope(cluster: str, group: str, sink: str) -> str:
    """What tells names of one group from those of all others, 16 hexadecimal digits."""
    return hashlib.blake2b(msgspec.json.encode([cluster, group, sink]), digest_size=8).hexdigest()


def partition_name(part: SpooledRange | RangeIdentity, scope: str) -> str:
    """What all ranges of a partition, incarnation and epoch have in common, and no others of any group."""
    return f"{scope}+{part.topic}+{part.partition}+{part.incarnation:x}.{part.epoch}"


def data_file(part: SpooledRange, extension: str = "parquet", number: int = 0) -> str:
    """The name of a range's file in one directory, or of one of them: the further ones carry a number."""
    further = f"+{number}" if number else ""
    return f"{range_name(part)}{further}.{extension}"


def ledger_entry(part: SpooledRange, rows: int, quarantined: int, files: tuple[str, ...], attempt: str) -> LedgerEntry:
    return LedgerEntry(
        topic=part.topic,
        partition=part.partition,
        incarnation=f"0x{part.incarnation:x}",
        epoch=part.epoch,
        first=part.first,
        until=part.until,
        records_in=part.records,
        records_out=rows,
        records_quarantined=quarantined,
        files=files,
        attempt=attempt,
    )


def aside_entry(part: RangeIdentity, records: int, attempt: str) -> LedgerEntry:
    return LedgerEntry(
        **{**part._asdict(), "incarnation": f"0x{part.incarnation:x}"},
        records_in=records,
        records_out=0,
        records_quarantined=0,
        files=(),
        attempt=attempt,
        kept_aside=True,
    )


def fingerprint(*what: object) -> str:
    """Of everything that decides which rows a range becomes, and where; what shapes the rows belongs here too."""
    return hashlib.blake2b(msgspec.json.encode(what), digest_size=8).hexdigest()


class NamedRange(NamedTuple):
    """What the name of a range, or of a file of it, says."""

    line: str
    span: Span

    @property
    def identity(self) -> RangeIdentity:
        topic, partition, rest = self.line.split("+")
        incarnation, epoch = rest.rsplit(".", 1)
        return RangeIdentity(topic, int(partition), int(incarnation, 16), int(epoch), *self.span)


def named(name: str) -> NamedRange:
    """The range of a name that `range_name` made."""
    found = parsed(name)
    assert found is not None, name
    return found


def parsed(name: str) -> NamedRange | None:
    """None for a name of something else."""
    found = _RANGE.match(name)
    return None if found is None else NamedRange(found[1], Span(int(found[2]), int(found[3])))
