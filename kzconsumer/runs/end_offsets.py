"""Where fetching ends, for a member that reads up to a point: at offsets of its own, or where the group's run ends.

Owns the run that the member is in, for as long as the connector lives: a partition that goes and comes back ends where
it did, also in the next ZooKeeper session. The fetcher manager asks before it fetches, the member sets the run.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from kzconsumer.model import TopicPartition
from kzconsumer.registry.run_record import GroupRun


class Stops:
    """`at`: an offset for each partition that ends; None: the group's run says, once it is known."""

    def __init__(self, at: Mapping[TopicPartition, int] | None = None) -> None:
        self._at = at
        self.run: GroupRun | None = None
        self.known = anyio.Event()
        if at is not None:
            self.known.set()

    def __repr__(self) -> str:
        return f"<Stops at {self.run.id if self.run else self._at}>"

    @property
    def of_the_group(self) -> bool:
        return self._at is None

    def begin(self, run: GroupRun) -> None:
        """The run is this one, or it has got more topics."""
        self.run = run
        self.known.set()

    def leaves_out(self, partition: TopicPartition, incarnation: int) -> bool:
        """It came after the run began: it is owned like any other, and not read."""
        return self._at is None and self.of(partition, incarnation) is None

    def of(self, partition: TopicPartition, incarnation: int) -> int | None:
        """The first offset that is not read any more; None for a partition that has no end."""
        if self._at is not None:
            return self._at.get(partition)
        return self.run.end(partition, incarnation) if self.run is not None else None

    def passed(self, partition: TopicPartition, incarnation: int, processed: int) -> bool:
        """Everything up to the end is done."""
        stop = self.of(partition, incarnation)
        return stop is not None and processed >= stop
