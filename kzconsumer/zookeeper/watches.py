"""Armed watches, with what they were armed on: one per node and kind, each event told to one listener with its reason.

Owns the armed watches of one ZooKeeper session. The registries read through it. A node whose watch is still armed is
not read again, so that a rebalance costs what changed and not the whole group: ZooKeeper sends the event before any
reply that shows the change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kzconsumer.errors import NoNode
from kzconsumer.zookeeper.session import Node, Stat, Watch, ZooKeeperSession

T = TypeVar("T")


def _nobody(reason: str) -> None:
    """For who wants the answer only, not what changes afterwards."""


class Watches:
    """Reads that leave a watch behind; `notify(reason)` is called once per event, synchronously."""

    def __init__(self, session: ZooKeeperSession, notify: Callable[[str], None] = _nobody) -> None:
        self._session = session
        self._notify = notify
        self._armed: dict[tuple[str, str], Watch] = {}
        self._known: dict[tuple[str, str], Any] = {}  # by the same key: what was read, true until the watch fires

    def __repr__(self) -> str:
        return f"<Watches {len(self._armed)} armed>"

    async def data(self, path: str, reason: str) -> Node | None:
        """The node, or None while there is none; a change of content, creation and deletion notify."""
        return await self._read("data", path, reason, self._session.watch_data, self._session.find)

    async def children(self, path: str, reason: str) -> list[str]:
        """The children, sorted; none while the node itself is missing (its creation notifies)."""
        while True:
            try:
                names = await self._read("children", path, reason, self._session.watch_children, self._session.children)
            except NoNode:
                if await self.exists(path, reason) is None:
                    return []
            else:
                return list(names)

    async def exists(self, path: str, reason: str) -> Stat | None:
        """The node's stat, or None; creation, deletion and a change of content notify."""
        return await self._read("exists", path, reason, self._session.watch_exists, self._session.exists)

    async def _read(
        self,
        kind: str,
        path: str,
        reason: str,
        arm: Callable[[str], Awaitable[tuple[T, Watch]]],
        read: Callable[[str], Awaitable[T]],
    ) -> T:
        key = kind, path
        if key not in self._armed:
            value, watch = await arm(path)
            self._arm(key, watch, reason, value)
        elif key in self._known:
            value = self._known[key]
        else:
            value = await read(path)
            if key in self._armed:  # else it has changed since it was asked for
                self._known[key] = value
        return value

    def still_there(self, path: str) -> bool:
        """Whether `exists` found the node and nothing has happened to it since: known without asking."""
        return self._known.get(("exists", path)) is not None

    def reread(self) -> None:
        """Read every node again when it is next asked for, as if no watch could be trusted."""
        self._known.clear()

    async def guard(self, path: str, touched: Callable[[], None]) -> Stat | None:
        """The node's stat; anything that happens to the node from now on calls `touched`, once, and notifies nobody."""
        stat, watch = await self._session.watch_exists(path)
        self._disarm("guard", path)
        self._armed["guard", path] = watch
        watch.add_callback(touched)
        return stat

    def forget(self, path: str) -> None:
        """Stop listening to a node."""
        for kind in ("data", "children", "exists"):
            self._disarm(kind, path)

    def unguard(self, path: str) -> None:
        """We are about to change the node ourselves."""
        self._disarm("guard", path)

    def _disarm(self, kind: str, path: str) -> None:
        self._known.pop((kind, path), None)
        if watch := self._armed.pop((kind, path), None):
            watch.cancel()

    def _arm(self, key: tuple[str, str], watch: Watch, reason: str, value: object) -> None:
        self._armed[key] = watch
        self._known[key] = value

        def fired() -> None:
            if self._armed.get(key) is watch:
                del self._armed[key]
                self._known.pop(key, None)
                self._notify(reason)

        watch.add_callback(fired)
