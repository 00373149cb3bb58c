"""Differences between the expected and the actual state of the group, and since when.

A difference that is seen once may be a change under way; one that is still there after BACKOFF is not.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Container

import msgspec

from kzconsumer.model import TopicPartition

# Seconds between two looks at one difference: the original's `rebalance.backoff.ms`.
BACKOFF = 2.0


class What(enum.Enum):
    """The kinds of differences."""

    STRAY = "an owner node of our session without a claim"
    UNFETCHED = "a claim that is not fetched"
    ASSIGNMENT = "the group's assignment is a different one"


class Difference(msgspec.Struct, frozen=True):
    what: What
    partition: TopicPartition | None = None

    def __str__(self) -> str:
        return f"{self.partition}: {self.what.value}" if self.partition else self.what.value


class Differences:
    """Present differences, each with the time when it was seen first."""

    def __init__(self) -> None:
        self._since: dict[Difference, float] = {}

    @property
    def unconfirmed(self) -> bool:
        return bool(self._since)

    @property
    def suspected(self) -> set[TopicPartition]:
        """Partitions whose owner node was seen once without a claim, to be looked at again."""
        return {each.partition for each in self._since if each.what is What.STRAY and each.partition is not None}

    def confirmed(self, now: float, seen: Collection[Difference]) -> list[Difference]:
        """Those of `seen` that have lasted for a back-off; they are dropped here, as the caller repairs them."""
        self._since = {each: self._since.get(each, now) for each in seen}
        due = [each for each, since in self._since.items() if now - since >= BACKOFF]
        for each in due:
            del self._since[each]
        return due


class Unowned:
    """Partitions without owner, since when, and which of them have been reported."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[TopicPartition, float] = {}
        self.reported: set[TopicPartition] = set()

    def look(
        self, now: float, partitions: Collection[TopicPartition], owned: Container[TopicPartition]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Partitions that have been without owner for longer than the patience, and reported ones that no longer are.

        Each is returned once. A partition whose topic was deleted is no longer without owner, either.
        """
        self._since = {each: self._since.get(each, now) for each in partitions if each not in owned}
        overdue = [p for p, since in self._since.items() if now - since >= self._patience and p not in self.reported]
        over = sorted(self.reported.difference(self._since))
        self.reported.update(overdue)
        self.reported.difference_update(over)
        return overdue, over
