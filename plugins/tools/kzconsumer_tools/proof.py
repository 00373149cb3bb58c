"""Checks that a destination holds what a group has consumed: no gap, no overlap, equal counts.

The group's nodes are read before and after the destination, since members may be writing: the destination must hold at
least what was stored before, and at most what was stored or planned after. A range in flight is never a finding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from kzconsumer.model import RangeIdentity, TopicPartition

if TYPE_CHECKING:
    from kzconsumer.sinks.interface import HeldRange, Holdings, QuarantinedRange

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
    continues, `written` the last range, as (first, until), that was written to the destination with `fingerprint`."""

    incarnation: int
    epoch: int
    stored: int | None
    plan: Planned | None = None
    written: tuple[int, int] | None = None
    fingerprint: str = ""


class ProofFinding(msgspec.Struct, frozen=True, kw_only=True):
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
    findings: tuple[ProofFinding, ...]
    notes: tuple[str, ...]


class _Line(NamedTuple):
    """A partition's offsets of one incarnation and epoch, in which each offset is one record."""

    topic: str
    partition: int
    incarnation: int
    epoch: int


class _Held(NamedTuple):
    ranges: list[HeldRange]
    aside: list[QuarantinedRange]

    @property
    def spans(self) -> list[RangeIdentity]:
        """In order."""
        found = [*(run for each in self.ranges for run in each.runs), *(each.identity for each in self.aside)]
        return sorted(found, key=lambda each: each.first)


def unlisted(before: Mapping[TopicPartition, GroupProgress], holdings: Holdings) -> list[RangeIdentity]:
    """The last ranges that were written to this destination, if it does not list them.

    It may have them all the same: a table's history may not go back so far.
    """
    found = []
    for partition, progress in before.items():
        if progress.written is not None and progress.fingerprint == holdings.fingerprint:
            last = RangeIdentity(*partition, progress.incarnation, progress.epoch, *progress.written)
            runs = (run for each in holdings.ranges for run in each.runs if run[:4] == last[:4])
            if not any(run.first <= last.first and last.until <= run.until for run in runs):
                found.append(last)
    return found


def gaps(
    before: Mapping[TopicPartition, GroupProgress],
    holdings: Holdings,
    aside: Collection[QuarantinedRange],
    lost: Collection[RangeIdentity] = (),
) -> list[RangeIdentity]:
    """Ranges from the destination's first offset to the stored one that are neither there nor in quarantine.

    They are missing only if the log has records of them: a sink does not receive ranges without records. `lost`: those
    `unlisted` that the destination does not have.
    """
    found = []
    began = {_Line(*each[:4]): each.first for each in lost}
    for line, held in _lines(before, holdings, aside).items():
        at: int | None = None
        if line in began and (not held.spans or held.spans[0].first > began[line]):
            at = began[line]
        for identity in held.spans:
            if at is not None and identity.first > at:
                found.append(RangeIdentity(*line, at, identity.first))
            at = max(identity.until, at or 0)
        progress = _progress(before, line)
        if at is not None and progress is not None and (progress.stored or 0) > at:
            found.append(RangeIdentity(*line, at, progress.stored or 0))
    return found


def prove(
    group: str,
    before: Mapping[TopicPartition, GroupProgress],
    holdings: Holdings,
    after: Mapping[TopicPartition, GroupProgress],
    aside: Collection[QuarantinedRange],
    in_log: Mapping[RangeIdentity, InLog],
) -> Proof:
    """The verdict; `in_log` has an entry for each of the `gaps`."""
    # There is no common snapshot of nodes and destination, but plan, publication and commit only move forward. So the
    # destination, which is read between two readings of the nodes, must have all that was stored `before`, and nothing
    # that is neither stored nor planned `after`. It is itself read so: names of files, then decisions, then the ledger;
    # a file that is being published is in one of them. Offsets between two ranges are no gap if the log has no records
    # there.
    lines = _lines(after, holdings, aside)
    findings = [
        *_missing(gaps(before, holdings, aside), in_log),
        *(each for line, held in lines.items() for each in _wrong(line, held, after)),
        *_plans(after, holdings),
        *(ProofFinding(kind="stray", text=each) for each in holdings.strays),
    ]
    return Proof(
        group=group,
        destination=holdings.destination,
        healthy=not findings,
        partitions=tuple(_partition_proof(line, held, _progress(after, line)) for line, held in lines.items()),
        findings=tuple(findings),
        notes=(*_notes(lines, in_log), *_whose_gaps(findings), *holdings.leftovers),
    )


def _lines(
    progress: Mapping[TopicPartition, GroupProgress], holdings: Holdings, aside: Collection[QuarantinedRange]
) -> dict[_Line, _Held]:
    found = {_Line(*each, at.incarnation, at.epoch): _Held([], []) for each, at in progress.items()}
    for held in sorted(holdings.ranges, key=lambda each: each.identity):
        found.setdefault(_Line(*held.identity[:4]), _Held([], [])).ranges.append(held)
    for kept in sorted(aside, key=lambda each: each.identity):
        found.setdefault(_Line(*kept.identity[:4]), _Held([], [])).aside.append(kept)
    return dict(sorted(found.items()))


def _progress(progress: Mapping[TopicPartition, GroupProgress], line: _Line) -> GroupProgress | None:
    """The group's progress in this line; None for a line before a reset, or of a deleted topic."""
    found = progress.get(TopicPartition(line.topic, line.partition))
    return found if found is not None and (found.incarnation, found.epoch) == line[2:] else None


def _missing(found: Iterable[RangeIdentity], in_log: Mapping[RangeIdentity, InLog]) -> Iterable[ProofFinding]:
    texts = {
        "records": "the log has records there that neither the destination nor the quarantine has",
        "gone": "not in the destination, and no longer in the log: it is unknown whether there were records",
        "unknown": "not in the destination; the log could not be read",
    }
    for gap in found:
        if (there := in_log[gap]) != "none":
            yield _finding("gap", gap, texts[there])


def _wrong(line: _Line, held: _Held, after: Mapping[TopicPartition, GroupProgress]) -> Iterable[ProofFinding]:
    last: RangeIdentity | None = None
    for at in sorted(run for each in held.ranges for run in each.runs):
        if last is not None and at.first < last.until:
            text = f"the destination also holds {last.first} to {last.until}: rows may be duplicated"
            yield _finding("overlap", at, text)
        last = at if last is None or at.until > last.until else last
    for each in held.ranges:
        at = each.identity
        yield from (_finding("damaged", at, fault) for fault in each.faults)
        if each.rows is not None and each.rows != each.records_out:
            yield _finding("count", at, f"the ledger says {each.records_out} rows, the destination has {each.rows}")
        if each.records_in > at.until - at.first:
            yield _finding("count", at, f"the ledger says {each.records_in} input records, more than offsets")
    if not held.ranges:
        return
    known = after.get(TopicPartition(line.topic, line.partition))
    whole = RangeIdentity(*line, held.ranges[0].identity.first, max(each.identity.until for each in held.ranges))
    if known is None:
        text = "the group has no claim record of it: a member that joins would start at reset epoch 0 again"
        yield _finding("forgotten", whole, text)
    elif known.incarnation == line.incarnation and known.epoch < line.epoch:
        yield _finding(
            "forgotten", whole, f"the group is in epoch {known.epoch}, which is before the destination's epoch"
        )
    elif (progress := _progress(after, line)) is not None:
        stored = progress.stored or 0
        ahead = [each for each in held.ranges if each.identity.until > stored and not _is_planned(each, progress)]
        if ahead:
            first, until = ahead[0].identity.first, max(each.identity.until for each in ahead)
            at_offset = "no offset is stored" if progress.stored is None else f"the stored offset is {stored}"
            number = sum(each.ranges for each in ahead)
            which = "this range: its records" if number == 1 else f"these {number} ranges: their records"
            text = f"{at_offset} and no plan names {which} would be consumed again"
            yield _finding("ahead", whole._replace(first=first, until=until), text)


def _is_planned(held: HeldRange, progress: GroupProgress) -> bool:
    return progress.plan is not None and progress.plan.identity == held.identity


def _plans(after: Mapping[TopicPartition, GroupProgress], holdings: Holdings) -> Iterable[ProofFinding]:
    published = {each.identity: each for each in holdings.ranges}
    for progress in after.values():
        plan = progress.plan
        if plan is None:
            continue
        if plan.fingerprint != holdings.fingerprint:
            text = "planned for another destination or other columns: members with these settings do not write it"
            yield _finding("plan", plan.identity, text)
        elif plan.identity in published and plan.records not in (None, published[plan.identity].records_in):
            records = published[plan.identity].records_in
            yield _finding("count", plan.identity, f"planned with {plan.records} records, written with {records}")


def _partition_proof(line: _Line, held: _Held, progress: GroupProgress | None) -> PartitionProof:
    spans = held.spans
    rows = [each.rows for each in held.ranges]
    plan = progress.plan.identity if progress is not None and progress.plan is not None else None
    return PartitionProof(
        topic=line.topic,
        partition=line.partition,
        incarnation=f"{line.incarnation:#x}",
        epoch=line.epoch,
        current=progress is not None,
        first=min((each.first for each in spans), default=None),
        until=max((each.until for each in spans), default=None),
        stored=progress.stored if progress is not None else None,
        plan=(plan.first, plan.until) if plan is not None else None,
        ranges=sum(each.ranges for each in held.ranges),
        records_in=sum(each.records_in for each in held.ranges),
        records_out=sum(each.records_out for each in held.ranges),
        records_quarantined=sum(each.records_quarantined for each in held.ranges),
        rows=None if None in rows else sum(each for each in rows if each is not None),
        aside_ranges=len(held.aside),
        aside_records=sum(each.records for each in held.aside),
    )


def _notes(lines: Mapping[_Line, _Held], in_log: Mapping[RangeIdentity, InLog]) -> Iterable[str]:
    for gap, there in in_log.items():
        if there == "none":
            yield f"{gap.topic}-{gap.partition}: the log has no records from {gap.first} to {gap.until}"
    previous: tuple[_Line, _Held] | None = None
    for line, held in lines.items():
        if not held.ranges:
            continue
        if previous is not None and previous[0][:3] == line[:3] and (repeated := _common(previous[1], held)):
            earlier = previous[0].epoch
            text = f"{repeated} offsets of epoch {earlier} were consumed again in epoch {line.epoch}, after a reset"
            yield f"{line.topic}-{line.partition}: {text}"
        previous = line, held
        both = {each.identity for each in held.ranges}.intersection(each.identity for each in held.aside)
        for each in sorted(both):
            text = f"{each.first} to {each.until} is in the sink's quarantine, and was written later"
            yield f"{each.topic}-{each.partition}: {text}"


def _whose_gaps(findings: Iterable[ProofFinding]) -> Iterable[str]:
    if any(each.kind == "gap" for each in findings):
        yield (
            "a gap may be what a member without this sink has consumed, such as an original one: the group's nodes do "
            "not say who has consumed an offset"
        )


def _common(earlier: _Held, later: _Held) -> int:
    ends = [
        (each[0].identity.first, max(part.identity.until for part in each)) for each in (earlier.ranges, later.ranges)
    ]
    return max(0, min(until for _, until in ends) - max(first for first, _ in ends))


def _finding(kind: FindingKind, at: RangeIdentity, text: str) -> ProofFinding:
    return ProofFinding(
        kind=kind,
        topic=at.topic,
        partition=at.partition,
        incarnation=f"{at.incarnation:#x}",
        epoch=at.epoch,
        first=at.first,
        until=at.until,
        text=text,
    )
