"""What `sink verify` reports: findings, and the proof of each partition."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from kzconsumer.model import RangeIdentity

FindingKind = Literal["gap", "overlap", "ahead", "forgotten", "count", "damaged", "stray", "plan"]
InLog = Literal["records", "none", "gone", "unknown"]
"""What the log has of offsets that the destination lacks: records; none (compacted, or control records only); some of
the offsets are not in it any more; nobody could tell."""


class Planned(NamedTuple):
    """A range in flight, and for which destination."""

    identity: RangeIdentity
    records: int
    fingerprint: str


class Standing(msgspec.Struct, frozen=True):
    """What the group's nodes say of a partition: its claim record's incarnation, epoch and plan; the offset at which
    a member goes on."""

    incarnation: int
    epoch: int
    stored: int | None
    plan: Planned | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong. What is not of a partition, or of no range, has None there."""

    kind: FindingKind
    topic: str | None = None
    partition: int | None = None
    incarnation: str | None = None
    epoch: int | None = None
    first: int | None = None
    until: int | None = None
    text: str


class PartitionProof(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of one partition under one incarnation and epoch; `current` are those of its claim record.

    `stored` and `plan` are only known of current ones. `records_in`, `records_out` and `records_quarantined` are the
    ledger's, `rows` those counted (None: not all could be). `aside_*` are ranges that the sink could not write.
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
    """`notes` are worth knowing and nothing is wrong with them."""

    group: str
    destination: str
    healthy: bool
    partitions: tuple[PartitionProof, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
