"""The search for a server that takes the session: rounds over the hosts, in random order, with growing pauses."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import anyio
from anyio import to_thread

from kzconsumer import clock
from kzconsumer.errors import ConfigError, ConnectionLostError, ProtocolError, SecurityError, SessionExpiredError
from kzconsumer.logs.logger import get_logger
from kzconsumer.zookeeper import wire, wire_frames
from kzconsumer.zookeeper.access import Access
from kzconsumer.zookeeper.connect_string import ConnectString
from kzconsumer.zookeeper.heartbeat import Instant
from kzconsumer.zookeeper.link import HungUp, Link

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


class Found(NamedTuple):
    """A server that took the session, and when it was asked."""

    link: Link
    answer: wire_frames.Established
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
        self.refusals: tuple[str, ...] = ()
        """Why no server of the last round was chosen; empty once one is."""
        self.last_attempt = 0.0
        """On `kzconsumer.clock`."""
        self._hosts = hosts
        self._access = access
        self._on_event = on_event
        self._on_zxid = on_zxid
        self._pause = 0.0

    def served(self) -> None:
        """A server answers this session. Only then the pause ends: one that takes and drops sessions is failing."""
        self.insist = True
        self._pause = 0.0

    def refused(self, refusals: list[str]) -> None:
        """Raises ConfigError unless a server has let this session in before."""
        if not self.insist:
            raise ConfigError(refusals)

    async def connect(self, session: Handshake, last: tuple[str, int] | None) -> Found:
        """Connect to a server, the one lost `last` after all others; for as long as it takes.

        Raises SessionExpiredError if a server no longer knows the session, ConfigError if all refuse it.
        """
        reported: list[str] = []
        while True:
            await anyio.sleep(self._pause * random.uniform(0.5, 1))
            self._pause = min(max(self._pause * 2, PAUSE[0]), PAUSE[1])
            refusals: list[str] = []
            failures: list[str] = []
            if found := await self._round(session, last, refusals, failures):
                self.refusals = ()
                return found
            self.refusals = (*refusals, *failures)
            if refusals and not failures:
                self.refused(refusals)
            if refusals and sorted(refusals) != reported:
                reported = sorted(refusals)
                log.error("no secure connection to ZooKeeper", hosts=str(self._hosts), reasons=self.refusals)
            elif not reported:
                log.warning("no ZooKeeper server answers", hosts=str(self._hosts), reasons=failures)
                reported = failures

    async def _round(
        self, session: Handshake, last: tuple[str, int] | None, refusals: list[str], failures: list[str]
    ) -> Found | None:
        """Ask each host once; adds what each said to one of the two lists."""
        access = await self.read_access(refusals)
        if access is None:
            return None
        hosts = random.sample(self._hosts.hosts, len(self._hosts.hosts))
        for host, port in sorted(hosts, key=lambda each: each == last):
            sent = instant()
            self.last_attempt = sent.boottime
            try:
                link, answer = await Link.open(
                    host,
                    port,
                    wire.handshake(*session),
                    timeout=max(session.timeout / 3 / len(hosts), MIN_ATTEMPT),
                    on_event=self._on_event,
                    on_zxid=self._on_zxid,
                    access=access,
                )
            except SecurityError as error:
                refusals.append(str(error))
                continue
            except HungUp as error:
                # After the first connection it is known what the servers want: they are not asked every second.
                why = "it has no quorum, or is behind" if session.session else await _why_hung_up(host, port)
                failures.append(f"{error}: {why}")
                continue
            except (ConnectionLostError, ProtocolError) as error:
                log.debug("connection refused", reason=str(error))
                failures.append(str(error))
                continue
            if answer.session_id and answer.timeout > 0:
                return Found(link, answer, sent)
            link.abort("the server does not know the session")
            if session.session:
                raise SessionExpiredError("expired")
            failures.append(f"{link.where}: no session given")
        return None

    async def read_access(self, refusals: list[str]) -> Access | None:
        """Read keys and passwords again; if they cannot be used, None, and the reasons are added to `refusals`."""
        if self._access is None:
            return _PLAIN
        try:
            return await to_thread.run_sync(self._access)
        except ConfigError as error:
            refusals.extend(error.faults)
            return None


def instant() -> Instant:
    return Instant(clock.now(), time.time())


async def _why_hung_up(host: str, port: int) -> str:
    """Why a server may have closed a plain connection in the handshake, by its answer to the status command `srvr`."""
    said = b""
    with contextlib.suppress(OSError), anyio.move_on_after(STATUS_LIMIT):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(_SRVR)
            said = await reader.read(200)
        finally:
            writer.transport.abort()
    if b"not currently serving" in said:
        return "it has no quorum, so it rejects clients"
    if said.startswith(b"Zookeeper version"):
        return "it serves others: is it behind, or starting?"
    if said.startswith(b"srvr"):  # is not executed because it is not in the whitelist
        return "has it a quorum?"
    return (
        "has it a quorum, and room for more connections (maxClientCnxns), "
        "or does this port want TLS? ([zookeeper] secure, connect)"
    )
