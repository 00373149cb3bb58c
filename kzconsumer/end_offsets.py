"""The end offsets of a member that reads up to a point, its own or those of the group's run, and waiting for them.

They outlive sessions and claims: a partition that is revoked and assigned again has the same end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from kzconsumer.errors import ConnectionLostError, CoordinatorError, ZooKeeperError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Position
from kzconsumer.registry.group_records import GroupRun
from kzconsumer.runs import Runs

log = get_logger("kzconsumer")

# Seconds between two checks of this member's positions, and of the group's run, which ZooKeeper is asked about.
OWN_CHECK = 0.1
RUN_CHECK = 0.5

Positions = Callable[[], Sequence[Position]]


class EndOffsets:
    """`at`: an offset for each partition that ends; None: those of the group's run, once it is known."""

    def __init__(self, at: Mapping[TopicPartition, int] | None = None) -> None:
        self._at = at
        self.run: GroupRun | None = None
        self.known = anyio.Event()
        if at is not None:
            self.known.set()

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
        """The first offset that will not be read, or None if the partition has no end."""
        if self._at is not None:
            return self._at.get(partition)
        return self.run.end(partition, incarnation) if self.run is not None else None

    def passed(self, partition: TopicPartition, incarnation: int, processed: int) -> bool:
        """Whether everything up to the end is processed."""
        end = self.of(partition, incarnation)
        return end is not None and processed >= end


async def owned_finished(end_offsets: EndOffsets, positions: Positions, assigned: Callable[[], bool]) -> None:
    """Until every owned partition is processed up to its end. `assigned`: whether the last rebalance is complete."""
    while True:
        await anyio.sleep(OWN_CHECK)
        if assigned() and all(_at_its_end(end_offsets, at) and (at.verified or at.paused) for at in positions()):
            break
    log.info("all partitions processed to their end offsets", partitions=len(positions()))


async def run_finished(
    end_offsets: EndOffsets,
    runs: Runs,
    positions: Positions,
    commit: Callable[[], Awaitable[None]],
    ends_changed: Callable[[], None],
) -> None:
    """Until the group's run is over. A member that is done stays: it may have to take partitions over from others.

    `ends_changed` is called when the run begins, or gets more topics.
    """
    run = end_offsets.run or await runs.join()
    while True:
        if run != end_offsets.run:
            end_offsets.begin(run)
            ends_changed()
        if run.finished is not None:
            return
        await anyio.sleep(RUN_CHECK)
        try:
            # `look` compares what is stored: a partition whose last records are processed and not committed would hold
            # up the run of the whole group until the next commit.
            done = (at for at in positions() if _at_its_end(end_offsets, at))
            if any((at.committed or 0) < at.processed for at in done):
                await commit()
            run = await runs.look(run)
        except (ConnectionLostError, CoordinatorError, ZooKeeperError) as error:
            log.warning("progress of the run is unknown", reason=str(error))


def _at_its_end(end_offsets: EndOffsets, at: Position) -> bool:
    return end_offsets.passed(at.topic_partition, at.incarnation, at.processed)
