"""What a member shows of itself: one value, from which metrics, health, JSON and pages are made.

Pure. `status/observer` fills it from what the writers of each state hold; None, or what is left out, is "not known".
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kzconsumer.status.judgement import Judgement
from kzconsumer.status.track import PartitionStatus

SessionState: TypeAlias = Literal["held", "doubtful", "none"]
SESSION_STATES: tuple[SessionState, ...] = ("held", "doubtful", "none")
WORST: tuple[Judgement, ...] = ("OK", "WARN", "STOP", "STALL", "REWIND")


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


class Report(msgspec.Struct, frozen=True):
    """One member at one moment."""

    version: str
    group: str
    member: str | None
    state: str
    """In words: what it is about, as the service manager is told."""
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
        """Why it does not do its part at the moment; None when it does."""
        if not self.joined:
            return self.state
        return None if self.session == "held" else "the ZooKeeper session is doubtful"

    @property
    def stalled(self) -> list[PartitionStatus]:
        return [each for each in self.partitions if each.stalled]

    @property
    def judgement(self) -> Judgement | None:
        """That of the worst of our partitions."""
        found = [each.judgement for each in self.partitions if each.judgement is not None]
        return max(found, key=WORST.index, default=None)
