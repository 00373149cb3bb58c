"""What a run leaves for the judge besides ZooKeeper's log: the members' lives, what they delivered, what was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.interop.history import History


class Kind(Enum):
    OURS = "ours"
    ORIGINAL = "original"
    KAFKA_NODE = "kafka-node"


class Delivery(NamedTuple):
    """A record was handed to the application, in seconds of the wall clock."""

    at: float
    partition: int
    offset: int


class Span(NamedTuple):
    began: float
    ended: float


class Exit(Enum):
    KILLED = "killed"
    STOPPED = "stopped"
    BY_ITSELF = "ended by itself"


@dataclass
class Life:
    """One process of a member, and what it delivered, in order."""

    member: str
    kind: Kind
    consumer: str
    began: float
    ended: float = float("inf")
    exit: Exit | None = None
    stopping: float = float("inf")
    """When it was asked to stop."""
    status: int = 0
    suspended: list[Span] = field(default_factory=list)
    delivered: Sequence[Delivery] = ()

    def __str__(self) -> str:
        return self.consumer


@dataclass
class Evidence:
    sent: Mapping[int, int]
    """Partition -> how many records; their offsets begin at 0."""
    history: History
    lives: Sequence[Life]
    disturbed: Sequence[Span] = ()
    """When faults of ZooKeeper or of a broker were under way."""
