"""One ZooKeeper session over its successive connections: established, kept, restored, ended.

Owns the connection, the session's id, its last zxid, the lease, and the calls that wait for a connection. Used by
`session.py` alone, which puts the operations on top. One background task does all of it; nothing is ever sent twice.
"""

from __future__ import annotations

import asyncio
import enum
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import structlog
from anyio import to_thread

from kzconsumer import clock
from kzconsumer.errors import ConfigError, ConnectionLost, ProtocolError, SecurityError, SessionExpired, ZooKeeperError
from kzconsumer.zookeeper import hung_up, wire
from kzconsumer.zookeeper.access import Access
from kzconsumer.zookeeper.connect_string import ConnectString
from kzconsumer.zookeeper.former_session import FormerSession
from kzconsumer.zookeeper.heartbeat import Beat, Heartbeat, Instant
from kzconsumer.zookeeper.link import HungUp, Link
from kzconsumer.zookeeper.operations import Check
from kzconsumer.zookeeper.session_calls import Arming, Asked, Own
from kzconsumer.zookeeper.watch import WatchTable, run_callback

log = structlog.get_logger("kzconsumer.zookeeper")

R = TypeVar("R")
_PLAIN = Access()
PAUSE = 0.05, 1.0
"""Seconds between rounds over the hosts, first and longest; each is shortened by up to half, at random."""
FORMER_ATTEMPTS = 3
MIN_ATTEMPT = 0.5
"""Seconds a host is given at least to answer the handshake."""


class SessionState(enum.Enum):
    """What listeners are told. EXPIRED, REFUSED (no server ever let us in) and CLOSED are the end."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    REFUSED = "refused"
    CLOSED = "closed"


class SessionLife:
    """See the module. `run` is the background task; `ask` the way in for every request."""

    def __init__(
        self, connect: ConnectString, timeout: float, *, brief: bool, access: Callable[[], Access] | None, insist: bool
    ) -> None:
        self.connect = connect
        self._access = access
        self._insist = insist
        self._refusal: tuple[str, ...] = ()
        self.timeout = timeout
        self.refusals: tuple[str, ...] = ()
        """Why there is no connection: what each server said, or what came instead, when all were tried last."""
        self._told_of_connections = log.debug if brief else log.info
        self.id = 0
        self.state = SessionState.SUSPENDED
        self.watches = WatchTable()
        self.listeners: list[Callable[[SessionState], None]] = []
        self.changed = asyncio.Event()
        """Set, and replaced, when the state changes and when the lease is renewed."""
        self._password = bytes(16)
        self._zxid = 0
        self._restoring = 0  # SetWatches without reply: until they are through, _zxid stays where they start from
        self._heartbeat = Heartbeat()
        self._link: Link | None = None
        self._waiting: dict[Asked[Any], None] = {}
        self._closing = False
        self.looked = clock.now()
        """When the task last went round: it does every second or so, or it has broken."""
        self._over = ""
        self._pause = 0.0

    def __repr__(self) -> str:
        return f"<SessionLife {self.name} {self.state.value} {self._link} {self.watches} {self._heartbeat}>"

    @property
    def name(self) -> str:
        """The session's id as ZooKeeper's own logs write it."""
        return f"{self.id & 0xFFFFFFFFFFFFFFFF:#x}"

    @property
    def over(self) -> bool:
        return bool(self._over)

    @property
    def safe_until(self) -> float:
        return 0.0 if self._over else self._heartbeat.safe_until(_now())

    @property
    def former(self) -> FormerSession | None:
        """For the next session to end, since a server may have been wrong about the end of this one."""
        return FormerSession(self.id, self._password, self.timeout, self._heartbeat.kept_until) if self.id else None

    async def end_former(self, former: FormerSession) -> None:
        """Have the server that we are connected with close it, if it is still kept. A few attempts, then it is left."""
        reason: object = "keys or passwords cannot be read"
        for _ in range(FORMER_ATTEMPTS):
            access = await self._read_access([])
            if self._link is None or access is None or self._over:
                break
            try:
                if await former.end(self._link.host, access):
                    log.info("ended our former session, which ZooKeeper still kept", former=repr(former))
                return
            except (ConnectionLost, ProtocolError, TimeoutError, ZooKeeperError) as error:
                reason = error
                await anyio.sleep(PAUSE[0])
        log.warning("our former session is left to expire", former=repr(former), reason=str(reason))

    def check(self) -> None:
        """Raises SessionExpired after the end, ConfigError when that is that no server lets us in."""
        if self._over:
            raise self._end()

    async def ask(self, request: wire.Request[R], arming: Arming | None = None) -> R:
        """The reply. Sent in the order of calls; waits for a connection if there is none, and leaves when cancelled.

        Raises ConnectionLost (sent, no reply), SessionExpired, and what the server refused with.
        """
        self.check()
        if self._closing:
            raise SessionExpired("the session is being closed")
        return await self._ask(Asked(request, self._loss, arming, self.watches))

    async def close(self) -> None:
        """Tell the server, so that our ephemerals go at once; again on a new connection: closing twice is harmless."""
        self._closing = True
        # The end comes while the reply is read: the server's FIN behind it must not look like a loss.
        closing = wire.close_session(lambda: self.end(SessionState.CLOSED, "closed"))
        while self.id and not self._over:
            try:
                await self._ask(Asked(closing, self._loss))
            except ConnectionLost:
                continue
            except (SessionExpired, ZooKeeperError):
                return

    def end(self, state: SessionState, reason: str) -> None:
        """Nothing of this session runs after this; whoever waits for something is told. Idempotent."""
        if self._over:
            return
        self._over = f"session {self.name}: {reason}"
        if self._link:
            self._link.abort(reason)
        for call in list(self._waiting):
            call.lost(reason)
        self._waiting.clear()
        self.watches.end(self._over)
        self._tell(state)

    async def run(self) -> None:
        """Connect and serve until the session is over. Ends without an exception unless cancelled."""
        try:
            while not self._over:
                link = await self._connect()
                await self._serve(link)
                self._heartbeat.detach()
                if not self._over:
                    if link.refused is not None:
                        self._refused([f"{link.where}: {link.refused}"])
                    log.warning("connection lost", host=link.where, session=self.name, reason=link.lost.result())
                    self._tell(SessionState.SUSPENDED)
        except ConfigError as error:
            self._refusal = error.faults
            self.end(SessionState.REFUSED, str(error))
        except SessionExpired as error:
            self.end(SessionState.CLOSED if self._closing else SessionState.EXPIRED, str(error))
            if not self._closing:
                log.warning("session expired", session=self.name)
        except Exception as error:
            # Ended before it is told: telling may be what failed, and whoever waits must not wait for ever.
            self.end(SessionState.EXPIRED, f"failed: {error!r}")
            log.exception("session failed", session=self.name)

    async def _ask(self, call: Asked[R]) -> R:
        if self._link and not self._link.lost.done():
            self._link.send(call.request.body, call)
        else:
            self._waiting[call] = None
        try:
            return await call.outcome
        finally:
            self._waiting.pop(call, None)

    async def _connect(self) -> Link:
        told: list[str] = []
        while True:
            await anyio.sleep(self._pause * random.uniform(0.5, 1))
            # Back to no pause when a probe is answered: a server that takes us and drops us is a failing one too.
            self._pause = min(max(self._pause * 2, PAUSE[0]), PAUSE[1])
            reasons: list[str] = []
            refusals: list[str] = []
            access = await self._read_access(refusals)
            for host, port in self._order():
                if access is None:
                    break
                sent = _now()
                self.looked = sent.boottime
                try:
                    link, answer = await Link.open(
                        host,
                        port,
                        wire.handshake(self.id, self._password, self.timeout, self._zxid),
                        timeout=max(self.timeout / 3 / len(self.connect.hosts), MIN_ATTEMPT),
                        on_event=self._event,
                        on_zxid=self._seen,
                        access=access,
                    )
                except SecurityError as error:
                    refusals.append(str(error))
                    continue
                except HungUp as error:
                    # Servers have let us in before: what they want is known, and they are not asked every second.
                    why = "it has no quorum, or is behind" if self.id else await hung_up.explain(host, port)
                    reasons.append(f"{error}: {why}")
                    continue
                except (ConnectionLost, ProtocolError) as error:
                    log.debug("connection refused", reason=str(error))
                    reasons.append(str(error))
                    continue
                if answer.session_id and answer.timeout > 0:
                    self._attach(link, answer, sent)
                    return link
                link.abort("the server does not know the session")
                if self.id:
                    raise SessionExpired("expired")
                reasons.append(f"{link.where}: no session given")
            self.refusals = (*refusals, *reasons)
            if refusals and not reasons:
                self._refused(refusals)
            if refusals and sorted(refusals) != told:
                told = sorted(refusals)
                log.error("no secure connection to ZooKeeper", hosts=str(self.connect), reasons=self.refusals)
            elif not told:
                log.warning("no ZooKeeper server answers", hosts=str(self.connect), reasons=reasons)
                told = ["told"]

    async def _read_access(self, refusals: list[str]) -> Access | None:
        """None after adding to `refusals` what is wrong with keys or passwords."""
        if self._access is None:
            return _PLAIN
        try:
            return await to_thread.run_sync(self._access)
        except ConfigError as error:
            refusals.extend(error.faults)
            return None

    def _refused(self, refusals: list[str]) -> None:
        """No server would take us. Raises ConfigError unless one has before: settings there are being changed then."""
        if not self._insist:
            raise ConfigError(refusals)

    def _order(self) -> list[tuple[str, int]]:
        hosts = random.sample(self.connect.hosts, len(self.connect.hosts))
        return sorted(hosts, key=lambda host: self._link is not None and self._link.host == host)  # the lost one last

    def _attach(self, link: Link, answer: wire.Established, sent: Instant) -> None:
        again = self.id != 0
        self.id, self._password, self.timeout = answer.session_id, answer.password, answer.timeout
        self._heartbeat.attach(None if again else sent, _now(), self.timeout)
        self._link = link
        if link.lost.done():
            return
        self.refusals = ()
        self._told_of_connections("connected", host=link.where, session=self.name, timeout=self.timeout, again=again)
        # Watches before any request: the server keeps the order, so no reply overtakes a missed event.
        chunks = list(self.watches.chunks(wire.WATCH_CHUNK))
        self._restoring = len(chunks)
        for chunk in chunks:
            link.send(wire.set_watches(self._zxid, chunk), Own(self._restored), wire.SET_WATCHES_XID)
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            if not call.outcome.done():  # else given up just now
                link.send(call.request.body, call)
        self._tell(SessionState.CONNECTED)

    async def _serve(self, link: Link) -> None:
        while not link.lost.done():
            self.looked = clock.now()
            match self._heartbeat.beat(_now(), link.arrived):
                case Beat.SILENT:
                    link.abort(f"no probe answered for {self.timeout / 3:.1f} s")
                    return
                case Beat.SLOW:
                    link.abort("too slow: bytes arrive, but no probe's answer")
                    return
                case Beat.DOUBT:
                    log.warning(
                        "session doubtful", session=self.name, reason="the event loop was late or a clock jumped"
                    )
                    self._probe(link)
                case Beat.PROBE:
                    self._probe(link)
                case Beat.WAIT:
                    pass
            await asyncio.wait([link.lost], timeout=self._heartbeat.interval)

    def _probe(self, link: Link) -> None:
        sent = _now()

        def answered() -> None:
            self._heartbeat.probe_answered(sent, _now())
            self._insist = True
            self._pause = 0.0
            self._changed()

        self._heartbeat.probe_sent(sent)
        link.send(wire.multi([Check("/", -1)], str).body, Own(answered))

    def _loss(self, reason: str) -> ConnectionLost | SessionExpired | ConfigError:
        if self._over:
            return self._end()
        if self._link is not None and self._link.refused is not None and not self._insist:
            return ConfigError([f"{self._link.where}: {self._link.refused}"])
        return ConnectionLost(reason)

    def _end(self) -> SessionExpired | ConfigError:
        return ConfigError(self._refusal) if self._refusal else SessionExpired(self._over)

    def _restored(self) -> None:
        self._restoring -= 1

    def _seen(self, zxid: int) -> None:
        # A connection that breaks between two SetWatches must not hide events from the second.
        if not self._restoring:
            self._zxid = zxid

    def _event(self, body: bytes) -> None:
        if event := wire.event(body):
            self.watches.fire(*event)

    def _tell(self, state: SessionState) -> None:
        if state is not self.state:
            self.state = state
            for listener in self.listeners:
                run_callback(lambda listener=listener: listener(state))  # type: ignore[misc]
        self._changed()

    def _changed(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def _now() -> Instant:
    return Instant(clock.now(), time.time())
