"""`sink replay` of a topic that is deleted, and perhaps created again, while it reads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Self

import pytest

from kzconsumer.clock import now
from kzconsumer.errors import OffsetLostError
from kzconsumer.fetcher.range_reader import range_reader
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.interface import Batch, Holdings
from kzconsumer_tools.replay import Replayed, replay
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.scene import Scene, settings_of

P = TopicPartition("t", 0)


class Shelf:
    """A target in memory; `happens` after its first write."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self.rows: list[tuple[int, object]] = []
        self._happens = happens

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    async def write(self, batch: Batch) -> None:
        (part,) = batch.ranges
        if not self.rows:
            self._happens()
        self.rows += [(part.incarnation, message.key) for message in part.messages()]

    async def holdings(self, *, count_rows: bool) -> Holdings:
        return Holdings(destination="shelf", fingerprint="f", ranges=())


def recreate(group: SimulatedGroup) -> None:
    group.logs.delete("t")
    group.logs.grow("t", 1)
    group.logs.burst(300)


@pytest.mark.parametrize("recreated", [True, False])
def test_no_record_of_the_new_topic_is_written_as_one_of_the_earlier(recreated: bool) -> None:
    scene = Scene(brokers=2, record_bytes=100, lag=(0.2, 0.4), fetch=(("max_bytes", "4kB"),))
    with simulated_group(1, scene) as group:
        group.logs.grow("t", 1)
        group.logs.stop()
        group.logs.burst(300)
        shelf = Shelf(lambda: recreate(group) if recreated else None)

        async def run() -> Replayed:
            async with range_reader(settings_of(scene)) as reader:
                incarnations = await reader.known_incarnations(["t"])
                wanted, limits = [OffsetRange(*P, 0, 300)], BatchSettings(max_records=100)
                return await replay(reader, shelf, wanted, incarnations, limits, now(), lambda *at: None)

        task = group.world.process("replay").create_task(run())
        assert group.world.pass_time(120.0, task.done)
        lost = "topic t was deleted and created again, and its offsets are lost"
        with pytest.raises(OffsetLostError, match=lost) if recreated else nullcontext():
            assert task.result().records == 300
        assert len(set(shelf.rows)) == 1, "all of one topic"
