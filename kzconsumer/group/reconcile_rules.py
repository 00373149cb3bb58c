"""Differences between the expected and the actual state of the group, since when, and what follows from them.

A difference that is seen once may be a change under way; one that is still there after BACKOFF is not. Original members
that are stuck are nudged. Pure: `reconciler` carries it out.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Container, Mapping

import msgspec

from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.group_records import Registration

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


class Misplaced:
    """Partitions of other members that have another owner than is assigned, by looks that are `patience` apart."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._seen: dict[TopicPartition, tuple[str, float, float]] = {}  # owner, first and last look
        self.lasting: dict[TopicPartition, str] = {}
        """The owner of each, empty without one."""

    def look(self, now: float, partitions: Collection[TopicPartition], wrong: Mapping[TopicPartition, str]) -> None:
        """`wrong`: the owner of those that have another one, of the `partitions` that were read."""
        for each in partitions:
            owner, (before, first, _) = wrong.get(each), self._seen.pop(each, ("", now, now))
            if owner is not None:
                self._seen[each] = owner, first if owner == before else now, now
        self.lasting = {p: owner for p, (owner, first, last) in self._seen.items() if last - first >= self._patience}

    def forget(self) -> None:
        """The assignment is another one now."""
        self._seen, self.lasting = {}, {}


# When to nudge the original members of a group, so that they rebalance once more.
#
# An original member releases *all* its partitions when one claim fails, tries four times, and then gives up for ever:
# it stays registered, has no partitions, and waits for a change of the group that may never come
# (`ZookeeperConsumerConnector.syncedRebalance`, 0.8.2 to 1.1.1). So in a group with originals:
#
# - our claims that succeeded are kept when others fail, and the owner node that blocks one is watched;
# - we release within REVOKE_DEADLINE_WITH_ORIGINALS, before the four attempts of a waiting original are over;
# - a member that gave up nevertheless gets a change: a member node that is created and deleted in one transaction
#   (`ConsumerRegistry.nudge`). Its watch fires, and no reader sees the node.

# Seconds without an owner until a member counts as stuck: longer than the four attempts, 2 s apart, of an original.
PATIENCE = 10.0
# A nudge makes every original member release all its partitions for a moment, so the pauses grow.
FIRST_PAUSE = 30.0
LONGEST_PAUSE = 600.0
# How often to look while there is an original member, in seconds.
LOOK_INTERVAL = 2.5


class Nudge(msgspec.Struct, frozen=True):
    """One is due. `without_owner`: partitions without owner, and the members that should own them."""

    number: int
    without_owner: Mapping[TopicPartition, str]


class OriginalMemberNudges:
    """Since when partitions of original members have had no owner, and when the last nudge was."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self._since: dict[tuple[TopicPartition, str], float] = {}
        self._last: float | None = None
        self._pause = 0.0  # after the last one, as long as any of theirs has no owner
        self._number = 0

    def look(
        self,
        now: float,
        members: Mapping[str, Registration],
        assignment: Mapping[TopicPartition, ConsumerThreadId],
        owned: Container[TopicPartition],
    ) -> Nudge | None:
        """The nudge that is due at `now` (seconds of a monotonic clock), if any.

        `assignment` is the whole group's, `owned` has the partitions with an owner node. Only the first member of this
        program acts; the others keep the time, in case they become the first.
        """
        stuck = {
            (partition, thread.consumer)
            for partition, thread in assignment.items()
            if partition not in owned and thread.consumer in members and not members[thread.consumer].ours
        }
        self._since = {key: self._since.get(key, now) for key in stuck}
        if not stuck:
            self._pause = 0.0
            return None
        overdue = {partition: member for (partition, member), since in self._since.items() if now - since >= PATIENCE}
        first = min((name for name, member in members.items() if member.ours), default=None)
        if not overdue or self._consumer != first:
            return None
        if self._last is not None and now - self._last < max(self._pause, FIRST_PAUSE):
            return None
        self._last = now
        self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        self._number += 1
        return Nudge(self._number, overdue)


def needs_looking(members: Mapping[str, Registration]) -> bool:
    """Whether the group has original members, which can get stuck."""
    return any(not member.ours for member in members.values())
