"""Why a record was delivered again: a crash, a known weakness of the original or of kafka-node, or else a bug.

The owner that delivered it first has either stored an offset beyond it, or not. If not, it must have been prevented. If
it has, the later owner must have begun at another offset for a reason.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import takewhile

from tests.interop.attribution import Attribution, Handed, Reading, overlap
from tests.interop.evidence import Exit, Kind, Span
from tests.interop.history import End, Stored

SESSION = 6.0
COMMIT_INTERVAL = 0.5
"""Of the members, in seconds (`programs`)."""
CRASH_WINDOW = SESSION + COMMIT_INTERVAL + 6.0
"""What was delivered longer before the end of a lost session than this must have been stored. A killed member delivers
until its death, which is a session timeout before that end; the rest is for a busy machine."""
HAND_OVER = 3.0
"""Seconds before a release in which an original or kafka-node member may deliver what it does not commit: neither
stops what delivers before it commits."""
READ_BEFORE = 5.0
"""An original reads the stored offsets before it claims; seconds between the two on a busy machine."""
RELEASE = 6.0
"""Seconds that a release of ours may take: `[group] revoke_deadline`, and the commit after it."""


def explained(offset: int, first: Handed, second: Handed, attribution: Attribution, disturbed: Sequence[Span]) -> str:
    """The reason for the second delivery of a record; empty if there is none."""
    before, then = first.reading, second.reading
    if second.late:
        return f"{then.life.kind.value}: in flight when its ownership ended"
    if before is then:
        return _answered_earlier(offset, then, attribution)
    if first.late:
        return f"{before.life.kind.value}: in flight when its ownership ended"
    stored = [each for each in attribution.stored_by(before) if each.zxid < then.owned.zxid]
    beyond = [each for each in stored if each.offset > offset]
    why = _began_earlier(offset, beyond, then, attribution) if beyond else _not_stored(offset, first, disturbed)
    return why or _answered_earlier(offset, then, attribution)


def _not_stored(offset: int, first: Handed, disturbed: Sequence[Span]) -> str:
    """What kept its owner from storing it."""
    reading = first.reading
    owned, life, kind = reading.owned, reading.life, reading.life.kind.value
    lately = owned.ended - first.at - overlap([*disturbed, *life.suspended], first.at, owned.ended)
    cause = _crash(reading, disturbed)
    if cause:
        return f"{kind}: {cause}" if lately <= CRASH_WINDOW else ""
    if life.kind is not Kind.OURS:
        return f"{kind}: not committed at the hand-over" if lately <= HAND_OVER else ""
    if owned.end is End.CLOSED and overlap(disturbed, life.stopping - SESSION, owned.ended):
        return "ours: stopped without ZooKeeper" if lately <= CRASH_WINDOW else ""
    in_hand = offset == reading.delivered[-1].offset
    if in_hand and overlap(life.suspended, owned.ended - RELEASE, owned.ended):
        return "ours: suspended during the release"
    return ""


def _crash(reading: Reading, disturbed: Sequence[Span]) -> str:
    """What ended an ownership without a chance to commit; empty if it ended in order."""
    owned, life = reading.owned, reading.life
    if owned.end is End.TAKEN:
        return "owner node deleted"
    if not reading.session_lost:
        return ""
    if life.exit is not None and life.exit is not Exit.STOPPED and owned.ended >= life.ended:
        return f"{life.exit.value}"
    fault = overlap([*disturbed, *life.suspended], owned.ended - CRASH_WINDOW, owned.ended)
    return "session lost" if fault else "session lost without a fault"


def _began_earlier(offset: int, beyond: Sequence[Stored], second: Reading, attribution: Attribution) -> str:
    """Offsets beyond it were stored: who has changed them, or did not see them?"""
    since = attribution.stored[second.owned.partition]
    since = since[bisect_right(since, beyond[-1].zxid, key=lambda each: each.zxid) :]
    until = second.delivered[0].at
    back = (each for each in takewhile(lambda each: each.at <= until, since) if each.offset <= offset)
    culprits = {attribution.kind(each) for each in back}
    for kind in (Kind.ORIGINAL, Kind.KAFKA_NODE):
        if kind in culprits:
            return f"{kind.value}: moved the stored offset back"
    waited = second.owned.began - beyond[0].at - overlap(second.life.suspended, beyond[0].at, second.owned.began)
    if second.life.kind is Kind.ORIGINAL and waited <= READ_BEFORE:
        return "original: read the offset before its claim"
    return ""


def _answered_earlier(offset: int, second: Reading, attribution: Attribution) -> str:
    """kafka-node continues after the last record of any response, also one that it requested before a rebalance."""
    if second.life.kind is not Kind.KAFKA_NODE:
        return ""
    start = second.stretches[offset]
    if start == 0 or attribution.delivered(second.life, second.owned.partition, start - 1):
        return "kafka-node: answer to an earlier request"
    return ""
