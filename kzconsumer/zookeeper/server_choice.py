"""The search for a server that takes the session: rounds over the hosts, in random order, with growing pauses.

The server that takes it is first asked to end the former session (`FormerSession`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import anyio

from kzconsumer import clock
from kzconsumer.connecting import targets_of
from kzconsumer.errors import (
    ConfigError,
    ConnectionLostError,
    KzConsumerError,
    ProtocolError,
    SecurityError,
    SessionExpiredError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.threads import in_thread
from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.credentials import Access
from kzconsumer.zookeeper.heartbeat_and_lease import Instant
from kzconsumer.zookeeper.link import HungUp, Link
from kzconsumer.zookeeper.operations import Check, ConnectString, host_port
from kzconsumer.zookeeper.wire import Established

log = get_logger("kzconsumer.zookeeper")

PAUSE = 0.05, 1.0
"""Seconds between rounds, first and longest; each is shortened by up to half, at random."""
MIN_ATTEMPT = 0.5
"""Seconds a host is given at least to answer the handshake."""
STATUS_LIMIT = 0.5
"""Seconds for connecting and asking a server for its status."""

_PLAIN = Access()
_SRVR = (
    b"srvr\n"  # with the line's end: a port with TLS closes the connection at the fifth byte, on four it waits for more
)


class Handshake(NamedTuple):
    """The session as a server is asked to take it; `session` 0 asks for a new one."""

    session: int
    password: bytes
    timeout: float
    last_zxid: int


class Refusal(NamedTuple):
    """Why a server was not chosen."""

    reason: str
    is_zookeeper: bool = False
    """Whether it is known to be one: it has answered as a ZooKeeper server does."""


_REFUSES_SESSION = Refusal(
    "it has no quorum, is read-only, has no room for more connections (maxClientCnxns), "
    "or is behind what this session has seen",
    is_zookeeper=True,
)


class Found(NamedTuple):
    """A server that took the session, and when it was asked."""

    link: Link
    answer: Established
    sent: Instant


class ServerChoice:
    """`access` is called for each round, in a thread.

    A session that no server has accepted yet ends when all refuse it, unless `insist`. One that was accepted before
    continues: the servers' passwords may be about to change.
    """

    def __init__(
        self,
        hosts: ConnectString,
        access: Callable[[], Access] | None,
        *,
        insist: bool,
        on_event: Callable[[bytes], None],
        on_zxid: Callable[[int], None],
    ) -> None:
        self.insist = insist
        self.refusals: tuple[Refusal, ...] = ()
        """Of the servers of the last round, if none was chosen."""
        self.last_attempt = 0.0
        """On `kzconsumer.clock`."""
        self._hosts = hosts
        self._access = access
        self._on_event = on_event
        self._on_zxid = on_zxid
        self._pause = 0.0

    def served(self, lasted: float) -> None:
        """A server answers this session, on a connection that has lasted for so many seconds.

        The pause ends if that is a while. One that takes and drops sessions is failing. So is one that answers small
        requests and drops the connection at a large one, which is then sent again (jute.maxbuffer).
        """
        self.insist = True
        if lasted >= PAUSE[1]:
            self._pause = 0.0

    def refused(self, refusals: list[str]) -> None:
        """Raises ConfigError unless a server has let this session in before."""
        if not self.insist:
            raise ConfigError(refusals)

    async def connect(self, session: Handshake, last: tuple[str, int] | None, kept_until: float) -> Found:
        """Connect to a server, the one lost `last` after all others; for as long as it takes.

        Raises SessionExpiredError if a server no longer knows the session, or, after `kept_until` (`kzconsumer.clock`),
        if the servers have lost what it has seen; ConfigError if all refuse it.
        """
        reported = set[str]()
        while True:
            await anyio.sleep(self._pause * random.uniform(0.5, 1))
            self._pause = min(max(self._pause * 2, PAUSE[0]), PAUSE[1])
            refusals: list[str] = []
            failures: list[Refusal] = []
            if found := await self._round(session, last, kept_until, refusals, failures):
                self.refusals = ()
                return found
            self.refusals = (*map(Refusal, refusals), *failures)
            if refusals and not failures:
                self.refused(refusals)
            reasons = [each.reason for each in self.refusals]
            if not reported.issuperset(refusals):
                log.error("no secure connection to ZooKeeper", hosts=str(self._hosts), reasons=reasons)
            elif not reported.issuperset(reasons):
                log.warning("no ZooKeeper server answers", hosts=str(self._hosts), reasons=reasons[len(refusals) :])
            reported.update(reasons)

    async def _round(
        self,
        session: Handshake,
        last: tuple[str, int] | None,
        kept_until: float,
        refusals: list[str],
        failures: list[Refusal],
    ) -> Found | None:
        """Ask each host once; what fails for keys and passwords is added to `refusals`, the rest to `failures`."""
        access = await self.read_access(refusals)
        if access is None:
            return None
        hosts = random.sample(self._hosts.hosts, len(self._hosts.hosts))
        for host, port in sorted(hosts, key=lambda each: each == last):
            sent = instant()
            self.last_attempt = sent.boottime
            patience = max(session.timeout / 3 / len(hosts), MIN_ATTEMPT)
            try:
                link, answer = await Link.open(
                    host,
                    port,
                    wire.handshake(*session),
                    timeout=patience,
                    on_event=self._on_event,
                    on_zxid=self._on_zxid,
                    access=access,
                )
            except SecurityError as error:
                refusals.append(str(error))
                continue
            except HungUp as error:
                # After the first connection it is known what the servers want: they are not asked every second.
                if session.session and sent.boottime > kept_until:
                    await self._raise_if_restored((host, port), session, access, patience)
                why = await _why_hung_up(host, port, access) if not session.session else _REFUSES_SESSION
                failures.append(why._replace(reason=f"{error}: {why.reason}"))
                continue
            except (ConnectionLostError, ProtocolError) as error:
                log.debug("connection refused", reason=str(error))
                failures.append(Refusal(str(error)))
                continue
            if answer.session_id and answer.timeout > 0:
                return Found(link, answer, sent)
            link.abort("the server does not know the session")
            if session.session:
                raise SessionExpiredError("expired")
            failures.append(Refusal(f"{link.where}: no session given", is_zookeeper=True))
        return None

    async def _raise_if_restored(
        self, host: tuple[str, int], session: Handshake, access: Access, patience: float
    ) -> None:
        """A server also hangs up if it has not seen what the session has. Will it ever, or has the ensemble gone back?

        A server without a quorum takes no new session. One that takes it has executed what the quorum had decided by
        then, and this is not all that our session has seen if the ensemble was restored from an older copy. It would
        refuse us until its transactions have outnumbered those that were lost, for weeks.
        """
        seen = [0]
        new = wire.handshake(0, bytes(16), session.timeout, 0)
        try:
            link, answer = await Link.open(
                *host, new, timeout=patience, on_event=_pass, on_zxid=seen.append, access=access
            )
            try:
                with anyio.fail_after(patience):
                    if answer.session_id:
                        await link.ask(wire.multi([Check("/", -1)], str))
                        await link.ask(wire.close_session(lambda: None))
            finally:
                link.abort("done")
        except (KzConsumerError, TimeoutError) as error:
            log.debug("no new session either", host=host_port(*host), reason=str(error))
            return
        if 0 < max(seen) < session.last_zxid:
            log.error(
                "ZooKeeper has lost transactions",
                host=host_port(*host),
                has=f"{max(seen):#x}",
                seen=f"{session.last_zxid:#x}",
            )
            raise SessionExpiredError("ZooKeeper has an older state than this session has seen: restored from a copy?")

    async def read_access(self, refusals: list[str]) -> Access | None:
        """Read keys and passwords again; if they cannot be used, None, and the reasons are added to `refusals`."""
        if self._access is None:
            return _PLAIN
        try:
            return await in_thread(self._access)
        except ConfigError as error:
            refusals.extend(error.faults)
            return None


def instant() -> Instant:
    return Instant(clock.now(), time.time())


def _pass(_: object) -> None:
    """No events are waited for."""


async def _why_hung_up(host: str, port: int, access: Access) -> Refusal:
    """Why a server may have closed a connection in the handshake, by its answer to the status command `srvr`."""
    if access.tls is not None:
        return Refusal("has it a quorum, and room for more connections (maxClientCnxns)?")
    said = b""
    with contextlib.suppress(OSError), anyio.move_on_after(STATUS_LIMIT):
        (target, *_) = await targets_of(host, port)
        reader, writer = await asyncio.open_connection(target.address[0], port)
        try:
            writer.write(_SRVR)
            said = await reader.read(200)
        finally:
            writer.transport.abort()
    if b"not currently serving" in said:
        return Refusal("it has no quorum, so it rejects clients", is_zookeeper=True)
    if b"READ-ONLY" in said:
        return Refusal("it has no quorum, and is read-only", is_zookeeper=True)
    if said.startswith(b"Zookeeper version"):
        return Refusal("it serves others: is it behind, or starting?", is_zookeeper=True)
    if said.startswith(b"srvr"):  # is not executed because it is not in the whitelist
        return Refusal("has it a quorum?", is_zookeeper=True)
    return Refusal(
        "has it a quorum, and room for more connections (maxClientCnxns), "
        "or does this port want TLS? ([zookeeper] secure, connect)"
    )


# A session that has ended for us, but that the ensemble may still keep, with all its ephemeral nodes.
#
# 1. "Expired" is the statement of one server. A leader that was suspended says so before it learns that it is no longer
# the leader; the others may keep the session. 2. Deleting its nodes one by one could hit nodes of another session made
# in between, since no operation checks an owner. Closing the session by its id and password removes exactly its nodes,
# in one transaction, and servers refuse requests of it that still arrive. 3. It is closed only once a whole timeout has
# passed since the last answered probe (`kept_until`): a writer of this process, such as a Spark worker, may rely on the
# lease that long.


class FormerSession:
    """The id and password of a session. The password is in no text of it."""

    def __init__(self, session: int, password: bytes, timeout: float, kept_until: float) -> None:
        self.id = session
        self._password = password
        self._timeout = timeout
        self.kept_until = kept_until
        """The latest end of the lease that sinks and applications were given (`kzconsumer.clock`)."""

    def __repr__(self) -> str:
        return f"<FormerSession {self.id & 0xFFFFFFFFFFFFFFFF:#x}>"

    async def end(self, host: tuple[str, int], access: Access) -> bool:
        """Close it; False if the server, as one of a quorum, no longer knows it.

        Waits until it could have expired by itself: until then a writer of this process may rely on it. Raises
        ConnectionLostError, ProtocolError, SecurityError, TimeoutError.
        """
        greeting = wire.handshake(self.id, self._password, self._timeout, 0)
        patience = self._timeout / 3
        link, answer = await Link.open(*host, greeting, timeout=patience, on_event=_drop, on_zxid=_drop, access=access)
        try:
            if answer.session_id != self.id:
                return False
            await anyio.sleep(max(0.0, self.kept_until - clock.now()))
            with anyio.fail_after(patience):
                await link.ask(wire.close_session(lambda: None))
            return True
        finally:
            link.abort("done")


def _drop(_: object) -> None:
    """Its events are dropped."""
