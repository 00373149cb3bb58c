"""The ZooKeeper session: one object is one session; it outlives connections and ends once.

It never retries a request and never begins a second session: after the end every call raises SessionExpiredError. The
`Lease` outlives sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self, TypeVar

import anyio

from kzconsumer import clock
from kzconsumer.errors import NodeExistsError, NoNodeError, SessionExpiredError, ZooKeeperError
from kzconsumer.zookeeper import server_choice, wire
from kzconsumer.zookeeper.credentials import Access
from kzconsumer.zookeeper.link import Arming
from kzconsumer.zookeeper.operations import (
    NO_NODE,
    OK,
    AclEntry,
    Check,
    ConnectString,
    Create,
    Delete,
    Node,
    Operation,
    SetData,
    Stat,
)
from kzconsumer.zookeeper.server_choice import FormerSession
from kzconsumer.zookeeper.session_life import SessionLife, SessionState
from kzconsumer.zookeeper.watch_table import Watch, WatchKind
from kzconsumer.zookeeper.wire import WireRequest

__all__ = [
    "Check",
    "ConnectString",
    "Create",
    "Delete",
    "FormerSession",
    "Node",
    "Operation",
    "SessionState",
    "SetData",
    "Stat",
    "Watch",
    "ZooKeeperSession",
]

R = TypeVar("R")


class _Watching(Protocol[R]):
    def __call__(self, path: str, full: str, *, watch: bool) -> WireRequest[R]: ...


class ZooKeeperSession(SessionLife):
    """An ensemble's nodes as seen by one session, below the connect string's chroot.

    `async with` begins it, without a time limit, and closes it. Every call raises ConnectionLostError (the outcome is
    unknown, the caller re-reads), SessionExpiredError (also when closed), NoNodeError, NodeExistsError,
    BadVersionError, ZooKeeperError. Concurrent calls are pipelined in call order; without a connection they wait for
    one. `timeout` is in seconds: the requested one, after the first connection the negotiated one. Connections of a
    `brief` session are logged at debug.

    `access` reads files and is called in a thread, for each round over the servers. If all servers refuse a session
    that none has let in before, it is over, and every call raises ConfigError; with `insist` it keeps retrying.
    Nodes created below the path `acl_below` get `acl`; others are open.
    """

    # One object is one session, and never becomes another. A task that was suspended while its session expired
    # therefore cannot write in the next one: its call raises SessionExpiredError. That is the first half of the
    # fencing; node versions, which the next owner changes, are the second, for requests that were on their way.
    def __init__(
        self,
        connect: ConnectString,
        timeout: float,
        *,
        brief: bool = False,
        access: Callable[[], Access] | None = None,
        acl: wire.Acl = "open",
        acl_below: str = "/",
        insist: bool = False,
    ) -> None:
        super().__init__(connect, timeout, brief=brief, access=access, insist=insist)
        self.connect = connect
        self._acl = acl
        self._acl_below = connect.full(acl_below)
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ZooKeeperSession {self.name} {self.state.value} at {self.connect}>"

    async def __aenter__(self) -> Self:
        if self._task:
            raise RuntimeError("a ZooKeeperSession is entered once")
        # A task of its own, not a task group: the caller's deadline around this call ends before the session does.
        self._task = asyncio.create_task(self.run(), name="zookeeper session")
        try:
            while self.state is not SessionState.CONNECTED:
                self.check()
                await self.changed.wait()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session; its ephemerals go at once if a server answers within timeout / 3. Idempotent.

        Raises nothing for a broken connection. If cancelled, it still ends the session on this side.
        """
        if self._task is None or self.of_another_process:
            self.end(SessionState.CLOSED, "closed")
            return
        if self._closing:
            await asyncio.wait([self._task])
            return
        self._closing = True
        try:
            with anyio.move_on_after(self.timeout / 3):
                await self.close_at_server()
        finally:
            self._task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task])
            self.end(SessionState.CLOSED, "closed")

    @property
    def expired(self) -> bool:
        """Whether the server ended the session."""
        return self.state is SessionState.EXPIRED

    def trusted(self) -> bool:
        """Whether the lease holds now."""
        time = server_choice.instant()
        return not self._over and time.boottime < self._heartbeat.safe_until(time)

    async def wait_trusted(self) -> None:
        """Wait until the lease holds. Raises SessionExpiredError after the end."""
        while not self.trusted():
            self.check()
            await self.renewed.wait()

    async def wait_expired(self) -> None:
        """Wait until the server has ended the session, for ever if it was closed. Raises ConfigError."""
        while not self.expired:
            if self.state is SessionState.REFUSED:
                self.check()
            await self.changed.wait()

    async def get(self, path: str) -> Node:
        return await self.ask(wire.get(path, self._full(path)))

    async def find(self, path: str) -> Node | None:
        """The node, or None."""
        try:
            return await self.get(path)
        except NoNodeError:
            return None

    async def exists(self, path: str) -> Stat | None:
        """The node's stat, or None."""
        try:
            return await self.ask(wire.exists(path, self._full(path)))
        except NoNodeError:
            return None

    async def acl(self, path: str) -> tuple[AclEntry, ...]:
        """What each user may do with the node. Raises NotPermittedError if this one may not read all of it."""
        return await self.ask(wire.acl(path, self._full(path)))

    async def children(self, path: str) -> list[str]:
        """The names of a node's children, sorted."""
        return await self.ask(wire.children(path, self._full(path)))

    async def watch_data(self, path: str) -> tuple[Node | None, Watch]:
        """The node and a watch for its change or deletion; None and a watch for its creation."""
        while True:
            watch = Watch(path)
            try:
                return await self._watch(wire.get, watch, {OK: WatchKind.DATA}), watch
            except NoNodeError:
                stat, watch = await self.watch_exists(path)
                if stat is None:
                    return None, watch
                watch.cancel()  # created in between: read it

    async def watch_exists(self, path: str) -> tuple[Stat | None, Watch]:
        """The stat and a watch for the node's change or deletion; None and a watch for its creation."""
        watch = Watch(path)
        kinds = {OK: WatchKind.DATA, NO_NODE: WatchKind.EXIST}
        try:
            return await self._watch(wire.exists, watch, kinds), watch
        except NoNodeError:
            return None, watch

    async def watch_children(self, path: str) -> tuple[list[str], Watch]:
        """The sorted children and a watch for one coming or going, or the node's deletion. Raises NoNodeError."""
        watch = Watch(path)
        return await self._watch(wire.children, watch, {OK: WatchKind.CHILD}), watch

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Make a node. Its parent must exist."""
        full = self._full(path)
        await self.ask(wire.create(path, full, data, ephemeral=ephemeral, acl=self._acl_of(full)))

    async def ensure(self, path: str) -> None:
        """Make the node and its parents, the chroot included, empty and persistent, where they are missing."""
        await self._ensure(path, self._full(path))

    async def _ensure(self, path: str, full: str) -> None:
        # Existing parents are not created again: that may be forbidden above them.
        try:
            await self.ask(wire.exists(path, full))
        except NoNodeError:
            pass
        else:
            return
        try:
            await self._create_empty(path, full)
        except NoNodeError:
            await self._ensure(path, full.rpartition("/")[0] or "/")
            await self._create_empty(path, full)

    async def _create_empty(self, path: str, full: str) -> None:
        with contextlib.suppress(NodeExistsError):
            await self.ask(wire.create(path, full, b"", ephemeral=False, acl=self._acl_of(full)))

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        """Replace the content if the node's version is `version` (-1: any)."""
        return await self.ask(wire.set_data(path, self._full(path), data, version))

    async def delete(self, path: str, version: int) -> None:
        """Remove the node if its version is `version` (-1: any)."""
        await self.ask(wire.delete(path, self._full(path), version))

    async def multi(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """All operations or none: per operation the new stat of a SetData, else None. Raises MultiFailedError."""
        if not operations:
            return []
        return await self.ask(wire.multi(operations, self._full, self._acl_of))

    async def sync(self, path: str = "/") -> None:
        """Later reads see at least what the leader had when this was answered."""
        await self.ask(wire.sync(path, self._full(path)))

    def _full(self, path: str) -> str:
        try:
            return self.connect.full(path)
        except ValueError as error:
            raise ZooKeeperError(path, str(error)) from None

    def _acl_of(self, full: str) -> wire.Acl:
        return self._acl if full.startswith(f"{self._acl_below}/") else "open"

    async def _watch(self, ask: _Watching[R], watch: Watch, kinds: Mapping[int, WatchKind]) -> R:
        full = self._full(watch.path)
        try:
            return await self.ask(ask(watch.path, full, watch=True), Arming(watch, full, kinds))
        except asyncio.CancelledError:
            watch.cancel()  # the reply may have armed it just before
            raise


class Lease:
    """Whether this process may still act as an owner: records may be delivered and published while `held`.

    It outlives sessions and refers to the current one. It makes deliveries by an expired member rare; correctness rests
    on fenced commits.
    """

    def __init__(self) -> None:
        self._session: ZooKeeperSession | None = None
        self._changed = anyio.Event()

    @property
    def session(self) -> ZooKeeperSession | None:
        """The session that is current now; None between two."""
        return self._session

    @property
    def safe_until(self) -> float:
        """Until then (`kzconsumer.clock`) no server can have expired the session; 0 without one."""
        return self._session.safe_until if self._session is not None else 0.0

    @property
    def held(self) -> bool:
        return self._session is not None and self._session.trusted()

    def set(self, session: ZooKeeperSession | None) -> None:
        self._session = session
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self) -> None:
        """Wait until the lease is held, across sessions."""
        while not self.held:
            changed = self._changed
            try:
                if self._session is not None:
                    await self._session.wait_trusted()
                    continue
            except SessionExpiredError:
                pass  # the connector sets the next session, or none
            await changed.wait()

    async def wait_lost(self) -> None:
        """Wait until the lease is not held."""
        while True:
            left = self.safe_until - clock.now()  # read once: doubt makes it 0 at any moment
            if left <= 0:
                return
            await anyio.sleep(left)
