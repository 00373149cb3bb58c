"""Decides from the evidence of a run whether its members kept their promises. Nothing here reads a clock or a file.

Of all members: every record is delivered at least once, and twice only where `repeats.explained` finds the cause. Of
ours also what the ownership and each stored offset must be:

- It delivers only what it owns. After a release or a stop that is nothing more; after a lost session what
  the application was being given when the process was suspended; after another program has deleted its owner
  node what it delivers until it is notified.
- It begins where the stored offset is, and skips nothing.
- It stores offsets only of what it owns, never ahead of what it has delivered, and never backwards.
- It deletes no owner node of another member, stops with status 0, and does not end by itself.

An original or kafka-node member may also deliver the response that it has in hand when it releases a partition, and
anything after it has lost its session or its node, because it does not notice that until it rebalances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from signal import SIGTERM
from typing import NamedTuple

from tests.interop.attribution import CLOCK, Attribution, Reading
from tests.interop.evidence import Delivery, Evidence, Exit, Kind
from tests.interop.history import End, Stored
from tests.interop.repeats import explained

NOTICE = 2.0
"""Seconds until a member of ours is notified that its owner node is gone, on a busy machine."""
IN_HAND = 1
"""Records that a member of ours with one stream may deliver after it was suspended: the one in its hands."""
RESPONSE = 250
"""Records that a response of `FETCH_BYTES` may have, each of 33 bytes or more (`programs`)."""


class Violation(NamedTuple):
    kind: str
    partition: int
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: partition {self.partition}: {self.what}"


@dataclass
class Verdict:
    violations: list[Violation] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)
    """Why -> how many records were delivered again."""
    unexplained: int = 0
    lost: int = 0
    lost_by_original: int = 0
    """A record that an original member counted as delivered before it handed it out, and then ended."""


def judge(evidence: Evidence) -> Verdict:
    attribution = Attribution(evidence)
    verdict = Verdict()
    verdict.violations += _ended(evidence)
    verdict.violations += _unowned(attribution)
    for reading in attribution.readings:
        verdict.violations += _late(reading)
        if reading.life.kind is Kind.OURS:
            verdict.violations += _read(reading, attribution)
    verdict.violations += _deleted(attribution)
    verdict.violations += _stored(attribution)
    _losses(evidence, attribution, verdict)
    _repeats(evidence, attribution, verdict)
    return verdict


def _ended(evidence: Evidence) -> Iterator[Violation]:
    for life in evidence.lives:
        if life.kind is not Kind.OURS:
            continue
        if life.exit is Exit.BY_ITSELF:
            yield Violation("member ended", -1, f"{life} at {life.ended:.3f}, status {life.status}")
        elif life.stopping <= life.ended and life.status not in (0, -SIGTERM):
            what = f"{life} was stopped at {life.stopping:.3f}, ended at {life.ended:.3f}, status {life.status}"
            yield Violation("member ended", -1, what)


def _unowned(attribution: Attribution) -> Iterator[Violation]:
    for life, delivery in attribution.unowned:
        yield Violation("not owned", delivery.partition, f"{life} delivered {_text(delivery)} before it owned anything")


def _late(reading: Reading) -> Iterator[Violation]:
    """What is delivered after the ownership has ended, beyond what may be in flight then."""
    late, owned = reading.late, reading.owned
    if reading.life.kind is not Kind.OURS:
        orderly = owned.end in (End.RELEASED, End.CLOSED) and not reading.session_lost
        allowed = RESPONSE if orderly else len(late)
    elif owned.end is End.TAKEN:
        allowed = sum(each.at <= owned.ended + NOTICE for each in late)
    else:
        allowed = IN_HAND if reading.session_lost else 0
    if len(late) > allowed:
        what = f"{len(late)} records delivered after the end, {allowed} may be, from {_text(late[0])}: {reading}"
        yield Violation("not owned", owned.partition, what)


def _read(reading: Reading, attribution: Attribution) -> Iterator[Violation]:
    """Of ours: where it began, and what it skipped."""
    if not reading.delivered:
        return
    first = reading.delivered[0]
    if first.offset not in (starts := attribution.starts(reading)):
        what = f"began at {_text(first)}, stored was {starts}: {reading}"
        yield Violation("began elsewhere", reading.owned.partition, what)
    for one, following in pairwise(reading.delivered):
        if following.offset != one.offset + 1:
            what = f"{_text(one)} is followed by {_text(following)}: {reading}"
            yield Violation("skipped" if following.offset > one.offset else "went back", reading.owned.partition, what)


def _deleted(attribution: Attribution) -> Iterator[Violation]:
    for reading in attribution.readings:
        owned = reading.owned
        by = attribution.life(owned.ended_by, owned.ended) if owned.end is End.TAKEN else None
        if by is not None and by.kind is Kind.OURS:
            yield Violation("not released", owned.partition, f"{by} deleted the owner node of {reading}")


def _stored(attribution: Attribution) -> Iterator[Violation]:
    """Of ours: each offset is stored by the owner, after the record before it was delivered, and never backwards."""
    by_owner: set[tuple[int, int]] = set()
    for reading in attribution.readings:
        if reading.life.kind is Kind.OURS:
            stored = attribution.stored_by(reading)
            by_owner.update((each.zxid, each.partition) for each in stored)
            yield from _in_order(reading, stored, attribution)
    for all_stored in attribution.stored.values():
        for each in all_stored:
            if attribution.kind(each) is Kind.OURS and (each.zxid, each.partition) not in by_owner:
                yield Violation("stored unowned", each.partition, _stored_text(each))


def _in_order(reading: Reading, stored: list[Stored], attribution: Attribution) -> Iterator[Violation]:
    delivered = iter(reading.delivered)
    following = next(delivered, None)
    last = 0
    reached = following.offset if following is not None else max(attribution.starts(reading), default=0)
    for each in stored:
        while following is not None and following.at <= each.at + CLOCK:
            reached = max(reached, following.offset + 1)
            following = next(delivered, None)
        if each.offset > reached:
            yield Violation("stored ahead", each.partition, f"{_stored_text(each)}, delivered up to {reached}")
        if each.offset < last:
            yield Violation("stored backwards", each.partition, f"{_stored_text(each)}, before {last}")
        last = each.offset


def _losses(evidence: Evidence, attribution: Attribution, verdict: Verdict) -> None:
    delivered = {(each.partition, each.offset) for life in evidence.lives for each in life.delivered}
    by_original = {
        (partition, stored.offset - 1)
        for partition, all_stored in attribution.stored.items()
        for stored in all_stored
        if attribution.kind(stored) is Kind.ORIGINAL
    }
    for partition, sent in evidence.sent.items():
        missing = {(partition, offset) for offset in range(sent)} - delivered
        verdict.lost_by_original += len(missing & by_original)
        lost = sorted(missing - by_original)
        verdict.lost += len(lost)
        if lost:
            what = f"{len(lost)} records were never delivered, the first is {lost[0][1]}"
            verdict.violations.append(Violation("lost", partition, what))


def _repeats(evidence: Evidence, attribution: Attribution, verdict: Verdict) -> None:
    for (partition, offset), handed in attribution.of_record().items():
        for first, second in pairwise(handed):
            if why := explained(offset, first, second, attribution, evidence.disturbed):
                verdict.repeats[why] += 1
                continue
            verdict.unexplained += 1
            times = f"at {first.at:.3f} by {first.reading}, at {second.at:.3f} by {second.reading}"
            verdict.violations.append(Violation("repeated", partition, f"{offset} was delivered {times}"))


def _text(delivery: Delivery) -> str:
    return f"{delivery.offset} at {delivery.at:.3f}"


def _stored_text(stored: Stored) -> str:
    return f"{stored.writer} stored {stored.offset} at {stored.at:.3f}"
