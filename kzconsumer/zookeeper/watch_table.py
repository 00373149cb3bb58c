"""One-shot watches: which events of which nodes are waited for, and which watches a new connection must restore.

Callbacks run while the event is read, so before any reply that shows the change.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterator

from kzconsumer.errors import SessionExpiredError
from kzconsumer.logs.logger import get_logger

log = get_logger("kzconsumer.zookeeper")


class WatchKind(enum.Enum):
    """Which of the server's lists a watch is in: it depends on the node when it was set, not on the call."""

    DATA = "data"
    """An existing node: fires on change and deletion."""
    EXIST = "exist"
    """A missing node: fires on creation."""
    CHILD = "child"
    """A node's children: fires when one is created or deleted, and on the node's deletion."""


class EventType(enum.IntEnum):
    """`org.apache.zookeeper.Watcher.Event.EventType` (3.8)."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


FIRES = {
    EventType.CREATED: (WatchKind.EXIST, WatchKind.DATA),
    EventType.DELETED: (WatchKind.DATA, WatchKind.EXIST, WatchKind.CHILD),
    EventType.DATA_CHANGED: (WatchKind.DATA, WatchKind.EXIST),
    EventType.CHILDREN_CHANGED: (WatchKind.CHILD,),
}


class Watch:
    """One future event. It survives reconnects (an event missed meanwhile fires then), not the session.

    A program may have hundreds of thousands. Whatever each of them refers to makes a garbage collection, in which no
    heartbeat is sent, longer: so it has no more objects of its own than it needs.
    """

    __slots__ = ("_armed", "_callbacks", "_ended", "_over", "fired", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fired = False
        self._callbacks: tuple[Callable[[], None], ...] = ()
        self._over: asyncio.Event | None = None  # made for the first that waits
        self._ended: str | None = None
        self._armed: tuple[WatchTable, WatchKind, str] | None = None

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Call it once, synchronously, on the event; at once if it has fired; never on cancel or session end."""
        if self.fired:
            run_callback(callback)
        elif self._ended is None:
            self._callbacks += (callback,)

    async def wait(self) -> None:
        """Wait for the event.

        Raises SessionExpiredError if the session ends first; a cancelled watch waits for ever.
        """
        if not self.fired and self._ended is None:
            if self._over is None:
                self._over = asyncio.Event()
            await self._over.wait()
        if self._ended is not None:
            raise SessionExpiredError(self._ended)

    def cancel(self) -> None:
        """Drop the watch on this side; the server's event, if there is one, is ignored."""
        self._callbacks = ()
        if self._armed is not None:
            table, kind, path = self._armed
            self._armed = None
            table.discard(kind, path, self)

    def _fire(self) -> None:
        self.fired = True
        callbacks = self._done()
        for callback in callbacks:
            run_callback(callback)

    def _end(self, reason: str) -> None:
        self._ended = reason
        self._done()

    def _done(self) -> tuple[Callable[[], None], ...]:
        self._armed = None
        callbacks, self._callbacks = self._callbacks, ()
        if self._over is not None:
            self._over.set()
        return callbacks


class WatchTable:
    """The armed watches of one session, by the server's path."""

    def __init__(self) -> None:
        # Watches of a path fire in the order in which they were armed.
        self._armed: dict[WatchKind, dict[str, dict[Watch, None]]] = {kind: {} for kind in WatchKind}

    def arm(self, kind: WatchKind, path: str, watch: Watch) -> None:
        self._armed[kind].setdefault(path, {})[watch] = None
        watch._armed = self, kind, path

    def fire(self, event: EventType, path: str) -> None:
        # All watches leave the table before the first callback, which may look at it or cancel others.
        for watch in [watch for kind in FIRES[event] for watch in self._armed[kind].pop(path, ())]:
            watch._fire()

    def end(self, reason: str) -> None:
        """The session is over: `wait` raises SessionExpiredError."""
        watches = [watch for paths in self._armed.values() for armed in paths.values() for watch in armed]
        for paths in self._armed.values():
            paths.clear()
        for watch in watches:
            watch._end(reason)

    def chunks(self, limit: int) -> Iterator[dict[WatchKind, list[str]]]:
        """Every armed path once per kind, in groups of at most `limit` bytes of paths, but at least one path."""
        chunk: dict[WatchKind, list[str]] = {kind: [] for kind in WatchKind}
        size = 0
        for kind, paths in self._armed.items():
            for path in paths:
                cost = len(path.encode()) + 4
                if size and size + cost > limit:
                    yield chunk
                    chunk, size = {kind: [] for kind in WatchKind}, 0
                chunk[kind].append(path)
                size += cost
        if size:
            yield chunk

    def discard(self, kind: WatchKind, path: str, watch: Watch) -> None:
        armed = self._armed[kind].get(path, {})
        armed.pop(watch, None)
        if not armed:
            self._armed[kind].pop(path, None)


def run_callback(callback: Callable[[], None]) -> None:
    """Log what a callback raises: its bug is no reason to lose the connection."""
    try:
        callback()
    except Exception:
        log.exception("callback failed", callback=repr(callback))
