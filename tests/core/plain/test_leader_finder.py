"""The task that looks for leaders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio

from kzconsumer.fetcher.leader_finder import LeaderFinder


async def test_nothing_to_look_for_wakes_no_task() -> None:
    """Fetchers report after each response, mostly nothing; a round clears since when brokers cannot be reached."""
    leaders: Any = SimpleNamespace(unreachable_since=None)
    finder = LeaderFinder(leaders, lambda *found: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finder.run)
        await anyio.wait_all_tasks_blocked()
        leaders.unreachable_since = 1.0
        finder.add([])
        await anyio.wait_all_tasks_blocked()
        assert leaders.unreachable_since == 1.0
        tasks.cancel_scope.cancel()
