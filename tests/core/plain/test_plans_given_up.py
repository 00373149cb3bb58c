"""Planned ranges whose log lacks a part of them: who decides about them, and where the next range begins."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from kzconsumer.brokers.leaders import LogOffsets
from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST,
    READ_UNCOMMITTED,
    ListedOffset,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.fetcher import fetcher_manager
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Progress
from kzconsumer.settings.value_readers import SMALLEST
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.core.plain.test_planned_ranges import GivingUp, Logs, Lower, manager_of, planned
from tests.support.plans import plan_of
from tests.support.simulated.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_range_that_is_decided_about_is_not_started_again() -> None:
    """The reconciler starts what is not fetched at two looks in a row, and a destination may be long in answering."""
    decided: list[FetchState] = []

    class Slow(GivingUp):
        async def end_early(self, state: FetchState, *found: Any) -> bool:
            decided.append(state)
            await asyncio.sleep(30)
            return await super().end_early(state, *found)

    whole, short = planned(0, 5, 9), planned(1, 90, 120)
    manager = manager_of(Slow(), Logs(set()))
    manager.start([whole, short])
    tasks = []
    with mock.patch.object(fetcher_manager, "END_PATIENCE", -1.0):
        for _ in range(20):
            tasks.append(asyncio.create_task(manager.check_replays()))
            await asyncio.sleep(2)
            assert (manager.seeks_leader(whole), short in manager) == (True, True)
    await asyncio.gather(*tasks)
    assert (decided, manager.seeks_leader(short)) == ([short], True)


class LowerEpochs(Lower):
    """From 50 to 100."""

    async def call(self, request: Any, *, timeout: float) -> dict[TopicPartition, Any]:
        found = await super().call(request, timeout=timeout)
        if isinstance(request, OffsetForLeaderEpochRequest):
            return found
        return {each: ListedOffset(0, 50 if request.partitions.get(each) == EARLIEST else 100, -1) for each in found}


@pytest.mark.parametrize(("first", "begins"), [(90, 90), (20, 50), (120, 100)])
@pytest.mark.parametrize("truncated", ["continue", "fail"])
async def test_a_range_of_a_log_with_lower_epochs_only_is_redelivered_and_nothing_before_it(
    first: int, begins: int, truncated: str
) -> None:
    """Nothing says where that log differs: as without a plan, it is read on where the position is."""
    stored: list[int] = []

    async def store_start(progress: Progress, at: int, **_: Any) -> bool:
        stored.append(at)
        return True

    broker: Any = LowerEpochs(epochs=True)
    committer = cast(Committer, SimpleNamespace(store_start=store_start))
    reset = OffsetReset(SMALLEST, committer, 1.0, READ_UNCOMMITTED, truncated)
    manager = manager_of(reset, LogOffsets(broker, broker, 5.0, 0))
    claim = Progress(TopicPartition("orders", 0), first, replay=plan_of(first, first + 5, leader_epoch=3))
    state = FetchState(claim, ChunkQueue(1 << 20), first, 1 << 20)
    manager.start([state])
    with mock.patch.object(fetcher_manager, "END_PATIENCE", -1.0):
        await manager.check_replays()
    if truncated == "continue":
        assert (stored, state.position, claim.processed) == ([begins], begins, begins)
        return
    chunk = state.queue.get_nowait()
    assert chunk is not None
    assert "which is from 50 to 100, with leader epochs that are all lower, has lost" in str(chunk.error)
