"""What `sink verify` reports: findings, and the proof of each partition."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from kzconsumer.model import RangeIdentity

FindingKind = Literal["gap", "overlap", "ahead", "forgotten", "count", "damaged", "stray", "plan"]
InLog = Literal["records", "none", "gone", "unknown"]
"""What the log has of offsets that the destination lacks: records; none (compacted, or control records only); not all
of the offsets any more; unknown, as it could not be read."""


class Planned(NamedTuple):
    """The plan of a claim record: a range in flight, its records if counted, the fingerprint of its destination."""

    identity: RangeIdentity
    records: int | None
    fingerprint: str


class GroupProgress(msgspec.Struct, frozen=True):
    """A partition in the group's nodes: incarnation, epoch and plan of its claim record; `stored` is where a member
    continues."""

    incarnation: int
    epoch: int
    stored: int | None
    plan: Planned | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. Fields that do not apply, for a fault outside any partition or range, are None."""

    kind: FindingKind
    topic: str | None = None
    partition: int | None = None
    incarnation: str | None = None
    epoch: int | None = None
    first: int | None = None
    until: int | None = None
    text: str


class PartitionProof(msgspec.Struct, frozen=True, kw_only=True):
    """One partition in one incarnation and epoch; `current` if its claim record has the same.

    `stored` and `plan` are known for current ones only. `records_in`, `records_out` and `records_quarantined` are from
    the ledger, `rows` is counted (None: could not be counted). `aside_*`: ranges that the sink could not write.
    """

    topic: str
    partition: int
    incarnation: str
    epoch: int
    current: bool
    first: int | None
    until: int | None
    stored: int | None
    plan: tuple[int, int] | None
    ranges: int
    records_in: int
    records_out: int
    records_quarantined: int
    rows: int | None
    aside_ranges: int
    aside_records: int


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """`findings` are faults, `notes` are not."""

    group: str
    destination: str
    healthy: bool
    partitions: tuple[PartitionProof, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
