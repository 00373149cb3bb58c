"""The end offsets of a member that reads up to a point: its own, or those of the group's run.

They outlive sessions and claims: a partition that leaves and comes back has the same end.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from kzconsumer.model import TopicPartition
from kzconsumer.registry.run_record import GroupRun


class EndOffsets:
    """`at`: an offset for each partition that ends; None: those of the group's run, once it is known."""

    def __init__(self, at: Mapping[TopicPartition, int] | None = None) -> None:
        self._at = at
        self.run: GroupRun | None = None
        self.known = anyio.Event()
        if at is not None:
            self.known.set()

    def __repr__(self) -> str:
        return f"<EndOffsets at {self.run.id if self.run else self._at}>"

    @property
    def of_the_group(self) -> bool:
        return self._at is None

    def begin(self, run: GroupRun) -> None:
        """Set the run, also when topics are added to it."""
        self.run = run
        self.known.set()

    def leaves_out(self, partition: TopicPartition, incarnation: int) -> bool:
        """Whether it was created after the run began: it is owned, but not read."""
        return self._at is None and self.of(partition, incarnation) is None

    def of(self, partition: TopicPartition, incarnation: int) -> int | None:
        """The end offset, which is not read; None without one."""
        if self._at is not None:
            return self._at.get(partition)
        return self.run.end(partition, incarnation) if self.run is not None else None

    def passed(self, partition: TopicPartition, incarnation: int, processed: int) -> bool:
        """Whether everything up to the end is processed."""
        stop = self.of(partition, incarnation)
        return stop is not None and processed >= stop
