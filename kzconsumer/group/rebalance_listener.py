"""The application's listener, and the calls to it.

It is notified of the end only of partitions that were reported to it as assigned, also if the member leaves or loses
its session during a claim. A listener that exceeds its deadline is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import anyio

from kzconsumer.errors import PluginError, raised
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition

log = get_logger("kzconsumer.group")

Call = Callable[[int, frozenset[TopicPartition]], Awaitable[None]]


class RebalanceListener:
    """Override what you need; each method is awaited, within `deadline` seconds, with the generation and partitions.

    An exception ends the member. A method may await `leave()`, which returns at once there: the call is cancelled at
    its next await, and `on_revoked` follows for everything owned. A move to another stream of the member is not
    reported. `on_lost` is not in `kafka.javaapi.consumer.ConsumerRebalanceListener` (0.9 to 1.1), which reported lost
    partitions as released, or not at all.
    """

    deadline: float = 5.0

    async def on_assigned(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        """These are owned from now on; nothing of them is delivered before this call has ended.

        `ConsumerConnector.seek` may be awaited here, to begin elsewhere than at the stored offset.
        """

    async def on_revoked(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        """These will be released: nothing more is delivered, and the final commit follows this call."""

    async def on_lost(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        """These are no longer owned: what is not committed will be redelivered, possibly to another member."""


class ListenerCalls:
    """The listener of one member; without one the calls do nothing."""

    def __init__(self, listener: RebalanceListener | None) -> None:
        self._listener = listener if listener is not None else RebalanceListener()
        self._reported: set[TopicPartition] = set()
        self._tasks: set[int] = set()
        self.generation = 0

    @property
    def calling(self) -> bool:
        """Whether the current task is a call of the listener, which must not wait for the membership to end."""
        return anyio.get_current_task().id in self._tasks

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._reported.update(partitions)
        await self._call(self._listener.on_assigned, partitions)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        await self._call(self._listener.on_revoked, self._forget(partitions))

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        await self._call(self._listener.on_lost, self._forget(partitions))

    def _forget(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Those of them that were reported as assigned."""
        known = self._reported.intersection(partitions)
        self._reported -= known
        return known

    async def _call(self, call: Call, partitions: Collection[TopicPartition]) -> None:
        if not partitions:
            return
        task = anyio.get_current_task().id
        self._tasks.add(task)
        try:
            with anyio.move_on_after(self._listener.deadline) as scope:
                await call(self.generation, frozenset(partitions))
        except asyncio.CancelledError as error:
            # A future that it awaits may be cancelled by anybody. Passed on, that would end the member as a stop does.
            if (current := asyncio.current_task()) is None or current.cancelling():
                raise
            what = f"rebalance listener: {raised(error)}"
            raise PluginError(f"{what}: something that it awaited was cancelled") from error
        finally:
            self._tasks.discard(task)
        if scope.cancelled_caught:
            name = getattr(call, "__name__", repr(call))
            log.error("rebalance listener timed out", call=name, seconds=self._listener.deadline)
