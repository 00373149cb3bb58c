"""Planned ranges whose log lacks a part of them: who decides about them, and where the next range begins."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest import mock

from kzconsumer.brokers.leaders import Leaders, LogOffsets
from kzconsumer.brokers.pool import Brokers
from kzconsumer.counters import Counters
from kzconsumer.fetcher import fetcher_manager
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.fetcher_manager import FetcherManager
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.settings.sections import FetchSettings
from tests.core.plain.test_planned_ranges import GivingUp, Logs, planned, read_nothing
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
    manager = FetcherManager(
        cast(Leaders, None), cast(Brokers, None), FetchSettings(), cast(OffsetReset, Slow()), read_nothing,
        cast(LogOffsets, Logs(set())), None, Counters(),
    )  # fmt: skip
    manager.start([whole, short])
    tasks = []
    with mock.patch.object(fetcher_manager, "END_PATIENCE", -1.0):
        for _ in range(20):
            tasks.append(asyncio.create_task(manager.check_replays()))
            await asyncio.sleep(2)
            assert (manager.seeks_leader(whole), short in manager) == (True, True)
    await asyncio.gather(*tasks)
    assert (decided, manager.seeks_leader(short)) == ([short], True)
