"""Waits for the end of a bounded run: of this member's own partitions, or of the run of the whole group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from kzconsumer.errors import ConnectionLost, CoordinatorFailed, ZooKeeperError
from kzconsumer.logs.logger import get_logger
from kzconsumer.offsets.position import Position
from kzconsumer.runs.end_offsets import EndOffsets
from kzconsumer.runs.runs import Runs

log = get_logger("kzconsumer")

# Seconds between two checks of this member's positions, and of the group's run, which ZooKeeper is asked about.
OWN_CHECK = 0.1
RUN_CHECK = 0.5

Positions = Callable[[], Sequence[Position]]


async def owned_finished(end_offsets: EndOffsets, positions: Positions, assigned: Callable[[], bool]) -> None:
    """Until every owned partition is processed up to its end. `assigned`: whether the last rebalance is complete."""
    while True:
        await anyio.sleep(OWN_CHECK)
        if assigned() and all(_at_its_end(end_offsets, at) for at in positions()):
            break
    log.info("everything is processed up to its end", partitions=len(positions()))


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
            done = (at for at in positions() if _at_its_end(end_offsets, at))
            if any((at.committed or 0) < at.processed for at in done):
                await commit()
            run = await runs.look(run)
        except (ConnectionLost, CoordinatorFailed, ZooKeeperError) as error:
            log.warning("progress of the run is unknown", reason=str(error))


def _at_its_end(end_offsets: EndOffsets, at: Position) -> bool:
    return end_offsets.passed(at.topic_partition, at.incarnation, at.processed)
