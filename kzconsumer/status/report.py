"""A report of one member at one moment, from which metrics, health, JSON and the status page are made.

`status/observer` makes it; None, or a missing entry, means "not known".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from kzconsumer.status.judgement import Judgement
from kzconsumer.status.track import PartitionStatus

SessionState: TypeAlias = Literal["held", "doubtful", "none"]
SESSION_STATES: tuple[SessionState, ...] = ("held", "doubtful", "none")
WORST: tuple[Judgement, ...] = ("OK", "WARN", "STOP", "STALL", "REWIND")


N = TypeVar("N", int, float)


class GroupMember(msgspec.Struct, frozen=True):
    """As it is registered."""

    id: str
    this: bool
    kzconsumer: bool
    """False for an original member."""
    pattern: str
    subscription: dict[str, int]
    """Topic, or expression, and number of threads."""
    threads: dict[str, list[str]]
    """Which partitions each thread is assigned; threads without any are left out."""


class Assigned(msgspec.Struct, frozen=True):
    """A partition of the group, and the thread that should own it."""

    topic: str
    partition: int
    thread: str


class Queue(msgspec.Struct, frozen=True):
    """Of one stream; `topic` is None where a white or black list has one for all its topics."""

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
    """All owned partitions at one moment; what is unknown of one is unknown of all."""

    at: float
    """Seconds since 1970."""
    owned: int
    stalled: int
    lag: int | None
    """In records, of what is processed; of all partitions together."""
    lag_seconds: float | None
    """Of the partition that is furthest behind."""
    rate: float | None
    """Records a second that were processed, together."""


def point(at: float, partitions: Sequence[PartitionStatus]) -> Point:
    lags = _if_all([each.lag.get("processed") for each in partitions])
    seconds = _if_all([each.lag_seconds.get("processed") for each in partitions])
    rates = _if_all([each.rate for each in partitions])
    return Point(
        at=at,
        owned=len(partitions),
        stalled=sum(each.stalled for each in partitions),
        lag=sum(lags) if lags is not None else None,
        lag_seconds=max(seconds, default=0.0) if seconds is not None else None,
        rate=sum(rates) if rates is not None else None,
    )


def _if_all(values: Sequence[N | None]) -> list[N] | None:
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


class Report(msgspec.Struct, frozen=True):
    """One member at one moment."""

    version: str
    group: str
    member: str | None
    state: str
    """One line about what it does, as reported to the service manager."""
    joined: bool
    """The first rebalance is over, and no stop has begun."""
    alive: str | None
    """None while it lives; else why only a new start can help."""
    session: SessionState
    generation: int | None
    members: list[GroupMember]
    assigned: list[Assigned]
    partitions: list[PartitionStatus]
    queues: list[Queue]
    batch: SinkBatch | None
    """The one being planned, written or committed; between two of them the last one."""
    batches: list[SinkBatch]
    """Those that have ended, the last one last."""

    @property
    def unready(self) -> str | None:
        """Why it is not ready; None if it is."""
        if not self.joined:
            return self.state
        return None if self.session == "held" else "the ZooKeeper session is doubtful"

    @property
    def stalled(self) -> list[PartitionStatus]:
        return [each for each in self.partitions if each.stalled]

    @property
    def judgement(self) -> Judgement | None:
        """The worst of the owned partitions."""
        found = [each.judgement for each in self.partitions if each.judgement is not None]
        return max(found, key=WORST.index, default=None)
