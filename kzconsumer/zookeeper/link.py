"""One TCP connection to one server: handshake and authentication, then replies matched to calls in order."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import anyio

from kzconsumer import clock
from kzconsumer.connecting import AddressOutcomes, connect, server_name
from kzconsumer.errors import ConnectionLostError, KzConsumerError, ProtocolError, SecurityError, ZooKeeperError
from kzconsumer.logs.logger import get_logger
from kzconsumer.security.sasl import Sasl
from kzconsumer.security.tls import ZOOKEEPER, explain
from kzconsumer.security.tokens import next_token
from kzconsumer.settings.layers import reason_of
from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.credentials import Access
from kzconsumer.zookeeper.operations import OK, Handling, described, error_code, host_port
from kzconsumer.zookeeper.watch_table import Watch, WatchKind, WatchTable

R = TypeVar("R")


class Arming(NamedTuple):
    """The watch that a request sets: at which path of the server, in which list by reply code."""

    watch: Watch
    path: str
    kinds: Mapping[int, WatchKind]


class CallerRequest(Generic[R]):
    """A caller's request, waiting for a connection or in flight. A caller that gives up cancels `outcome`."""

    def __init__(
        self,
        request: wire.WireRequest[R],
        loss: Callable[[str], KzConsumerError],
        arming: Arming | None = None,
        watches: WatchTable | None = None,
    ) -> None:
        self.request = request
        self.outcome: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._loss = loss
        self._arming = arming
        self._watches = watches

    def answered(self, reply: wire.Reply) -> None:
        if self.outcome.done():
            return  # given up, and the watch with it
        try:
            result = wire.result(self.request, reply)
        except ZooKeeperError as error:
            self._arm(reply.code)
            self.outcome.set_exception(error)
        else:
            self._arm(reply.code)
            if not self.outcome.done():  # the reply to a close ends every call, this one too
                self.outcome.set_result(result)

    def lost(self, reason: str) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(self._loss(reason))

    def _arm(self, code: int) -> None:
        if self._arming and self._watches and (kind := self._arming.kinds.get(code)):
            self._watches.arm(kind, self._arming.path, self._arming.watch)


class Own:
    """A request of the session itself; each connection gets its own."""

    def __init__(self, then: Callable[[], None], not_now: Callable[[], None]) -> None:
        """`not_now` is called instead of `then` if an overloaded server has not executed it."""
        self._then = then
        self._not_now = not_now

    def answered(self, reply: wire.Reply) -> None:
        if reply.code == OK:
            self._then()
        elif error_code(reply.code).handling is Handling.REPEAT:
            self._not_now()
        else:
            raise ConnectionLostError(f"the server refuses to continue the session: {described(reply.code)}")

    def lost(self, reason: str) -> None:
        pass


log = get_logger("kzconsumer.zookeeper")


MAX_FRAME = 64 << 20
"""Bytes. A list of children may exceed what the server takes in a request."""

LARGE = 4096
"""Bytes of a request from which on its size may be why a server closes the connection."""

_ALERT_AS_SIZE = range(0x15030000, 0x15040000)
"""The first bytes of a TLS alert, read as the size of a frame."""

_PLAIN = Access()

_SIZE = struct.Struct("!i")
_SIZE_XID = struct.Struct("!ii")


class HungUp(ConnectionLostError):
    """The server closed the connection, after a TLS handshake if there is one, before it answered ours."""


class Call(Protocol):
    """A request that awaits its reply."""

    def answered(self, reply: wire.Reply) -> None:
        """Runs while the reply is read. Raises ConnectionLostError or ProtocolError if the connection has to end."""

    def lost(self, reason: str) -> None:
        """There will be no reply."""


class Link(asyncio.Protocol):
    """A raw asyncio protocol, not streams: replies and events are handled in the read callback itself, so that nothing
    can come between an event and the reply behind it.
    """

    def __init__(
        self,
        host: tuple[str, int],
        on_event: Callable[[bytes], None],
        on_zxid: Callable[[int], None],
        access: Access = _PLAIN,
    ) -> None:
        self.host = host
        self._access = access
        self.where = host_port(*host)
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the connection is over, with the reason."""
        self.arrived = clock.now()
        """When the last bytes came, also of incomplete frames."""
        self._hung_up = False
        self.refused: str | None = None
        """Why the server would refuse another connection, too, if this one ended with a refusal."""
        self._hello: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._on_event = on_event
        self._on_zxid = on_zxid
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._calls: deque[tuple[int, Call]] = deque()
        self._xid = 0

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        handshake: bytes,
        *,
        timeout: float,
        on_event: Callable[[bytes], None],
        on_zxid: Callable[[int], None],
        access: Access = _PLAIN,
    ) -> tuple[Link, wire.Established]:
        """Connect, shake hands and authenticate within `timeout` seconds.

        Raises ConnectionLostError (HungUp), ProtocolError; SecurityError when either side does not accept the other.
        """
        link, attempts = cls((host, port), on_event, on_zxid, access), AddressOutcomes()
        try:
            with anyio.fail_after(timeout):
                await connect(lambda: link, host, port, tls=access.tls, attempts=attempts)
                link._write(_SIZE.pack(len(handshake)) + handshake)
                answer = wire.established(await link._hello)
                if answer.session_id:
                    await link._authenticate()
                return link, answer
        except TimeoutError:
            greeted = link._hello.done() and not link._hello.cancelled()
            what = "not authenticated" if greeted else "no answer"
            link.abort(what)
            which = f": {attempts}" if link._transport is None and str(attempts) else ""
            raise ConnectionLostError(f"{link.where}: {what} within {timeout:.1f} s{which}") from None
        except ssl.SSLError as error:
            link.abort(str(error))
            why = explain(error, ZOOKEEPER, certificate_given=access.certificate_given)
            raise SecurityError(f"{link.where}: {why}") from error
        except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
            link.abort(str(error))
            if access.tls is None:  # before our handshake, as a server does that has too many connections
                raise HungUp(f"{link.where}: closed by the server") from error
            raise ConnectionLostError(f"{link.where}: {ZOOKEEPER.hung_up}") from error
        except SecurityError as error:
            link.abort(str(error))
            raise SecurityError(f"{link.where}: {error}") from None
        except ConnectionLostError as error:
            link.abort(str(error))
            if link._hung_up:
                raise HungUp(str(error)) from error
            if link.refused is None:
                raise
            raise SecurityError(f"{link.where}: {link.refused}") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name no DNS label can hold
            link.abort(str(error))
            why = "connection refused" if isinstance(error, ConnectionRefusedError) else reason_of(error)
            raise ConnectionLostError(f"{link.where}: {why}") from error
        except BaseException as error:
            link.abort(str(error))
            raise

    def send(self, body: bytes, call: Call, xid: int | None = None) -> None:
        """Send now; `call` gets the reply, in the order of sending, or the loss."""
        if self.lost.done():
            call.lost(self._loss())
            return
        if xid is None:
            self._xid = xid = self._xid % 0x7FFFFFFF + 1
        self._calls.append((xid, call))
        self._write(_SIZE_XID.pack(len(body) + 4, xid) + body)

    async def ask(self, request: wire.WireRequest[R], xid: int | None = None) -> R:
        """The decoded reply.

        Raises the server's refusal, ConnectionLostError, SecurityError if the server rejects us.
        """
        call = CallerRequest(request, ConnectionLostError)
        self.send(request.body, call, xid)
        try:
            return await call.outcome
        except ConnectionLostError:
            if self.refused is None:
                raise
            raise SecurityError(self.refused) from None

    async def _authenticate(self) -> None:
        # ZooKeeper's handshake accepts every client; whoever we are is decided by what follows it. So this is done on
        # each connection, before watches are restored or waiting calls are sent of the session: sent earlier, they
        # would be refused where nodes are closed.
        if (sasl := self._access.sasl) is not None:
            try:
                await self._sasl(sasl)
            except SecurityError as error:
                raise SecurityError(f"[zookeeper.sasl] {sasl}: {error}") from None
        if (digest := self._access.digest) is not None:
            # A wrong password is not refused in this scheme: it makes us another user, to whom nodes may be closed.
            # Then NotPermittedError ends the member (exit status 78): it would keep partitions from others otherwise.
            await self.ask(wire.add_auth("digest", digest), wire.AUTH_XID)

    async def _sasl(self, sasl: Sasl) -> None:
        exchange = sasl.begin(server_name(self.host[0]))
        answer, goes_on = None, True
        while goes_on:
            token, goes_on = await next_token(exchange, answer)
            if token is None:
                return
            try:
                answer = await self.ask(wire.sasl(token))
            except SecurityError:
                why = sasl.check or "wrong name or password?"
                raise SecurityError(f"the server does not accept it: {why}") from None

    @property
    def unanswered(self) -> bool:
        """Whether the server has yet to answer a caller's request, given up or not."""
        return any(isinstance(call, CallerRequest) for _, call in self._calls)

    def abort(self, reason: str) -> None:
        """Close at once; calls in flight are lost. Idempotent."""
        if self.lost.done():
            return
        self.lost.set_result(reason)
        if self._transport:
            self._transport.abort()
        if not self._hello.done():
            self._hello.cancel()
        while self._calls:
            _, call = self._calls.popleft()
            call.lost(self._loss())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            # With TLS 1.3 a server rejects a certificate after our side of the handshake is over.
            self._refuse(explain(exc, ZOOKEEPER, certificate_given=self._access.certificate_given))
            return
        self._hung_up = not self._hello.done()
        self._fail(f"{exc or 'closed by the server'}{self._too_large}")

    @property
    def _too_large(self) -> str:
        """A server closes the connection, without an answer, at a request above its limit."""
        largest = max((len(call.request.body) for _, call in self._calls if isinstance(call, CallerRequest)), default=0)
        if largest < LARGE:
            return ""
        return f" with a request of {largest} bytes in flight: is jute.maxbuffer of the server smaller?"

    def data_received(self, data: bytes) -> None:
        self.arrived = clock.now()
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _SIZE.size and not self.lost.done():
                (size,) = _SIZE.unpack_from(buffer, start)
                if size in _ALERT_AS_SIZE and not self._hello.done():
                    self._refuse("answers in TLS: [zookeeper] secure, connect")
                    break
                if not 0 <= size <= MAX_FRAME:
                    raise ProtocolError(f"a frame of {size} bytes")
                end = start + _SIZE.size + size
                if len(buffer) < end:
                    break
                self._frame(bytes(buffer[start + _SIZE.size : end]))
                start = end
        except (ProtocolError, ConnectionLostError) as error:
            self._fail(str(error))
        except Exception as error:  # a bug of ours; asyncio would close the connection without a log line
            log.exception("reading from ZooKeeper failed", host=self.where)
            self._fail(f"what it sent could not be read: {error!r}")
        del buffer[:start]

    def _frame(self, frame: bytes) -> None:
        if not self._hello.done():
            self._hello.set_result(frame)
            return
        reply = wire.reply(frame)
        if reply.xid == wire.EVENT_XID:
            # Since ZooKeeper 3.9 it has the zxid of its transaction. Other events of that may be lost with the
            # connection, and watches that are restored as of this zxid would not fire for them.
            self._on_event(reply.body)
            return
        if reply.code in wire.REFUSES_US:
            self._refuse(wire.REFUSES_US[reply.code])
        elif not self._calls or self._calls[0][0] != reply.xid:
            raise ProtocolError(f"a reply to request {reply.xid}, which is not the oldest in flight")
        else:
            _, call = self._calls.popleft()
            try:
                call.answered(reply)
            except Exception as error:
                call.lost(f"{self.where}: {error}")  # it has left the queue
                raise
        if reply.zxid > 0 and not self.lost.done():
            self._on_zxid(reply.zxid)

    def _refuse(self, reason: str) -> None:
        if not self.lost.done():
            self.refused = reason
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if not self._hello.done():
            self._hello.set_exception(ConnectionLostError(f"{self.where}: {reason}"))
            self._hello.exception()  # read here: an `open` that was cancelled just now will not
        self.abort(reason)

    def _write(self, data: bytes) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.write(data)

    def _loss(self) -> str:
        return f"{self.where}: {self.lost.result()}; what was in flight may or may not have been executed"
