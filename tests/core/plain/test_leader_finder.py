"""The task that finds partition leaders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio

from kzconsumer.fetcher.leader_finder import LeaderFinder


async def test_without_missing_leaders_no_task_is_woken() -> None:
    """Fetchers report after each response, mostly with nothing to look up; a round resets the time of unreachable
    brokers.
    """
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
