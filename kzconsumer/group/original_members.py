"""When to nudge the original members of a group, so that they rebalance once more.

An original member whose last attempt failed stays registered, has no partitions, and waits for a change of the group
that may never come (`ZookeeperConsumerConnector.syncedRebalance`, 0.8.2 to 1.1.1). A nudge is such a change: a member
node is created and deleted.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import msgspec

from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.registration import Registration

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
        self._in_a_row = 0
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
            self._in_a_row = 0
            return None
        overdue = {partition: member for (partition, member), since in self._since.items() if now - since >= PATIENCE}
        if not overdue or self._consumer != min(name for name, member in members.items() if member.ours):
            return None
        pause = min(FIRST_PAUSE * 2 ** max(self._in_a_row - 1, 0), LONGEST_PAUSE)
        if self._last is not None and now - self._last < pause:
            return None
        self._last = now
        self._in_a_row += 1
        self._number += 1
        return Nudge(self._number, overdue)


def needs_looking(members: Mapping[str, Registration]) -> bool:
    """Whether the group has original members, which can get stuck."""
    return any(not member.ours for member in members.values())
