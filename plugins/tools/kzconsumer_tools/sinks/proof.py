"""Whether a destination holds what a group has consumed: no gap, no overlap, the same counts everywhere.

Pure. `kzconsumer sink verify` reads the group's nodes, then the destination, then the nodes again, and calls this.
Members may be at work meanwhile, so the destination must hold at least what was stored before it was read, and at most
what was stored or planned after: a range in flight is never a finding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.sinks.reports import HeldRange, Holdings, KeptRange
from kzconsumer_tools.sinks.findings import Finding, FindingKind, InLog, PartitionProof, Proof, Standing


class _Line(NamedTuple):
    """The offsets of one partition that mean the same records, numbered once."""

    topic: str
    partition: int
    incarnation: int
    epoch: int


class _Held(NamedTuple):
    ranges: list[HeldRange]
    aside: list[KeptRange]

    @property
    def spans(self) -> list[RangeIdentity]:
        """In order."""
        found = [*(run for each in self.ranges for run in each.runs), *(each.identity for each in self.aside)]
        return sorted(found, key=lambda each: each.first)


def gaps(
    before: Mapping[TopicPartition, Standing], holdings: Holdings, aside: Collection[KeptRange]
) -> list[RangeIdentity]:
    """Offsets between the first that the destination holds and the stored one that are neither there nor in quarantine.

    Where the log has no records of them nothing is missing: ranges without records are not given to a sink.
    """
    found = []
    for line, held in _lines(before, holdings, aside).items():
        at: int | None = None
        for identity in held.spans:
            if at is not None and identity.first > at:
                found.append(RangeIdentity(*line, at, identity.first))
            at = max(identity.until, at or 0)
        standing = _standing(before, line)
        if at is not None and standing is not None and (standing.stored or 0) > at:
            found.append(RangeIdentity(*line, at, standing.stored or 0))
    return found


def prove(
    group: str,
    before: Mapping[TopicPartition, Standing],
    holdings: Holdings,
    after: Mapping[TopicPartition, Standing],
    aside: Collection[KeptRange],
    in_log: Mapping[RangeIdentity, InLog],
) -> Proof:
    """The verdict; `in_log` has an answer for each of the `gaps`."""
    lines = _lines(after, holdings, aside)
    findings = [
        *_missing(gaps(before, holdings, aside), in_log),
        *(each for line, held in lines.items() for each in _wrong(line, held, after)),
        *_plans(after, holdings),
        *(Finding(kind="stray", text=each) for each in holdings.strays),
    ]
    return Proof(
        group=group,
        destination=holdings.destination,
        healthy=not findings,
        partitions=tuple(_told(line, held, _standing(after, line)) for line, held in lines.items()),
        findings=tuple(findings),
        notes=(*_notes(lines, in_log), *holdings.leftovers),
    )


def _lines(
    standings: Mapping[TopicPartition, Standing], holdings: Holdings, aside: Collection[KeptRange]
) -> dict[_Line, _Held]:
    found = {_Line(*each, at.incarnation, at.epoch): _Held([], []) for each, at in standings.items()}
    for held in sorted(holdings.ranges, key=lambda each: each.identity):
        found.setdefault(_Line(*held.identity[:4]), _Held([], [])).ranges.append(held)
    for kept in sorted(aside, key=lambda each: each.identity):
        found.setdefault(_Line(*kept.identity[:4]), _Held([], [])).aside.append(kept)
    return dict(sorted(found.items()))


def _standing(standings: Mapping[TopicPartition, Standing], line: _Line) -> Standing | None:
    """What the group says of these very offsets; None of those of before a reset, or of a former topic."""
    found = standings.get(TopicPartition(line.topic, line.partition))
    return found if found is not None and (found.incarnation, found.epoch) == line[2:] else None


def _missing(found: Iterable[RangeIdentity], in_log: Mapping[RangeIdentity, InLog]) -> Iterable[Finding]:
    said = {
        "records": "the log has records there that neither the destination nor the quarantine has",
        "gone": "not in the destination, and not in the log any more: nobody can tell whether there were records",
        "unknown": "not in the destination, and whether the log has records there could not be found out",
    }
    for gap in found:
        if (there := in_log[gap]) != "none":
            yield _finding("gap", gap, said[there])


def _wrong(line: _Line, held: _Held, after: Mapping[TopicPartition, Standing]) -> Iterable[Finding]:
    last: RangeIdentity | None = None
    for at in sorted(run for each in held.ranges for run in each.runs):
        if last is not None and at.first < last.until:
            text = f"the destination also holds {last.first} to {last.until}: rows may be there twice"
            yield _finding("overlap", at, text)
        last = at if last is None or at.until > last.until else last
    for each in held.ranges:
        at = each.identity
        yield from (_finding("damaged", at, fault) for fault in each.faults)
        if each.rows is not None and each.rows != each.records_out:
            yield _finding("count", at, f"the ledger says {each.records_out} rows, the destination has {each.rows}")
        if each.records_in > at.until - at.first:
            yield _finding("count", at, f"the ledger says that {each.records_in} records came in: more than offsets")
    if not held.ranges:
        return
    known = after.get(TopicPartition(line.topic, line.partition))
    whole = RangeIdentity(*line, held.ranges[0].identity.first, max(each.identity.until for each in held.ranges))
    if known is None:
        text = "the group has no claim record of it: a member that joins would begin at its reset epoch 0 again"
        yield _finding("forgotten", whole, text)
    elif known.incarnation == line.incarnation and known.epoch < line.epoch:
        yield _finding("forgotten", whole, f"the group is in epoch {known.epoch}, where the destination has been on")
    elif (standing := _standing(after, line)) is not None:
        for each in held.ranges:
            if each.identity.until > (standing.stored or 0) and not _is_planned(each, standing):
                at_offset = (
                    "no offset is stored" if standing.stored is None else f"the stored offset is {standing.stored}"
                )
                text = f"{at_offset} and no plan names this range: its records would be consumed again"
                yield _finding("ahead", each.identity, text)


def _is_planned(held: HeldRange, standing: Standing) -> bool:
    return standing.plan is not None and standing.plan.identity == held.identity


def _plans(after: Mapping[TopicPartition, Standing], holdings: Holdings) -> Iterable[Finding]:
    published = {each.identity: each for each in holdings.ranges}
    for standing in after.values():
        plan = standing.plan
        if plan is None:
            continue
        if plan.fingerprint != holdings.fingerprint:
            text = "planned for another destination or other columns: members with these settings leave it alone"
            yield _finding("plan", plan.identity, text)
        elif plan.identity in published and published[plan.identity].records_in != plan.records:
            records = published[plan.identity].records_in
            yield _finding("count", plan.identity, f"planned with {plan.records} records, written with {records}")


def _told(line: _Line, held: _Held, standing: Standing | None) -> PartitionProof:
    spans = held.spans
    rows = [each.rows for each in held.ranges]
    plan = standing.plan.identity if standing is not None and standing.plan is not None else None
    return PartitionProof(
        topic=line.topic,
        partition=line.partition,
        incarnation=f"{line.incarnation:#x}",
        epoch=line.epoch,
        current=standing is not None,
        first=min((each.first for each in spans), default=None),
        until=max((each.until for each in spans), default=None),
        stored=standing.stored if standing is not None else None,
        plan=(plan.first, plan.until) if plan is not None else None,
        ranges=sum(each.ranges for each in held.ranges),
        records_in=sum(each.records_in for each in held.ranges),
        records_out=sum(each.records_out for each in held.ranges),
        records_quarantined=sum(each.records_quarantined for each in held.ranges),
        rows=None if None in rows else sum(each for each in rows if each is not None),
        aside_ranges=len(held.aside),
        aside_records=sum(each.records or 0 for each in held.aside),
    )


def _notes(lines: Mapping[_Line, _Held], in_log: Mapping[RangeIdentity, InLog]) -> Iterable[str]:
    for gap, there in in_log.items():
        if there == "none":
            yield f"{gap.topic}-{gap.partition}: the log has no records from {gap.first} to {gap.until}"
    previous: tuple[_Line, _Held] | None = None
    for line, held in lines.items():
        if not held.ranges:
            continue
        if previous is not None and previous[0][:3] == line[:3] and (again := _common(previous[1], held)):
            earlier = previous[0].epoch
            text = f"{again} offsets of epoch {earlier} were consumed again in epoch {line.epoch}, after a reset"
            yield f"{line.topic}-{line.partition}: {text}"
        previous = line, held
        both = {each.identity for each in held.ranges}.intersection(each.identity for each in held.aside)
        for each in sorted(both):
            text = f"{each.first} to {each.until} is in the sink's quarantine, and was written after all"
            yield f"{each.topic}-{each.partition}: {text}"


def _common(earlier: _Held, later: _Held) -> int:
    ends = [
        (each[0].identity.first, max(part.identity.until for part in each)) for each in (earlier.ranges, later.ranges)
    ]
    return max(0, min(until for _, until in ends) - max(first for first, _ in ends))


def _finding(kind: FindingKind, at: RangeIdentity, text: str) -> Finding:
    return Finding(
        kind=kind,
        topic=at.topic,
        partition=at.partition,
        incarnation=f"{at.incarnation:#x}",
        epoch=at.epoch,
        first=at.first,
        until=at.until,
        text=text,
    )
