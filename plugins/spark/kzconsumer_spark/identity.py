"""The names by which a range is known in a target directory, and what its ledger entry says.

Pure. `target` and `parquet_destination` use it. A name holds the whole identity that is not already in the target's
owner marker (cluster, group, sink); it never holds a batch number or an attempt, so two writers of one range meet.
"""

from __future__ import annotations

import msgspec

from kzconsumer.offsets.destination import RangeIdentity
from kzconsumer_spark.messages import SpooledRange


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose ranges a target directory holds: offsets mean nothing without it."""

    version: int = 1
    cluster: str
    group: str
    sink: str = "spark"

    def __str__(self) -> str:
        return f"group {self.group} of cluster {self.cluster or '(unnamed)'}, sink {self.sink}"


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One published range. Counts are records of Kafka that came in and rows that readers see."""

    version: int = 1
    topic: str
    partition: int
    incarnation: str
    epoch: int
    first: int
    until: int
    records_in: int
    records_out: int
    files: tuple[str, ...]


def range_name(part: SpooledRange | RangeIdentity) -> str:
    """`<topic>+<partition>+<incarnation hex>.<epoch>+<first, 20 digits>+<until, 20 digits>`; topics have no `+`."""
    return f"{part.topic}+{part.partition}+{part.incarnation:x}.{part.epoch}+{part.first:020d}+{part.until:020d}"


def data_file(part: SpooledRange) -> str:
    """The name of the one Parquet file of a range that has records."""
    return f"{range_name(part)}.parquet"


def ledger_entry(part: SpooledRange) -> LedgerEntry:
    return LedgerEntry(
        topic=part.topic,
        partition=part.partition,
        incarnation=f"0x{part.incarnation:x}",
        epoch=part.epoch,
        first=part.first,
        until=part.until,
        records_in=part.records,
        records_out=part.records,
        files=(data_file(part),) if part.records else (),
    )
