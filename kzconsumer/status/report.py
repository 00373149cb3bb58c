"""A report of one member at one moment, the source of metrics, health, JSON and the status page; and what is degraded.

None, or a missing entry, means "not known".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec

from kzconsumer.display import moment, plural, some
from kzconsumer.lag.partition import FRESH
from kzconsumer.lag.totals import (
    MOST_NAMES,
    Examination,
    Finding,
    FindingId,
    Total,
    examined,
    finding,
    of_partitions,
    reasons,
    total,
)
from kzconsumer.status.partition_health import Hindrance, Judgement, PartitionStatus

SessionState: TypeAlias = Literal["held", "doubtful", "none"]
SESSION_STATES: tuple[SessionState, ...] = ("held", "doubtful", "none")
WORST: tuple[Judgement, ...] = ("OK", "WARN", "STOP", "STALL", "REWIND")


class GroupMember(msgspec.Struct, frozen=True):
    id: str
    this: bool
    kzconsumer: bool
    """False for an original member."""
    pattern: str
    subscription: dict[str, int]
    """Topic, or expression, and number of threads."""
    status: str
    """Host and port of its status page; empty if it has published none."""
    threads: dict[str, list[str]]
    """The partitions assigned to each thread; threads without any are left out."""


class Assigned(msgspec.Struct, frozen=True):
    """A partition of the group, and the thread that should own it."""

    topic: str
    partition: int
    thread: str


class Queue(msgspec.Struct, frozen=True):
    """Of one stream; `topic` is None for the streams of a filter, which are shared by all its topics."""

    topic: str | None
    thread: int
    chunks: int
    bytes: int
    limit: int


class SinkBatch(msgspec.Struct, frozen=True):
    ranges: list[str]
    records: int
    stage: str
    seconds: dict[str, float]
    written: bool
    ended: float | None
    """Seconds since 1970."""


class Point(msgspec.Struct, frozen=True):
    """All owned partitions at one moment; a value that is unknown for one of them is None."""

    at: float
    """Seconds since 1970."""
    owned: int
    stalled: int
    lag: int | None
    """Records not processed, of all partitions."""
    at_least: int
    """What `lag` cannot be below; the same if it is known."""
    unknown: int
    """Partitions without a known lag."""
    lag_seconds: float | None
    """The largest of a partition."""
    rate: float | None
    """Records processed per second."""


def point(at: float, partitions: Sequence[PartitionStatus]) -> Point:
    together = total(each.progress for each in partitions)
    return Point(
        at=at,
        owned=len(partitions),
        stalled=sum(each.stalled for each in partitions),
        lag=together.lag,
        at_least=together.at_least,
        unknown=sum(together.unknown.values()),
        lag_seconds=together.lag_seconds,
        rate=rate_of(partitions),
    )


def rate_of(partitions: Sequence[PartitionStatus]) -> float | None:
    known = [each.rate for each in partitions if each.rate is not None]
    return sum(known) if len(known) == len(partitions) else None


class BlockedClaim(msgspec.Struct, frozen=True):
    """A partition that this member should own and has not been able to claim for a while."""

    topic: str
    partition: int
    why: str
    """What holds it, or refuses the claim."""


class MisplacedPartition(msgspec.Struct, frozen=True):
    """A partition that another member should own, and does not for a while."""

    topic: str
    partition: int
    owner: str
    """The text of its owner node; empty without one."""


class Failing(msgspec.Struct, frozen=True):
    """What is attempted again and again, or hangs."""

    since: float
    """When the first attempt began that did not succeed, in seconds since 1970."""
    reason: str


class Report(msgspec.Struct, frozen=True):
    version: str
    started: float
    """Seconds since 1970."""
    cluster: str
    """ZooKeeper's connect string, which holds no credentials."""
    group: str
    member: str | None
    state: str
    """The status line that the service manager gets."""
    joined: bool
    """The first rebalance in the present session is complete, and no stop has begun."""
    alive: str | None
    """None, or why the process has to be restarted."""
    session: SessionState
    generation: int | None
    members: list[GroupMember]
    assigned: list[Assigned]
    partitions: list[PartitionStatus]
    blocked: list[BlockedClaim]
    unreadable: bool
    """A node of the group is unreadable, so that no assignment can be computed."""
    commits_fail: Failing | None
    """None if a commit succeeded within `[status] stalled_after`."""
    rebalances_fail: Failing | None
    """The same of rebalances, which may have to wait for work in hand."""
    queues: list[Queue]
    batch: SinkBatch | None
    """The one being planned, written or committed, or the latest one."""
    batches: list[SinkBatch]
    """Those that have ended, the latest last."""
    sink: Mapping[str, object]
    """What the sink shows of itself."""
    misplaced: Sequence[MisplacedPartition] = ()
    missing: tuple[str, ...] = ()
    """Topics that this member subscribes to by name, and the last rebalance did not find."""
    session_reason: str | None = None
    """Why no ZooKeeper server is connected; None if one is."""

    @property
    def unready(self) -> str | None:
        """Why it is not ready; None if it is."""
        if not self.joined:
            return self.state
        if self.session == "held":
            return None
        return "the ZooKeeper session is doubtful" + (f": {self.session_reason}" if self.session_reason else "")

    @property
    def total(self) -> Total:
        """How far the owned partitions are behind."""
        return total(each.progress for each in self.partitions)

    @property
    def rate(self) -> float | None:
        """Records processed per second; None if that is unknown for one."""
        return rate_of(self.partitions)

    @property
    def eta(self) -> float | None:
        """Seconds until nothing is left in any partition; None if that is unknown for one, or none is owned."""
        known = [each.eta for each in self.partitions if each.eta is not None]
        return max(known) if known and len(known) == len(self.partitions) else None

    @property
    def stalled(self) -> list[PartitionStatus]:
        return [each for each in self.partitions if each.stalled]

    @property
    def judgement(self) -> Judgement | None:
        """The worst of the owned partitions."""
        found = [each.judgement for each in self.partitions if each.judgement is not None]
        return max(found, key=WORST.index, default=None)


# Degraded: the member is ready, and something of it makes no progress, or is not known to.

_JUDGED: dict[Judgement | None, tuple[FindingId, str]] = {
    "REWIND": ("commits_rewind", "a committed offset decreased"),
    "STALL": ("commits_stall", "committed offsets do not advance"),
    "STOP": ("commits_stop", "no commits"),
}
_STALLED: dict[Hindrance, FindingId] = {
    "failed": "partition_failed",
    "no leader": "no_leader",
    "brokers unreachable": "no_leader",
    "not permitted": "not_permitted",
    "dead letter not written": "sink_slow",
    "sink slow": "sink_slow",
}


def degraded(report: Report) -> list[Finding]:
    """The findings, the worst first; none unless the member is ready and alive.

    Partitions paused by an operator are left out, unless their lag is unknown. A judgement is a reason only of
    partitions that have no other.
    """
    if report.unready is not None or report.alive is not None:
        return []
    return [
        *_failing(report),
        *_missing(report),
        *_stalled(report),
        *_blocked(report),
        *_misplaced(report),
        *_lost(report),
        *_held_back(report),
        *_unknown(report),
        *_judged(report),
    ]


def examination(report: Report) -> Examination:
    """Healthy, unhealthy, or not examined: not joined yet, without a valid session, or with logs of unknown length."""
    if report.alive is not None:
        return examined([finding("stuck", report.group, f"the member is stuck: {report.alive}")])
    if report.unready is not None:
        return examined([], [report.unready])
    found = degraded(report)
    named = {name for each in found for name in each.partitions}
    unknown = total(each.progress for each in report.partitions if _name(each) not in named).unknown
    return examined(found, [f"lag unknown: {reasons(unknown)}"] if unknown else [])


def _failing(report: Report) -> Iterator[Finding]:
    failing: tuple[tuple[FindingId, str, Failing | None], ...] = (
        ("commits_fail", "no commit has succeeded", report.commits_fail),
        ("rebalances_fail", "no rebalance has succeeded", report.rebalances_fail),
    )
    for id, what, found in failing:
        if found is not None:
            since = moment(datetime.fromtimestamp(found.since, UTC))
            yield finding(id, report.group, f"{what} since {since}: {found.reason}")
    if report.unreadable:
        text = "a node of the group is unreadable, so nothing can be assigned: the log names it"
        yield finding("not_readable", report.group, text)


def _missing(report: Report) -> Iterator[Finding]:
    if report.missing:
        topics = f"{plural(len(report.missing), 'topic')} not found: {some(report.missing, MOST_NAMES)}"
        yield finding("topic_missing", report.group, f"{topics} (the member waits for it)")


def _stalled(report: Report) -> Iterator[Finding]:
    found: dict[Hindrance, list[str]] = {}
    for each in report.stalled:
        if each.hindrance is not None and _is_stalled(each):
            found.setdefault(each.hindrance, []).append(_name(each))
    for hindrance, names in found.items():
        yield of_partitions(_STALLED.get(hindrance, "stalled"), report.group, names, "stalled", hindrance)


def _blocked(report: Report) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    for each in report.blocked:
        found.setdefault(each.why, []).append(f"{each.topic}-{each.partition}")
    for why, names in found.items():
        yield of_partitions("claim_blocked", report.group, names, "not claimed", why)


def _misplaced(report: Report) -> Iterator[Finding]:
    """Each member reports those of others: the one that has them may be the one with the wrong assignor."""
    kinds: tuple[tuple[FindingId, str, str, bool], ...] = (
        ("unowned", "without owner", "the members that should own them have not claimed them", False),
        ("other_owner", "with another owner than is assigned", "do all members have the same assignor?", True),
    )
    for id, what, why, owned in kinds:
        if names := [f"{each.topic}-{each.partition}" for each in report.misplaced if bool(each.owner) == owned]:
            yield of_partitions(id, report.group, names, what, why)


def _lost(report: Report) -> Iterator[Finding]:
    """Of partitions that are not fetched: those that are go on as `[offsets] reset` says."""
    those = [each for each in report.partitions if each.progress.lost]
    if those:
        lost = plural(sum(each.progress.lost or 0 for each in those), "offset")
        names = [_name(each) for each in those]
        yield of_partitions("offsets_lost", report.group, names, "behind the log's start", f"{lost} deleted before")


def _held_back(report: Report) -> Iterator[Finding]:
    """Their lag may be 0, since their logs can be read no further."""
    those = [each for each in report.partitions if each.held_back]
    if those:
        waiting = plural(sum(each.held_back for each in those), "offset")
        why = f"{waiting} cannot be read: a transaction has not ended"
        yield of_partitions("transaction_open", report.group, [_name(each) for each in those], "held back", why)


def _unknown(report: Report) -> Iterator[Finding]:
    """Nobody can tell whether they have caught up. Not at once: a claim has to be read first, a leader may change."""
    those = [each for each in report.partitions if _is_unknown(each) and not _is_stalled(each)]
    if those:
        why = reasons(total(each.progress for each in those).unknown)
        yield of_partitions("lag_unknown", report.group, [_name(each) for each in those], "with unknown lag", why)


def _is_unknown(each: PartitionStatus) -> bool:
    return each.progress.behind is None and each.standing > FRESH


def _is_stalled(each: PartitionStatus) -> bool:
    return each.stalled and each.hindrance != "paused"


def _judged(report: Report) -> Iterator[Finding]:
    for judgement, (id, meaning) in _JUDGED.items():
        names = [
            _name(each)
            for each in report.partitions
            if each.judgement == judgement and not each.paused and not each.stalled
        ]
        if names:
            yield of_partitions(id, report.group, names, f"judged {judgement}", meaning)


def _name(each: PartitionStatus) -> str:
    return f"{each.topic}-{each.partition}"
