"""A ZooKeeper session over its successive connections: established, kept alive, restored, ended.

One background task does all of it but the beats; nothing that may have been executed is ever sent twice.
"""

from __future__ import annotations

import asyncio
import enum
import os
import random
from collections.abc import Callable
from typing import Any, TypeVar

import anyio

from kzconsumer import clock
from kzconsumer.errors import (
    ConfigError,
    ConnectionLostError,
    NotNowError,
    ProtocolError,
    SessionExpiredError,
    ZooKeeperError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.zookeeper import server_choice, wire
from kzconsumer.zookeeper.credentials import Access
from kzconsumer.zookeeper.heartbeat_and_lease import Beat, Heartbeat
from kzconsumer.zookeeper.link import Arming, CallerRequest, Link, Own
from kzconsumer.zookeeper.operations import Check, ConnectString
from kzconsumer.zookeeper.server_choice import PAUSE, FormerSession, Found, Handshake, Refusal, ServerChoice
from kzconsumer.zookeeper.watch_table import WatchTable, run_callback

log = get_logger("kzconsumer.zookeeper")

R = TypeVar("R")
FORMER_ATTEMPTS = 3
_OF_THE_PARENT = "it belongs to the process that has forked this one"


class SessionState(enum.Enum):
    """As reported to listeners. EXPIRED, REFUSED (no server ever let us in) and CLOSED are final."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    REFUSED = "refused"
    CLOSED = "closed"


class SessionLife:
    """The session without its operations. `run` is the background task; every request goes through `ask`."""

    def __init__(
        self, connect: ConnectString, timeout: float, *, brief: bool, access: Callable[[], Access] | None, insist: bool
    ) -> None:
        self.timeout = timeout
        """Seconds: the requested one, after the first connection the negotiated one."""
        self._servers = ServerChoice(connect, access, insist=insist, on_event=self._event, on_zxid=self._seen)
        self._refusal: tuple[str, ...] = ()
        self._brief = brief
        self._postponed: dict[object, str] = {}
        self._postponed_reported: set[str] = set()
        self._log_connection = log.debug if brief else log.info
        self.id = 0
        """As `Stat.ephemeral_owner` has it; 0 before the first connection."""
        self.state = SessionState.SUSPENDED
        self.connections = 0
        """How many it has had. On one of them a server never goes back in time, as one restored from a copy does."""
        self.watches = WatchTable()
        self.listeners: list[Callable[[SessionState], None]] = []
        """Called with every change of state, synchronously."""
        self.changed = asyncio.Event()
        """Set, and replaced, when the state changes."""
        self.renewed = asyncio.Event()
        """The same, and when the lease is renewed."""
        self._password = bytes(16)
        self._zxid = 0
        self._restoring = 0  # SetWatches without reply; until they have one, _zxid stays where they start from
        self._heartbeat = Heartbeat()
        self._next_beat: asyncio.TimerHandle | None = None
        self._link: Link | None = None
        self._waiting: dict[CallerRequest[Any], None] = {}
        self._closing = False
        self.last_loss: tuple[float, str] | None = None
        """When a connection was lost (`kzconsumer.clock`), and why."""
        self._process = os.getpid()
        self._served = self._attached = clock.now()
        self._over = ""

    @property
    def of_another_process(self) -> bool:
        """Whether this is a forked child: a server would give it its parent's session, and close that for it."""
        return os.getpid() != self._process

    @property
    def name(self) -> str:
        """The session's id as ZooKeeper's own logs write it."""
        return f"{self.id & 0xFFFFFFFFFFFFFFFF:#x}"

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Of each server, as of the last round over all of them; none with a connection."""
        return self._servers.refusals

    @property
    def why_refused(self) -> str:
        """The reasons of `refusals` in one line; empty if there are none."""
        return "; ".join(each.reason for each in self.refusals)

    @property
    def postponed(self) -> str | None:
        """Why a request is not executed and sent again: the server is overloaded, or a quota is used up."""
        return next(iter(self._postponed.values()), None)

    def why_unanswered(self, since: float) -> str | None:
        """Why a request of that time (`kzconsumer.clock`) has no answer yet; None if that is unknown."""
        lost_at, reason = self.last_loss or (0.0, None)
        return self.postponed or self.why_refused or (reason if lost_at >= since else None)

    @property
    def unanswered(self) -> bool:
        """Whether a server has yet to answer, also a request that its caller has given up, or to accept us."""
        return self._link is None or self._link.lost.done() or self._link.unanswered

    @property
    def task_last_ran(self) -> float:
        """When the task last did something (`kzconsumer.clock`): it does every second or so, or it is stuck."""
        return max(self._served, self._servers.last_attempt)

    @property
    def safe_until(self) -> float:
        """Until then (`kzconsumer.clock`) the server cannot have expired the session; 0.0 if that is in doubt."""
        return 0.0 if self._over else self._heartbeat.safe_until(server_choice.instant())

    @property
    def server(self) -> tuple[str, int] | None:
        """The one that is connected; None without a connection."""
        return self._link.host if self._link is not None and not self._link.lost.done() else None

    @property
    def former(self) -> FormerSession | None:
        """For `end_former` of the next session: a server may have been wrong about the end of this one."""
        return FormerSession(self.id, self._password, self.timeout, self._heartbeat.kept_until) if self.id else None

    async def end_former(self, former: FormerSession) -> None:
        """Have the connected server close that session if it still exists. It expires anyhow if a few attempts fail."""
        reason: object = "keys or passwords cannot be read"
        for _ in range(FORMER_ATTEMPTS):
            access = await self._servers.read_access([])
            if self._link is None or access is None or self._over:
                break
            try:
                if await former.end(self._link.host, access):
                    log.info("former session closed", former=repr(former))
                return
            except (ConnectionLostError, ProtocolError, TimeoutError, ZooKeeperError) as error:
                reason = error
                await anyio.sleep(PAUSE[0])
        log.warning("former session left to expire", former=repr(former), reason=str(reason))

    def check(self) -> None:
        """Raises SessionExpiredError after the end, ConfigError if no server let us in."""
        if self.of_another_process:
            self.end(SessionState.CLOSED, _OF_THE_PARENT)
        if self._over:
            raise self._end()

    async def ask(self, request: wire.WireRequest[R], arming: Arming | None = None) -> R:
        """Send a request, in the order of calls, as soon as there is a connection; returns the reply.

        Raises ConnectionLostError (sent, no reply), SessionExpiredError, and the server's refusal. A request that an
        overloaded server has not executed is sent again; one that exceeds a quota, too, unless the session is brief.
        """
        pause, asking = PAUSE[0], object()
        try:
            while True:
                self.check()
                if self._closing:
                    raise SessionExpiredError("the session is being closed")
                try:
                    return await self._ask(CallerRequest(request, self._loss, arming, self.watches))
                except NotNowError as error:
                    if error.wait and self._brief:
                        raise
                    self._postpone(asking, error)
                await anyio.sleep(pause * random.uniform(0.5, 1))
                pause = min(pause * 2, PAUSE[1])
        finally:
            if self._postponed.pop(asking, None) is not None and not self._postponed:
                self._postponed_reported.clear()

    def _postpone(self, asking: object, error: NotNowError) -> None:
        """Each reason is logged once, until nothing is postponed."""
        reason = str(error).removeprefix(f"{error.path}: ")
        self._postponed[asking] = reason
        if reason not in self._postponed_reported:
            self._postponed_reported.add(reason)
            log.warning("request postponed by ZooKeeper", session=self.name, path=error.path, reason=reason)

    async def close_at_server(self) -> None:
        """Have the server close the session and delete its ephemeral nodes, on as many connections as that takes."""
        # The end comes while the reply is read: the server's FIN behind it must not look like a loss.
        closing = wire.close_session(lambda: self.end(SessionState.CLOSED, "closed"))
        while self.id and not self._over:
            try:
                await self._ask(CallerRequest(closing, self._loss))
            except ConnectionLostError:
                continue
            except (SessionExpiredError, ZooKeeperError):
                return

    def end(self, state: SessionState, reason: str) -> None:
        """Nothing of this session runs after this; everything that waits for it fails. Idempotent."""
        if self._over:
            return
        self._over = f"session {self.name}: {reason}"
        if self._link:
            self._link.abort(reason)
        for call in list(self._waiting):
            call.lost(reason)
        self._waiting.clear()
        self.watches.end(self._over)
        self._enter(state)

    async def run(self) -> None:
        """Connect and serve until the session is over. Ends without an exception unless cancelled."""
        try:
            while not self._over:
                if self.of_another_process:
                    self.end(SessionState.CLOSED, _OF_THE_PARENT)
                    return
                session = Handshake(self.id, self._password, self.timeout, self._zxid)
                lost = self._link.host if self._link else None
                link = self._attach(await self._servers.connect(session, lost, self._heartbeat.kept_until))
                await self._serve(link)
                self._heartbeat.detach()
                if not self._over:
                    self.last_loss = clock.now(), link.lost.result()
                    if link.refused is not None:
                        self._servers.refused([f"{link.where}: {link.refused}"])
                    log.warning("connection lost", host=link.where, session=self.name, reason=link.lost.result())
                    self._enter(SessionState.SUSPENDED)
        except ConfigError as error:
            self._refusal = error.faults
            self.end(SessionState.REFUSED, str(error))
        except SessionExpiredError as error:
            self.end(SessionState.CLOSED if self._closing else SessionState.EXPIRED, str(error))
            if not self._closing:
                log.warning("session expired", session=self.name)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        # Ended before it is logged: nothing that waits may wait for ever, even if logging is what failed.
        self.end(SessionState.EXPIRED, f"failed: {error!r}")
        log.exception("session failed", session=self.name)

    async def _ask(self, call: CallerRequest[R]) -> R:
        if self._link and not self._link.lost.done():
            self._link.send(call.request.body, call)
        else:
            self._waiting[call] = None
        try:
            return await call.outcome
        finally:
            self._waiting.pop(call, None)

    def _attach(self, found: Found) -> Link:
        link, answer, sent = found
        again = self.id != 0
        self.id, self._password, self.timeout = answer.session_id, answer.password, answer.timeout
        self._heartbeat.attach(None if again else sent, server_choice.instant(), self.timeout)
        self.connections += 1
        self._link, self._attached = link, clock.now()
        if link.lost.done():
            return link
        self._log_connection("connected", host=link.where, session=self.name, timeout=self.timeout, again=again)
        # Watches before any request: the server keeps the order, so no reply overtakes a missed event. Only if it
        # postpones them (`_restore`) events come a second late: meanwhile a lost partition is still handed out.
        chunks = list(self.watches.chunks(wire.WATCH_CHUNK))
        self._restoring = len(chunks)
        for chunk in chunks:
            self._restore(link, wire.set_watches(self._zxid, chunk))
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            if not call.outcome.done():  # else given up just now
                link.send(call.request.body, call)
        self._enter(SessionState.CONNECTED)
        return link

    async def _serve(self, link: Link) -> None:
        self._beat(link)
        try:
            await asyncio.wait([link.lost])
        finally:
            if self._next_beat is not None:
                self._next_beat.cancel()

    def _beat(self, link: Link) -> None:
        """A timer calls it, not the task, which costs more to wake."""
        if link.lost.done():
            return
        self._served = clock.now()
        try:
            match self._heartbeat.beat(server_choice.instant(), link.arrived):
                case Beat.SILENT:
                    link.abort(f"no probe answered for {self.timeout / 3:.1f} s")
                case Beat.SLOW:
                    link.abort("too slow: bytes arrive, but no probe's answer")
                case Beat.DOUBT:
                    log.warning(
                        "session doubtful", session=self.name, reason="the event loop was late or a clock jumped"
                    )
                    self._probe(link)
                case Beat.PROBE:
                    self._probe(link)
                case Beat.WAIT:
                    pass
        except Exception as error:
            self._fail(error)
        self._next_beat = asyncio.get_running_loop().call_later(self._heartbeat.interval, self._beat, link)

    def _probe(self, link: Link) -> None:
        sent = server_choice.instant()

        def answered() -> None:
            self._heartbeat.probe_answered(sent, server_choice.instant())
            self._servers.served(clock.now() - self._attached)
            self._renewed()

        self._heartbeat.probe_sent(sent)
        link.send(wire.multi([Check("/", -1)], str).body, Own(answered, lambda: None))  # the next one may be answered

    def _loss(self, reason: str) -> ConnectionLostError | SessionExpiredError | ConfigError:
        if self._over:
            return self._end()
        if self._link is not None and self._link.refused is not None and not self._servers.insist:
            return ConfigError([f"{self._link.where}: {self._link.refused}"])
        return ConnectionLostError(reason)

    def _end(self) -> SessionExpiredError | ConfigError:
        return ConfigError(self._refusal) if self._refusal else SessionExpiredError(self._over)

    def _restore(self, link: Link, body: bytes) -> None:
        def again() -> None:
            asyncio.get_running_loop().call_later(PAUSE[1], self._restore, link, body)

        link.send(body, Own(self._restored, again), wire.SET_WATCHES_XID)

    def _restored(self) -> None:
        self._restoring -= 1

    def _seen(self, zxid: int) -> None:
        # A connection that breaks between two SetWatches must not hide events from the second.
        if not self._restoring:
            self._zxid = zxid

    def _event(self, body: bytes) -> None:
        if event := wire.event(body):
            self.watches.fire(*event)

    def _enter(self, state: SessionState) -> None:
        if state is not self.state:
            self.state = state
            for listener in self.listeners:
                run_callback(lambda listener=listener: listener(state))  # type: ignore[misc]
        self.changed.set()
        self.changed = asyncio.Event()
        self._renewed()

    def _renewed(self) -> None:
        self.renewed.set()
        self.renewed = asyncio.Event()
