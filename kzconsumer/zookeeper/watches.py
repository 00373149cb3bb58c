"""Armed watches, one per node and kind, with what was read when they were armed; and many reads in one round trip.

A node whose watch is still armed is not read again, so a rebalance costs as much as has changed: ZooKeeper sends the
event before any reply that shows the change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import anyio

from kzconsumer.errors import ConnectionLostError, KzConsumerError, NoNodeError
from kzconsumer.zookeeper.operations import Node, Stat
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watch_table import Watch

# Reads are repeated when their reply was lost. Writes are never repeated here: only the caller can find out whether a
# lost one was executed.

T = TypeVar("T")


AT_ONCE = 256
"""Calls of one `outcomes` that are under way at a time, unless its caller says otherwise. A claim of 10,000 partitions
would send as many requests in one turn of the event loop, which takes seconds: the session would expire meanwhile."""


async def outcomes(calls: Iterable[Coroutine[Any, Any, T]], at_once: int = AT_ONCE) -> list[T | KzConsumerError]:
    """Each call's result or its error, in order, after all have ended."""
    pending = list(calls)
    results: list[Any] = [None] * len(pending)
    left = iter(enumerate(pending))

    async def work() -> None:
        for index, call in left:  # of all workers: each takes the next one
            try:
                results[index] = await call
            except KzConsumerError as error:
                results[index] = error

    try:
        async with anyio.create_task_group() as tasks:
            for _ in pending[:at_once]:
                tasks.start_soon(work)
    finally:
        for call in pending:  # one that was not begun is not left to the garbage collector, which would warn
            call.close()
    return results


async def together(calls: Iterable[Coroutine[Any, Any, T]], at_once: int = AT_ONCE) -> list[T]:
    """All results in order; raises the first error after all calls have ended."""
    results: list[T] = []
    for result in await outcomes(calls, at_once):
        if isinstance(result, KzConsumerError):
            raise result
        results.append(result)
    return results


async def repeated(read: Callable[[], Awaitable[T]]) -> T:
    """The result of a read, repeated as long as connections break; each attempt waits for a connection."""
    while True:
        try:
            return await read()
        except ConnectionLostError:
            continue


# Nodes that are read again at one timer, so that its cost does not grow with the group.
REREAD_AT_ONCE = 32


def _ignore(reason: str) -> None:
    """For readers that need no notification."""


class Watches:
    """Reads that leave a watch behind; `notify(reason)` is called once per event, synchronously."""

    def __init__(self, session: ZooKeeperSession, notify: Callable[[str], None] = _ignore) -> None:
        self._session = session
        self._notify = notify
        self._armed: dict[tuple[str, str], Watch] = {}
        self._known: dict[tuple[str, str], Any] = {}  # by the same key: what was read, true until the watch fires

    async def data(self, path: str, reason: str) -> Node | None:
        """The node, or None; a change of content, creation and deletion notify."""
        return await self._read("data", path, reason, self._session.watch_data, self._session.find)

    async def each_data(self, reasons: Mapping[str, str]) -> list[Node | None]:
        """`data` of several nodes, by path, with the reason of each. Only those are read that are not known."""
        unknown = [path for path in reasons if ("data", path) not in self._known]
        found = {path: self._known.get(("data", path)) for path in reasons}
        found.update(zip(unknown, await together([self.data(path, reasons[path]) for path in unknown]), strict=True))
        return list(found.values())

    async def blocking(self, path: str, reason: str) -> Node | None:
        """As `data`, of a node that has to go: `reread` never leaves it out."""
        return await self._read("blocking", path, reason, self._session.watch_data, self._session.find)

    async def children(self, path: str, reason: str) -> list[str]:
        """The children, sorted; none if the node is missing, whose creation notifies."""
        while self._known.get(("exists", path), path) is not None:  # what is known to be missing is not asked for
            try:
                names = await self._read("children", path, reason, self._session.watch_children, self._session.children)
            except NoNodeError:
                await self.exists(path, reason)
            else:
                return list(names)
        return []

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
            if key in self._armed:  # else it has changed since the request
                self._known[key] = value
        return value

    def still_there(self, path: str) -> bool:
        """Whether `blocking` found the node and it has not changed since, without a request."""
        return self._known.get(("blocking", path)) is not None

    def reread(self) -> None:
        """Forget what was read: the next reads go to the server, as if no watch could be trusted.

        Of the nodes read by `data` some are forgotten at each call, in turn.
        """
        # A node whose watch is armed is not read again: reading every member at each rebalance was quadratic in the
        # size of the group. That relies on each event being delivered. If a wait ended by its timer rather than by an
        # event, one may have been missed: so lists and nodes that block claims are read then, and of the others the
        # REREAD_AT_ONCE that were read longest ago, so that the cost of a timer does not grow with the group.
        known = self._known
        data = [key for key in known if key[0] == "data"]
        self._known = {key: known[key] for key in islice(data, REREAD_AT_ONCE, None)}

    def reread_below(self, paths: Collection[str]) -> None:
        """As `reread`, of all nodes below these paths."""
        below = tuple(f"{path}/" for path in paths)
        self._known = {key: value for key, value in self._known.items() if not key[1].startswith(below)}

    async def guard(self, path: str, touched: Callable[[], None]) -> Stat | None:
        """The node's stat; the next change of the node calls `touched`, once, instead of notifying."""
        stat, watch = await self._session.watch_exists(path)
        self._disarm("guard", path)
        self._armed["guard", path] = watch
        watch.add_callback(touched)
        return stat

    def forget(self, path: str) -> None:
        """Drop the watches of a node."""
        for kind in ("data", "blocking", "children", "exists"):
            self._disarm(kind, path)

    def unguard(self, path: str) -> None:
        """Drop the guard, before a change of our own."""
        self._disarm("guard", path)

    def _disarm(self, kind: str, path: str) -> None:
        self._known.pop((kind, path), None)
        if watch := self._armed.pop((kind, path), None):
            watch.cancel()

    def _arm(self, key: tuple[str, str], watch: Watch, reason: str, value: object) -> None:
        self._armed[key] = watch
        self._known[key] = value
        watch.add_callback(partial(self._fired, key, watch, reason))

    def _fired(self, key: tuple[str, str], watch: Watch, reason: str) -> None:
        if self._armed.get(key) is watch:
            del self._armed[key]
            self._known.pop(key, None)
            self._notify(reason)
