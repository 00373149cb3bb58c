"""What a sink's runner needs of the membership: plans, steps and commits of the ranges that this member owns.

`sessions` implements it for whatever membership is present. A claim is named by its tracker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.registry.claim_record import Plan
from kzconsumer.registry.offset_list import Spans
from kzconsumer.streams.message import Message
from kzconsumer.zookeeper.lease import Lease


class OwnedRanges(Protocol):
    """Without a membership no claim is owned: nothing is stored then, and nothing is raised."""

    @property
    def lease(self) -> Lease:
        """Whether this member may still act as the owner."""
        ...

    async def plan(self, plans: Mapping[OffsetTracker, Plan]) -> Collection[OffsetTracker]:
        """Store these ranges as in flight.

        Returns the claims still owned; raises SessionExpiredError, ZooKeeperError.
        """
        ...

    async def record_step(self, claims: Collection[OffsetTracker], step: str) -> Collection[OffsetTracker]:
        """Store in the plans of these claims that a step is done. Returns and raises as `plan`."""
        ...

    async def record_rejected(self, offsets: Mapping[OffsetTracker, Spans]) -> Collection[OffsetTracker]:
        """Store in the plans of these claims which records are not written with their ranges.

        Returns and raises as `plan`; ValueError if they are too many.
        """
        ...

    def require_room(self, offsets: Mapping[OffsetTracker, Spans]) -> None:
        """Raises ValueError if these records are too many for `record_rejected`. Stores nothing."""
        ...

    async def record_contents(self, figures: Mapping[OffsetTracker, tuple[int, str]]) -> Collection[OffsetTracker]:
        """Store in the plans of these claims the number of records that were read, and their checksum.

        Returns and raises as `plan`.
        """
        ...

    async def message(self, partition: TopicPartition, offset: int) -> Message | None:
        """Fetch one record; None if the log does not have it. Raises KzConsumerError."""
        ...

    async def commit(self) -> None:
        """Store what is processed. Raises SessionExpiredError, ZooKeeperError, CoordinatorError."""
        ...

    async def resume_after_replay(self, claim: OffsetTracker) -> None:
        """Fetch on behind the planned range of a claim, which has been written again and committed.

        Raises SessionExpiredError, ZooKeeperError.
        """
        ...
