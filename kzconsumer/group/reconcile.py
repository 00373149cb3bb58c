"""What differs from what should be, and since when: decisions made from values.

Pure. The reconciler feeds what it sees and carries out what comes back. A difference seen once may be a change that is
under way; one that is still there a back-off later is not.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Container

import msgspec

from kzconsumer.model import TopicPartition

# Seconds between two looks at one difference: the original's `rebalance.backoff.ms`.
BACKOFF = 2.0


class What(enum.Enum):
    """What a difference can be."""

    STRAY = "an owner node of our session that no claim of ours stands for"
    UNFETCHED = "a claim that nobody fetches"
    ASSIGNMENT = "the group's assignment is another"


class Difference(msgspec.Struct, frozen=True):
    what: What
    partition: TopicPartition | None = None

    def __str__(self) -> str:
        return f"{self.partition}: {self.what.value}" if self.partition else self.what.value


class Differences:
    """Those seen and not yet gone, each with the time it was seen first."""

    def __init__(self) -> None:
        self._since: dict[Difference, float] = {}

    def __repr__(self) -> str:
        return f"<Differences {[str(difference) for difference in self._since]}>"

    @property
    def unconfirmed(self) -> bool:
        return bool(self._since)

    def confirmed(self, now: float, seen: Collection[Difference]) -> list[Difference]:
        """Those of `seen` that were already there a back-off ago; they are taken to be dealt with."""
        self._since = {each: self._since.get(each, now) for each in seen}
        due = [each for each, since in self._since.items() if now - since >= BACKOFF]
        for each in due:
            del self._since[each]
        return due


class Unowned:
    """Partitions without owner, since when, and which of them have been told of."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[TopicPartition, float] = {}
        self._told: set[TopicPartition] = set()

    def __repr__(self) -> str:
        return f"<Unowned {len(self._since)}, {len(self._told)} for longer than {self._patience} s>"

    def look(
        self, now: float, partitions: Collection[TopicPartition], owned: Container[TopicPartition]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Those that have been without owner for longer than the patience, and those that are so no longer.

        Each is given once. One that is nobody's any more (its topic was deleted) is no longer without owner either.
        """
        self._since = {each: self._since.get(each, now) for each in partitions if each not in owned}
        overdue = [p for p, since in self._since.items() if now - since >= self._patience and p not in self._told]
        over = sorted(self._told.difference(self._since))
        self._told.update(overdue)
        self._told.difference_update(over)
        return overdue, over
