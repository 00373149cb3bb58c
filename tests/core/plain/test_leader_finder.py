"""The task that finds partition leaders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import anyio
import pytest
from structlog.testing import capture_logs

from kzconsumer.brokers.leaders import KnownBrokers, Leaders
from kzconsumer.brokers.pool import Brokers
from kzconsumer.fetcher import leader_finder
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.leader_finder import PATIENCE, LeaderFinder
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.chunks import progress


async def test_without_missing_leaders_no_task_is_woken() -> None:
    """Fetchers report after each response, mostly with nothing to look up; a round resets the time of unreachable
    brokers.
    """
    leaders = Leaders(cast(KnownBrokers, None), cast(Brokers, None), 1.0)
    finder = LeaderFinder(leaders, lambda *found: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finder.run)
        await anyio.wait_all_tasks_blocked()
        leaders.unreachable_since = 1.0
        finder.add([])
        await anyio.wait_all_tasks_blocked()
        assert leaders.unreachable_since == 1.0
        tasks.cancel_scope.cancel()


class Nobody:
    """Brokers that name no leader."""

    def forget_outage(self) -> None: ...

    async def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Broker | str]:
        return dict.fromkeys(partitions, "LEADER_NOT_AVAILABLE")


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the finder and of the pauses."""
    shown = [100.0]
    monkeypatch.setattr(leader_finder, "now", lambda: shown[0])
    return shown


def leaderless() -> FetchState:
    return FetchState(progress(), ChunkQueue(1 << 20), 0, 1 << 20)


async def test_a_missing_leader_is_logged_after_a_while_and_once(time: list[float]) -> None:
    finder, state = LeaderFinder(cast(Leaders, Nobody()), lambda *found: None), leaderless()
    with capture_logs() as logs:
        for seconds in (0.0, PATIENCE - 0.1, PATIENCE, PATIENCE + 5):
            time[0] = 100.0 + seconds
            finder.add([state])
            await finder.look({state.topic_partition: state})
            assert len(logs) == (seconds >= PATIENCE)
    assert logs[0]["event"] == "partition has no leader"


async def released(finder: LeaderFinder, state: FetchState) -> None:
    state.progress.close()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finder.run)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_a_partition_that_comes_back_has_its_while_again(time: list[float]) -> None:
    """Its claim was closed in between: how long it had no leader before says nothing, and what was logged neither."""
    finder = LeaderFinder(cast(Leaders, Nobody()), lambda *found: None)
    with capture_logs() as logs:
        for seconds in (0.0, PATIENCE + 1):
            time[0] = 100.0 + seconds
            state = leaderless()
            finder.add([state])
            await finder.look({state.topic_partition: state})
            await released(finder, state)
        assert logs == []
        for start in (200.0, 300.0):
            state = leaderless()
            for time[0] in (start, start + PATIENCE):
                finder.add([state])
                await finder.look({state.topic_partition: state})
            await released(finder, state)
    assert [line["event"] for line in logs] == ["partition has no leader"] * 2
