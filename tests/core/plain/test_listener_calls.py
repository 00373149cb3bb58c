"""A listener is notified of the end of exactly those assignments that were reported to it."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from kzconsumer.errors import PluginError
from kzconsumer.group.rebalance_listener import ListenerCalls, RebalanceListener
from kzconsumer.model import TopicPartition

FIRST, SECOND, THIRD = (TopicPartition("t", number) for number in range(3))


class Recorder(RebalanceListener):
    def __init__(self) -> None:
        self.calls: list[tuple[str, set[TopicPartition]]] = []

    async def on_assigned(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("assigned", set(partitions)))

    async def on_revoked(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("revoked", set(partitions)))

    async def on_lost(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("lost", set(partitions)))


async def test_only_reported_assignments_are_revoked() -> None:
    listener = Recorder()
    calls = ListenerCalls(listener)
    await calls.assigned([FIRST, SECOND])
    await calls.revoked([FIRST, THIRD])
    await calls.lost([FIRST, SECOND, THIRD])
    await calls.lost([SECOND])
    await calls.assigned([FIRST])
    await calls.lost([FIRST])
    assert listener.calls == [
        ("assigned", {FIRST, SECOND}),
        ("revoked", {FIRST}),
        ("lost", {SECOND}),
        ("assigned", {FIRST}),
        ("lost", {FIRST}),
    ]


async def test_a_call_that_something_else_has_cancelled_is_an_error() -> None:
    """Passed on, it would end the rebalance as the end of the membership does."""

    class Cancelled(RebalanceListener):
        async def on_assigned(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
            raise asyncio.CancelledError

    with pytest.raises(PluginError, match="rebalance listener: CancelledError"):
        await ListenerCalls(Cancelled()).assigned([FIRST])


async def test_a_call_that_is_cancelled_with_its_task_is_cancelled() -> None:
    class Waits(RebalanceListener):
        async def on_assigned(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
            await anyio.sleep_forever()

    with anyio.move_on_after(0.01) as scope:
        await ListenerCalls(Waits()).assigned([FIRST])
    assert scope.cancelled_caught
