"""Batches whose claims are lost while they are written."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

from kzconsumer.offsets.progress import Progress
from kzconsumer.sinks.batch_builder import OwnedBatch
from kzconsumer.sinks.batch_writer import BatchWriter
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.interface import Batch
from kzconsumer.sinks.quarantine import RangeQuarantine
from tests.support.chunks import TOPIC, LeaseInHand, progress
from tests.support.owned_ranges import Owned
from tests.support.range_data import range_data
from tests.support.sink_runs import Memory


def handed_over(number: int) -> tuple[list[Progress], OwnedBatch]:
    """Claims of `number` partitions, and a batch with five records of each."""
    claims = [progress(partition) for partition in range(number)]
    for claim in claims:
        claim.hand_over(5)
    return claims, OwnedBatch({claim: range_data(TOPIC, n, 0, 5) for n, claim in enumerate(claims)})


class Alone(Memory):
    """Writes single ranges only, and calls `then` after the first one."""

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
    quarantine = RangeQuarantine(tmp_path / "aside", "memory")
    return BatchWriter("memory", sink, capabilities(sink), owned, None, quarantine, None)


async def test_a_lost_range_is_not_written_alone(tmp_path: Path) -> None:
    claims, batch = handed_over(2)
    sink = Alone(claims[1].close)
    assert not await writer_of(sink, Owned(claims), tmp_path).write(batch)
    assert sink.ranges == [(0, 0, 5)]
    assert [claim.written for claim in claims] == [(0, 5), None]


async def test_a_lost_range_does_not_wait_for_the_lease(tmp_path: Path) -> None:
    """The session of both claims has ended."""
    claims, batch = handed_over(2)
    lease = LeaseInHand()

    def lose() -> None:
        claims[1].close()
        lease.lose()

    async with asyncio.timeout(5):
        assert not await writer_of(Alone(lose), Owned(claims, lease=lease), tmp_path).write(batch)


async def test_an_ended_claim_is_not_retained_by_the_other_claims_of_its_batch(tmp_path: Path) -> None:
    claims, batch = handed_over(2)
    assert await writer_of(Memory(), Owned(), tmp_path).write(batch)
    ended, staying = weakref.ref(claims[0]), claims[1]
    claims.clear()
    del batch
    gc.collect()
    assert ended() is None
    assert staying.processed == 5
