"""What an application may want to know of a rebalance, and how it is told.

Owns the generation number that goes with each call, and which partitions the listener believes to be ours: it hears of
the end of those alone, also when a member leaves or loses its session in the middle of claiming. The claims call it;
the application subclasses RebalanceListener and gives it to `kzconsumer.connect`. A listener that takes too long is
told of in the log and not waited for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import anyio
import structlog

from kzconsumer.model import TopicPartition

log = structlog.get_logger("kzconsumer.group")

Call = Callable[[int, frozenset[TopicPartition]], Awaitable[None]]


class RebalanceListener:
    """Override what you need; each method is awaited, within `deadline` seconds, with the generation and partitions.

    What they raise ends the member. A method may await `leave()`, which returns at once there: the call is cancelled at
    its next await, and `on_revoked` follows for everything owned. A change of stream inside the member is no rebalance.
    Beside `kafka.javaapi.consumer.ConsumerRebalanceListener` (0.9 to 1.1) the last method is new: there, lost
    partitions were reported as released, or not at all.
    """

    deadline: float = 5.0

    async def on_assigned(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        """These are ours from now on; nothing of them has been delivered yet."""

    async def on_revoked(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        """These go to others: nothing more is delivered, they are still ours, and a last commit follows this call."""

    async def on_lost(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        """These are not ours any more, and others may have them: what is not committed will be delivered again."""


class ListenerCalls:
    """The listener of one member, if it has one."""

    def __init__(self, listener: RebalanceListener | None) -> None:
        self._listener = listener
        self._told: set[TopicPartition] = set()
        self._tasks: set[int] = set()
        self.generation = 0

    def __repr__(self) -> str:
        return f"<ListenerCalls of {self._listener!r} at generation {self.generation}>"

    @property
    def calling(self) -> bool:
        """Whether the current task is in a call of the listener: what waits for the membership to end must not run."""
        return anyio.get_current_task().id in self._tasks

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        if self._listener is not None:
            self._told.update(partitions)
            await self._tell(self._listener.on_assigned, partitions)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        if self._listener is not None:
            await self._tell(self._listener.on_revoked, self._forget(partitions))

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        if self._listener is not None:
            await self._tell(self._listener.on_lost, self._forget(partitions))

    def _forget(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Those of them that it was told of."""
        known = self._told.intersection(partitions)
        self._told -= known
        return known

    async def _tell(self, call: Call, partitions: Collection[TopicPartition]) -> None:
        if not partitions:
            return
        assert self._listener is not None
        task = anyio.get_current_task().id
        self._tasks.add(task)
        try:
            with anyio.move_on_after(self._listener.deadline) as scope:
                await call(self.generation, frozenset(partitions))
        finally:
            self._tasks.discard(task)
        if scope.cancelled_caught:
            name = getattr(call, "__name__", repr(call))
            log.error("the listener was not waited for any longer", call=name, seconds=self._listener.deadline)
