"""Reads of nodes that are repeated only for what has changed: each node that was read has a watch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import anyio

from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Node
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches

T = TypeVar("T")

#: Reads in flight: the server's other clients do not wait behind more.
AT_ONCE = 100


class WatchedNodes:
    """The nodes of one session, for `groups.reader.nodes_of`. Raises as the session does."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.watches = Watches(session)
        self._limit = anyio.Semaphore(AT_ONCE)

    async def find(self, path: str) -> Node | None:
        return await self._limited(partial(self.watches.data, path, ""))

    async def children(self, path: str) -> list[str]:
        """None if the node is missing, which its watch remembers."""
        if await self._limited(partial(self.watches.exists, path, "")) is None:
            return []
        return await self._limited(partial(self.watches.children, path, ""))

    def forget(self, group: str) -> None:
        """Drop the watches of a group that was deleted."""
        at = GroupPaths(group)
        for path in (at.ids, at.owners, at.offsets, at.claims, at.run, at.topics, at.brokers):
            self.watches.forget(path)

    async def _limited(self, read: Callable[[], Awaitable[T]]) -> T:
        async with self._limit:
            return await read()
