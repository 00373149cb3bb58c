"""Where a member that reads up to a point ends: fixed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import anyio

from kzconsumer.fetcher.log_offsets import LogOffsets
from kzconsumer.fetcher.stops import Stops
from kzconsumer.model import TopicPartition
from kzconsumer.protocol.list_offsets import LATEST, ListedOffset

PARTITION = TopicPartition("orders", 0)


class GrowingLogs:
    """Each question finds the logs longer; what is asked first is answered first."""

    def __init__(self) -> None:
        self.end = 100

    async def look_up(self, partitions: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        self.end += 5
        found = {partition: ListedOffset(0, self.end, -1) for partition in partitions}
        await anyio.lowlevel.checkpoint()
        return found


async def test_an_end_asked_for_twice_at_once_is_the_first_answer() -> None:
    stops, logs = Stops(LATEST), cast(LogOffsets, GrowingLogs())
    ends = set()

    async def fix() -> None:
        await stops.fix([PARTITION], logs)
        ends.add(stops.of(PARTITION))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fix)
        tasks.start_soon(fix)
    assert ends == {105}, "fetching stops where the first said, and `passed` must not wait for more"
    assert stops.passed(PARTITION, 105)
