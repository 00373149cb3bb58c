"""One batch and the claims that are lost while it is written."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.sinks.interface import Batch
from kzconsumer.sinks.quarantine import RangeQuarantine
from kzconsumer.sinks.writing import BatchWriter
from tests.core.plain.test_sink_runner import Memory
from tests.support.chunks import TOPIC, LeaseInHand, tracker
from tests.support.owned_ranges import Owned
from tests.support.range_data import range_data


def handed_over(number: int) -> tuple[list[OffsetTracker], Batch]:
    """Claims of so many partitions, and a batch of five records of each."""
    claims = [tracker(partition) for partition in range(number)]
    for claim in claims:
        claim.hand_over(5)
    return claims, Batch(tuple(range_data(TOPIC, partition, 0, 5) for partition in range(number)))


class Alone(Memory):
    """Can only write single ranges, and does something after the first one."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then = then

    async def write(self, batch: Batch) -> None:
        if len(batch.ranges) > 1:
            raise ValueError("one at a time")
        await super().write(batch)
        if len(self.ranges) == 1:
            self._then()


def writer_of(sink: Memory, owned: Owned, tmp_path: Path) -> BatchWriter:
    return BatchWriter("memory", sink, owned, None, RangeQuarantine(tmp_path / "aside", "memory"), None)


async def test_a_range_that_was_lost_is_not_written_alone(tmp_path: Path) -> None:
    claims, batch = handed_over(2)
    sink = Alone(claims[1].close)
    assert not await writer_of(sink, Owned(claims), tmp_path).write(batch, claims)
    assert sink.ranges == [(0, 0, 5)]
    assert [claim.written for claim in claims] == [(0, 5), None]


async def test_a_range_that_was_lost_waits_for_no_lease(tmp_path: Path) -> None:
    """The session that held both has ended; the next one may be a long time away."""
    claims, batch = handed_over(2)
    lease = LeaseInHand()

    def lose() -> None:
        claims[1].close()
        lease.lose()

    async with asyncio.timeout(5):
        assert not await writer_of(Alone(lose), Owned(claims, lease=lease), tmp_path).write(batch, claims)


async def test_a_claim_that_has_ended_is_not_kept_in_memory_by_the_others_of_its_batch(tmp_path: Path) -> None:
    claims, batch = handed_over(2)
    assert await writer_of(Memory(), Owned(), tmp_path).write(batch, list(claims))
    ended, staying = weakref.ref(claims[0]), claims[1]
    claims.clear()
    gc.collect()
    assert ended() is None
    assert staying.processed == 5
