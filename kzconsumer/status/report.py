"""A report of one member at one moment, the source of metrics, health, JSON and the status page.

None, or a missing entry, means "not known".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from kzconsumer.lag.totals import Total, total
from kzconsumer.status.judgement import Judgement
from kzconsumer.status.track import PartitionStatus

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
    owner: str
    """The owner node's text."""
    by: str
    """What holds it, in words."""


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
    """The first rebalance is complete, and no stop has begun."""
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
    commit_failure: str | None
    """Why the last commit failed; None if it succeeded."""
    queues: list[Queue]
    batch: SinkBatch | None
    """The one being planned, written or committed, or the latest one."""
    batches: list[SinkBatch]
    """Those that have ended, the latest last."""
    sink: Mapping[str, object]
    """What the sink shows of itself."""
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
