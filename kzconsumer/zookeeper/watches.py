"""Armed watches: one per node and kind, each event told to one listener with its reason.

Owns the armed watches of one ZooKeeper session. The registries read through it. Reading a node whose watch is still
armed arms no second one: ZooKeeper sends the event before any reply that shows the change.
"""

from __future__ import annotations

from collections.abc import Callable

from kzconsumer.errors import NoNode
from kzconsumer.zookeeper.session import Node, Stat, Watch, ZooKeeperSession


class Watches:
    """Reads that leave a watch behind; `notify(reason)` is called once per event, synchronously."""

    def __init__(self, session: ZooKeeperSession, notify: Callable[[str], None]) -> None:
        self._session = session
        self._notify = notify
        self._armed: dict[tuple[str, str], Watch] = {}

    def __repr__(self) -> str:
        return f"<Watches {len(self._armed)} armed>"

    async def data(self, path: str, reason: str) -> Node | None:
        """The node, or None while there is none; a change of content, creation and deletion notify."""
        if ("data", path) in self._armed:
            return await self._session.find(path)
        node, watch = await self._session.watch_data(path)
        self._arm("data", path, watch, reason)
        return node

    async def children(self, path: str, reason: str) -> list[str]:
        """The children, sorted; none while the node itself is missing (its creation notifies)."""
        while True:
            try:
                if ("children", path) in self._armed:
                    return await self._session.children(path)
                names, watch = await self._session.watch_children(path)
            except NoNode:
                if await self.exists(path, reason) is None:
                    return []
                continue
            self._arm("children", path, watch, reason)
            return names

    async def exists(self, path: str, reason: str) -> Stat | None:
        """The node's stat, or None; creation, deletion and a change of content notify."""
        if ("exists", path) in self._armed:
            return await self._session.exists(path)
        stat, watch = await self._session.watch_exists(path)
        self._arm("exists", path, watch, reason)
        return stat

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
        if watch := self._armed.pop((kind, path), None):
            watch.cancel()

    def _arm(self, kind: str, path: str, watch: Watch, reason: str) -> None:
        key = kind, path
        self._armed[key] = watch

        def fired() -> None:
            if self._armed.get(key) is watch:
                del self._armed[key]
                self._notify(reason)

        watch.add_callback(fired)
