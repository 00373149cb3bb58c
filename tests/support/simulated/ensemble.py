"""A ZooKeeper ensemble in memory: one authoritative tree, servers that follow it with a delay, sessions that expire.

`Ensemble` owns the sessions and the decided transactions; each `Server` its tree, which lags behind, its connections
and their watches. The order is ZooKeeper's: a connection's requests are answered in turn, an event precedes any reply
that shows the change, and a session that moved to another connection is not served on the old one. The tree is what the
ensemble has below a chroot; clients may name nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kzconsumer.zookeeper.operations import Create, Delete, Operation, Stat
from kzconsumer.zookeeper.watch_table import EventType
from tests.support.simulated import zookeeper_frames as frames
from tests.support.simulated.logins import Login
from tests.support.simulated.virtual_time import World
from tests.support.simulated.znode_tree import NO_AUTH, Refused, Transaction, Tree, written_below

SESSION_EXPIRED, SESSION_MOVED, QUOTA_EXCEEDED, THROTTLED = -112, -118, -125, -127
TICK = 0.5
"""A session expires between its timeout and this many seconds later."""
NEVER = 1 << 62
LINGERS = 1.0
"""Seconds for which the end of a connection may come after the answer that its session is closed."""
OPERATOR = 0
"""The session of an operator."""


class Peer(Protocol):
    """The network's side of a connection."""

    def deliver(self, data: bytes) -> None: ...

    def finish(self) -> None: ...


@dataclass
class Session:
    id: int
    timeout: float
    touched: float
    """When the last request of it came."""
    expires: float
    attached: Connection | None
    alive: bool = True
    began: int = 0  # the zxid of its beginning


LAG = (0.0005, 0.01)
"""Seconds between which a server is behind the decided transactions."""


class Ensemble:
    """See the module. `committed` are called with every executed transaction, when it is decided."""

    def __init__(self, world: World, servers: int = 3, lag: tuple[float, float] = LAG, chroot: str = "") -> None:
        self.world, self.chroot = world, chroot
        self.closed: dict[str, str] = {}
        """See `Tree.closed`."""
        self.tree = Tree(self.closed)
        self.sessions: dict[int, Session] = {}
        self.log: list[Transaction] = []
        self.committed: list[Callable[[int, Sequence[Operation]], None]] = []
        self.servers = [Server(self, lag) for _ in range(servers)]
        self.throttled = 0.0
        """The share of requests that overloaded servers do not execute."""
        self.quota: str | None = None
        """Below this path no node is created or set: its quota is used up."""
        self.forbidden: str | None = None
        """Below this path only the operator may create or set nodes."""
        self.too_large: str | None = None
        """A request that creates or sets a node below this path closes its connection, as one beyond jute.maxbuffer."""
        self.login: Callable[[Server], Login] | None = None
        """What each connection to a server has to pass before it is served; None: every client is let in."""
        self._last_session = 0x10_0000_0000

    def operate(self, *operations: Operation) -> None:
        """An operator's transaction; a refused one has no effect."""
        self.transact(OPERATOR, list(operations))

    def make(self, path: str, data: bytes = b"") -> None:
        """Creates a persistent node with its parents."""
        names = path.strip("/").split("/")
        for depth in range(1, len(names) + 1):
            self.operate(Create("/" + "/".join(names[:depth]), data if depth == len(names) else b""))

    def transact(self, session: int, operations: list[Operation]) -> tuple[int, list[Stat | None], int, int]:
        """Decides: the zxid, the stats, and the index and code of a refusal."""
        transaction = Transaction(self.tree.zxid + 1, session, operations, int(self.world.now * 1000))
        for above, code in ((self.quota, QUOTA_EXCEEDED), (self.forbidden, NO_AUTH)):
            index = written_below(above, operations)
            if session != OPERATOR and index is not None:
                transaction.operations = []
                self.tree.transact([], session, transaction.zxid, transaction.time_ms)
                self._decided(transaction, executed=False)
                return transaction.zxid, [], index, code
        stats, index, code = self.tree.transact(operations, session, transaction.zxid, transaction.time_ms)
        if code == NO_AUTH:
            transaction.operations = []
        self._decided(transaction, executed=code == 0)
        return transaction.zxid, stats, index, code

    def open(self, timeout: float, connection: Connection) -> Session:
        self._last_session += 1
        now = self.world.now
        session = Session(self._last_session, timeout, now, now + timeout + TICK, connection)
        self.sessions[session.id] = session
        session.began = self.transact(session.id, [])[0]
        self.world.at(session.expires, lambda: self._look(session))
        return session

    def stop_leader(self, stale: Server, stopped: float, alone: float) -> None:
        """The leader is suspended, then resumes, and does not know for a while that the others elect a new one.

        Meanwhile it reports "expired" for every session that it knows, on its own; the others keep them, and the new
        leader restarts their timeouts.
        """
        for server in self.servers:
            server.set_cut_off(True)

        def resume() -> None:
            stale.disowns = True
            for connection in list(stale.connections):
                connection.close()

        def elected() -> None:
            stale.disowns = False
            for session in self.sessions.values():
                self.touch(session)
            for server in self.servers:
                server.set_cut_off(False)

        self.world.after(stopped, resume)
        self.world.after(stopped + alone, elected)
        for session in self.sessions.values():
            session.expires = max(session.expires, self.world.now + stopped + alone + 1.0)  # no server ends it now

    def restore(self, zxid: int, *, elected: bool = False) -> None:
        """The servers are started from a copy of that moment: what was decided since is lost, ends of sessions, too.

        `elected`: as an ensemble elects a leader, whose zxids are above all that clients have seen (`Leader.lead`, 3.8:
        the epoch is their upper half). So sessions that are in the copy go on, without what they have written since.
        """
        seen = self.tree.zxid
        self.log = [transaction for transaction in self.log if transaction.zxid <= zxid]
        ended = {transaction.session for transaction in self.log if transaction.closes}
        self.tree = Tree()
        for transaction in self.log:
            self.tree.transact(transaction.operations, transaction.session, transaction.zxid, transaction.time_ms)
        self.tree.closed = self.closed
        self.tree.events.clear()
        if elected:
            self.log.append(Transaction(seen + 1, OPERATOR, [], int(self.world.now * 1000)))
            self.tree.transact([], OPERATOR, seen + 1, int(self.world.now * 1000))
        for server in self.servers:
            server.start_again()
        for session in self.sessions.values():
            session.alive = session.began <= zxid and session.id not in ended
            self.touch(session)
            self.world.at(session.expires, lambda session=session: self._look(session))  # type: ignore[misc]

    def touch(self, session: Session) -> None:
        session.touched = self.world.now
        session.expires = self.world.now + session.timeout + self.world.random.uniform(0, TICK)

    def close(self, session: Session) -> int:
        """End a session: its ephemerals are deleted in one transaction. Returns its zxid."""
        if session.alive:
            session.alive = False
            gone: list[Operation] = [Delete(path, -1) for path in self.tree.ephemerals(session.id)]
            transaction = Transaction(self.tree.zxid + 1, session.id, gone, int(self.world.now * 1000), closes=True)
            self.tree.transact(gone, OPERATOR, transaction.zxid, transaction.time_ms)  # no ACL keeps them
            self._decided(transaction, executed=True)
        return self.tree.zxid

    def _look(self, session: Session) -> None:
        if session.alive and self.world.now >= session.expires:
            self.close(session)
        elif session.alive:
            self.world.at(session.expires, lambda: self._look(session))

    def _decided(self, transaction: Transaction, executed: bool) -> None:
        self.tree.events.clear()
        self.log.append(transaction)
        if executed:
            for output in self.committed:
                output(transaction.session, transaction.operations)
        for server in self.servers:
            server.transaction_to_come()


class Server:
    """One server: decided transactions reach it late, and its clients read its state."""

    def __init__(self, ensemble: Ensemble, lag: tuple[float, float]) -> None:
        self.ensemble = ensemble
        self.lag = lag
        self.tree = Tree()
        self.connections: dict[Connection, None] = {}
        self.owing: dict[Connection, None] = {}
        """Connections that wait for an answer."""
        self.cut_off = False
        self.disowns = False
        """If it is cut off, it reports each session as expired."""
        self.read_only = False
        """If it is cut off, it serves only clients that asked for that, and hangs up on others."""
        self._watching: dict[str, dict[str, dict[Connection, None]]] = {"data": {}, "child": {}}
        self._applied = 0
        self._arrives = 0.0

    def accept(self, peer: Peer) -> Connection:
        connection = Connection(self, peer)
        connection.login = self.ensemble.login and self.ensemble.login(self)
        self.connections[connection] = None
        return connection

    def set_cut_off(self, cut_off: bool) -> None:
        """Alone it answers what it can; when the others are back, its clients have to reconnect, once."""
        is_back = self.cut_off and not cut_off
        self.cut_off = cut_off
        if is_back:
            for connection in list(self.connections):
                connection.close()
            self._catch_up(len(self.ensemble.log))

    def start_again(self) -> None:
        """With what the ensemble has; its clients have to reconnect."""
        for connection in list(self.connections):
            connection.close()
        self.tree, self._applied, self._arrives = Tree(), 0, 0.0
        for paths in self._watching.values():
            paths.clear()
        self._catch_up(len(self.ensemble.log))

    def transaction_to_come(self) -> None:
        world, number = self.ensemble.world, len(self.ensemble.log)
        self._arrives = max(self._arrives, world.now + world.random.uniform(*self.lag))
        world.at(self._arrives, lambda: self._catch_up(number))

    def watch(self, kind: str, path: str, connection: Connection) -> None:
        self._watching[kind].setdefault(path, {})[connection] = None

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self.owing.pop(connection, None)
        for paths in self._watching.values():
            for watchers in paths.values():
                watchers.pop(connection, None)

    def forget_watches(self, path: str) -> None:
        """The node's next change fires no watch, as if the event were lost."""
        for paths in self._watching.values():
            paths.pop(path, None)

    def delay_watches(self, path: str, by: float) -> None:
        """The change of the node's data that comes now is reported `by` seconds late, also to who has reconnected."""
        self._watching["data"].pop(path, None)
        self.ensemble.world.after(by, lambda: self._report(EventType.DATA_CHANGED, path, list(self.connections)))

    def _catch_up(self, number: int) -> None:
        if self.cut_off:
            return
        for transaction in self.ensemble.log[self._applied : number]:
            self._applied += 1
            self.tree.transact(transaction.operations, transaction.session, transaction.zxid, transaction.time_ms)
            events, self.tree.events = self.tree.events, []
            for kind, path in events:
                self._fire(kind, path)
            for connection in list(self.connections if transaction.closes else self.owing):
                connection.answer()
                if transaction.closes and connection.session and connection.session.id == transaction.session:
                    if connection.asked_to_close:
                        self.ensemble.world.after(LINGERS, connection.close)
                    else:
                        connection.close()

    def _fire(self, kind: EventType, path: str) -> None:
        output: dict[Connection, None] = {}
        if kind is not EventType.CHILDREN_CHANGED:
            output |= self._watching["data"].pop(path, {})
        if kind in (EventType.CHILDREN_CHANGED, EventType.DELETED):
            output |= self._watching["child"].pop(path, {})
        self._report(kind, path, output)

    def _report(self, kind: EventType, path: str, watchers: Iterable[Connection]) -> None:
        for connection in watchers:
            connection.notify(kind, path)


@dataclass(eq=False)
class Connection:
    """The server's side of one connection. Each answer waits for its turn, that of a write for its arrival here."""

    server: Server
    peer: Peer
    session: Session | None = None
    open: bool = True
    asked_to_close: bool = False
    _buffer: bytes = b""
    login: Login | None = None
    _greeted: bool = False
    _answers: deque[tuple[int, Callable[[], bytes]]] = field(default_factory=deque)

    def received(self, data: bytes) -> None:
        self._buffer += data
        if not self._greeted and self._buffer.startswith(b"srvr"):
            self.peer.deliver(frames.status(self.server.cut_off, self.server.read_only))
            self.close()
        while self.open and len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < 4 + size:
                return
            frame, self._buffer = self._buffer[4 : 4 + size], self._buffer[4 + size :]
            if self._greeted:
                self._request(frames.request(frame, self.server.ensemble.chroot))
            else:
                self._greeted = True
                self.greet(frames.handshake(frame))

    def refuse(self, data: bytes, code: int) -> None:
        """Answer a request with an error instead of executing it."""
        self._later(0, frames.reply(frames.request(data[4:]).xid, self.server.tree.zxid, code))

    def notify(self, kind: EventType, path: str) -> None:
        self.peer.deliver(frames.event(kind, path, self.server.ensemble.chroot, self.server.tree.zxid))

    def close(self) -> None:
        """The server closes it."""
        if self.open:
            self.lost()
            self.peer.finish()

    def lost(self) -> None:
        """It broke, or the client closed it."""
        self.open = False
        self._answers.clear()
        self.server.forget(self)

    def answer(self) -> None:
        """Send the answers whose turn has come and whose result is known here."""
        while self.open and self._answers and self._answers[0][0] <= self.server.tree.zxid:
            _, make = self._answers.popleft()
            self.peer.deliver(make())
        if self.open and self._answers:
            self.server.owing[self] = None
        else:
            self.server.owing.pop(self, None)

    def greet(self, hello: frames.Handshake) -> None:
        ensemble = self.server.ensemble
        if self.server.disowns and hello.session:
            self._later(0, frames.established(0, bytes(16), 0))
            return
        if self.server.cut_off and self.server.read_only:
            self.close()
            return
        if self.server.cut_off:
            return  # it cannot look up the session: no answer
        if hello.last_zxid > self.server.tree.zxid:
            self.close()
            return
        if hello.session == 0:
            session = ensemble.open(hello.timeout, self)
            self.session = session
            self._later(ensemble.tree.zxid, frames.established(session.id, bytes(16), session.timeout))
            return
        known = ensemble.sessions.get(hello.session)
        if known is None or not known.alive:
            self._later(0, frames.established(0, bytes(16), 0))
            return
        if known.attached is not None and known.attached.open:
            known.attached.close()
        known.attached = self
        self.session = known
        ensemble.touch(known)
        self._later(0, frames.established(known.id, bytes(16), known.timeout))

    def _request(self, request: frames.Request) -> None:
        session = self.session
        if session is None:
            self.close()
            return
        if self.login is not None and (request.kind in (frames.AUTH, frames.SASL) or not self.login.passed):
            self._prove(self.login, request)
            return
        if not self.server.cut_off:
            self.server.ensemble.touch(session)
        if request.kind not in (frames.PING, frames.CLOSE) and self._throttles():
            self._later(0, frames.reply(request.xid, self.server.tree.zxid, THROTTLED))
            return
        if request.kind in frames.WRITES or request.kind in (frames.SYNC, frames.CLOSE):
            too_large = self.server.ensemble.too_large
            if request.kind in frames.WRITES and written_below(too_large, request.operations) is not None:
                self.close()
                return
            if self.server.cut_off:
                self._later(NEVER, b"")
                return
            self._decide(session, request)
        else:
            self._answers.append((0, lambda: self._read(request)))
        self.answer()

    def _prove(self, login: Login, request: frames.Request) -> None:
        answer = login.take(request)
        if isinstance(answer, bytes):
            self._later(0, frames.reply(request.xid, 0, body=answer))
            return
        self._later(0, frames.reply(request.xid, 0, answer))
        self.close()

    def _throttles(self) -> bool:
        ensemble = self.server.ensemble
        return ensemble.throttled > 0 and ensemble.world.random.random() < ensemble.throttled

    def _decide(self, session: Session, request: frames.Request) -> None:
        ensemble = self.server.ensemble
        if session.attached is not self or not session.alive:
            code = SESSION_EXPIRED if not session.alive else SESSION_MOVED
            self._later(ensemble.tree.zxid, frames.reply(request.xid, ensemble.tree.zxid, code))
            return
        if request.kind == frames.CLOSE:
            # Applied here it triggers the session's own watches, is answered, and closes the connection, in this order.
            self.asked_to_close = True
            zxid = ensemble.close(session)
            self._later(zxid, frames.reply(request.xid, zxid))
            return
        body, code = b"", 0
        if request.kind == frames.SYNC:
            zxid, body = ensemble.tree.zxid, frames.path_body(request.path, ensemble.chroot)
        else:
            zxid, stats, index, code = ensemble.transact(session.id, request.operations)
            if not code:
                body = frames.written_body(request.kind, request.operations, stats, ensemble.chroot)
            elif request.kind == frames.MULTI:
                body, code = frames.failed_body(len(request.operations), index, code), 0
        self._later(zxid, frames.reply(request.xid, zxid, code, body))

    def _later(self, zxid: int, answer: bytes) -> None:
        self._answers.append((zxid, lambda: answer))
        self.answer()

    def _read(self, request: frames.Request) -> bytes:
        tree = self.server.tree
        if request.kind == frames.SET_WATCHES:
            self._watch_again(request)
            return frames.reply(request.xid, tree.zxid)
        if request.kind == frames.EXISTS and request.watch:
            self.server.watch("data", request.path, self)
        try:
            if request.kind == frames.PING:
                return frames.reply(request.xid, tree.zxid)
            node = tree.node(request.path)
            if request.kind != frames.EXISTS:
                self.server.ensemble.tree.permit(self.session.id if self.session else 0, request.path, "r")
        except Refused as refused:
            return frames.reply(request.xid, tree.zxid, refused.code)
        stat = frames.stat_body(node.stat(), len(node.data), node.pzxid)
        match request.kind:
            case frames.GET:
                body, kind = frames.data_body(node.data) + stat, "data"
            case frames.GET_ACL:
                body, kind = frames.acl_body(node.acl or frames.OPEN) + stat, ""
            case frames.CHILDREN2:
                body, kind = frames.names_body(list(node.children)) + stat, "child"
            case _:
                body, kind = stat, "data"
        if request.watch:
            self.server.watch(kind, request.path, self)
        return frames.reply(request.xid, tree.zxid, 0, body)

    def _watch_again(self, request: frames.Request) -> None:
        nodes = self.server.tree.nodes
        data, exist, child = request.watches
        for path in data:
            node = nodes.get(path)
            self._again("data", path, EventType.DATA_CHANGED, node.mzxid if node else None, request.since)
        for path in exist:
            if path in nodes:
                self.notify(EventType.CREATED, path)
            else:
                self.server.watch("data", path, self)
        for path in child:
            node = nodes.get(path)
            self._again("child", path, EventType.CHILDREN_CHANGED, node.pzxid if node else None, request.since)

    def _again(self, kind: str, path: str, changed: EventType, at: int | None, since: int) -> None:
        """A watch on a node last written at `at` (None: deleted), set by a client that has seen everything up to
        `since`.
        """
        if at is None:
            self.notify(EventType.DELETED, path)
        elif at > since:
            self.notify(changed, path)
        else:
            self.server.watch(kind, path, self)
