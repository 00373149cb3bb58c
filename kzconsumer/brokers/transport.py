"""The socket of one connection to a broker, and how it is secured: responses are matched to requests, in order."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, Generic, TypeVar, cast

from kzconsumer.brokers.protocol.primitives import (
    INT32,
    MAX_RESPONSE,
    FrameReader,
    Request,
    bare_frame,
    request_frame,
    response_body,
)
from kzconsumer.brokers.protocol.versions import SPOKEN, is_flexible
from kzconsumer.errors import ConfigError, ConnectionLostError, ProtocolError, SecurityError
from kzconsumer.model import Broker
from kzconsumer.security.sasl import Sasl, with_password
from kzconsumer.security.tls import BROKER, explain, tls_context
from kzconsumer.security.tokens import kerberos, oauth_bearer
from kzconsumer.settings.layers import read_secret
from kzconsumer.settings.sections import BrokersSettings, SaslSettings, TlsSettings


class Security:
    """How a connection is secured; None for what is not used."""

    def __init__(
        self, tls: ssl.SSLContext | None = None, sasl: Sasl | None = None, *, certificate_given: bool = False
    ) -> None:
        self.tls = tls
        self.sasl = sasl
        self.certificate_given = certificate_given


def load_security(settings: BrokersSettings, source: str) -> Security:
    """Check the settings and read the files that they name, which may be renewed while the member runs.

    Blocks for milliseconds. Raises ConfigError with one line per fault, each beginning with `source`.
    """
    faults: list[str] = []
    tls = sasl = None
    if settings.uses_tls:
        tls = tls_context(settings.tls, f"{source}: [brokers.tls]", faults)
    elif settings.tls != TlsSettings():
        faults.append(f"{source}: [brokers.tls]: security_protocol {settings.security_protocol} uses no TLS")
    if settings.uses_sasl:
        sasl = _sasl(settings.sasl, f"{source}: [brokers.sasl]", faults)
    elif settings.sasl != SaslSettings():
        faults.append(f"{source}: [brokers.sasl]: security_protocol {settings.security_protocol} uses no SASL")
    if faults:
        raise ConfigError(faults)
    return Security(tls, sasl, certificate_given=settings.tls.certificate is not None)


def _sasl(settings: SaslSettings, where: str, faults: list[str]) -> Sasl:
    faults += [f"{where} {fault}" for fault in settings.faults()]
    if settings.mechanism == "GSSAPI":
        return kerberos(settings, where, faults)
    if settings.mechanism == "OAUTHBEARER":
        return oauth_bearer(settings, where, faults)
    if settings.mechanism is None:
        faults.append(f"{where} mechanism: missing (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI)")
    if settings.username is None:
        faults.append(f"{where} username: missing")
    before = len(faults)
    password = read_secret(settings.password_file, settings.password_env, "password", where, faults)
    if password is None and len(faults) == before:
        faults.append(f"{where} password_file: missing (or password_env)")
    return with_password(settings.mechanism or "", settings.username or "", password or b"")


R = TypeVar("R")
T = TypeVar("T")

MAX_FIRST_RESPONSE: Final = 1 << 20
"""Bytes. Another protocol's first bytes, read as a size, are more: they are refused before we wait for so much."""

_READ_AHEAD: Final = 64 * 1024
"""Bytes still missing of a response from which on the socket is read again at once."""

_READS_AHEAD: Final = 16
"""Such reads in a row, at most: they hold up the event loop for a millisecond or two."""


class _InFlight:
    """A request, or a bare SASL token, that is not answered yet."""

    __slots__ = ("_arrived", "correlation", "deadline", "flexible", "name", "outcome", "patience")

    def __init__(self, correlation: int | None, name: str, patience: float, *, flexible: bool) -> None:
        """`correlation`: None for a token, which has no header. `patience`: in seconds, from now on."""
        self.correlation = correlation
        self.name = name
        self.patience = patience
        self.flexible = flexible
        self.outcome: memoryview | ConnectionLostError | ProtocolError | None = None
        self.deadline = 0.0  # of the loop's clock
        self._arrived: Callable[[], None] | None = None

    def end(self, outcome: memoryview | ConnectionLostError | ProtocolError) -> None:
        """The body of the answer, or why there will be none."""
        self.outcome = outcome
        if self._arrived is not None:
            self._arrived()

    def when_ended(self, arrived: Callable[[], None] | None) -> None:
        """Call this, from the callback that reads the socket, once there is an outcome."""
        self._arrived = arrived


class BrokerTransport(asyncio.BufferedProtocol):
    """Once it has ended it stays so, with the reason in `ended`."""

    def __init__(self, broker: Broker, client_id: str, security: Security) -> None:
        self.broker = broker
        self.in_flight: deque[_InFlight] = deque()
        self.ended: str | None = None
        self.ended_by_peer = False
        self.timed_out = False
        """The connection has ended because the peer did not answer in time."""
        self.begun = 0
        """Bytes that had come of that answer."""
        self.passed_over = False
        """The connection has ended because the peer answered a request before the one that precedes it."""
        self._client_id = client_id.encode()
        self._security = security
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket = -1
        self._reader = FrameReader(MAX_FIRST_RESPONSE)
        self._correlation = 0
        self._responses = 0
        # One for all requests, as to make and cancel one for each costs more than all else that a request needs. It is
        # never moved, but made again when it ends before the next deadline.
        self._timer: asyncio.TimerHandle | None = None
        self._lost: type[ConnectionLostError] = ConnectionLostError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._security.tls is None:  # with TLS the socket's bytes are not ours to read
            self._socket = transport.get_extra_info("socket").fileno()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._received(nbytes)
            if self._socket >= 0 and self._reader.missing:
                self._read_ahead()
        except ProtocolError as error:
            self.end(str(error), ProtocolError(f"{self.broker}: {error}"))

    def _received(self, nbytes: int) -> None:
        for frame in self._reader.received(nbytes):
            self._complete(frame)

    def _read_ahead(self) -> None:
        """More of a large response has arrived by now, and another turn of the event loop costs ten times a read."""
        # The socket is read behind asyncio's back, which is right only because
        # - it is never done under TLS, where the bytes of the socket are not those of the stream;
        # - it happens within `buffer_updated`, so no other read of the transport is under way;
        # - buffers are never used again: what is read lies in the memory of its own frame, of which views may be alive.
        for _ in range(_READS_AHEAD):
            if self._reader.missing < _READ_AHEAD or self.ended is not None:
                return
            try:
                nbytes = os.readv(self._socket, [self._reader.buffer()])
            except BlockingIOError:
                return
            except OSError as error:  # reported once: the transport would take what follows for a proper end
                self.connection_lost(error)
                return
            if nbytes == 0:
                return  # the transport finds the end, too
            self._received(nbytes)

    def _complete(self, frame: memoryview) -> None:
        if self.ended is not None:
            return
        if not self.in_flight:
            raise ProtocolError("a response to no request")
        request = self.in_flight[0]
        body = frame
        if request.correlation is not None:
            later = self.in_flight[1].correlation if len(self.in_flight) > 1 else None
            self.passed_over = later is not None and frame[:4] == INT32.pack(later)
            body = response_body(frame, request.correlation, flexible=request.flexible)
        self._responses += 1
        self._reader.limit = MAX_RESPONSE
        self.in_flight.popleft()
        request.end(body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended is not None:
            return
        # A broker that refuses our certificate says so before it answers anything (with TLS 1.3 after the handshake).
        # Later, bytes that are not TLS, or were damaged on their way, are a loss like any other, and logged as one.
        if isinstance(exc, ssl.SSLError) and not self._responses:
            self._lost = SecurityError
            self.end(explain(exc, BROKER, certificate_given=self._security.certificate_given))
            return
        self.ended_by_peer = True
        reason = str(exc) if exc else "closed by the broker"
        if self._responses == 1 and self._security.sasl is None and not isinstance(exc, ssl.SSLError):
            reason += " after ApiVersions: does this listener want SASL? ([brokers] security_protocol, listener)"
        self.end(reason)

    def send(self, request: Request[R], version: int, timeout: float) -> Response[R]:
        """Send now; awaiting the result waits for the response, which is also received if no caller awaits it.

        Without a response after `timeout` seconds the connection is aborted. Raises ConnectionLostError, here or when
        awaited; awaiting also raises ProtocolError, and the connection has ended then.
        """
        self._raise_if_ended()
        correlation = self._correlation
        self._correlation = (correlation + 1) & 0x7FFFFFFF
        flexible = is_flexible(request.api_key, version)
        body = request.encode(version)
        frame = request_frame(request.api_key, version, correlation, self._client_id, body, flexible=flexible)
        sent = _InFlight(correlation, SPOKEN[request.api_key].name, timeout, flexible=flexible)
        self._write(frame, sent)
        return Response(self, request, version, sent)

    async def exchange_bare(self, token: bytes, timeout: float) -> bytes:
        """Send a SASL token without header, as before Kafka 1.0, and return the broker's. Raises as `send`."""
        self._raise_if_ended()
        sent = _InFlight(None, "a SASL token", timeout, flexible=False)
        self._write(bare_frame(token), sent)
        return await _Arrival(sent, lambda: bytes(_body(sent)))

    def send_bare(self, token: bytes) -> None:
        """Send a last SASL token without header, which is not answered. Raises ConnectionLostError."""
        self._raise_if_ended()
        assert self._transport is not None
        self._transport.write(bare_frame(token))

    def _raise_if_ended(self) -> None:
        if self.ended is not None or self._transport is None:
            raise self._lost(f"{self.broker}: {self.ended}")

    def _write(self, frame: bytes, request: _InFlight) -> None:
        assert self._transport is not None
        request.deadline = self._loop.time() + request.patience
        self.in_flight.append(request)
        if self._timer is None or self._timer.when() > request.deadline:
            self._wait_until(request.deadline)
        self._transport.write(frame)

    def _wait_until(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        self._timer = None
        if not self.in_flight:
            return
        first = min(self.in_flight, key=lambda request: request.deadline)
        if self._loop.time() < first.deadline:
            self._wait_until(first.deadline)
            return
        self.timed_out, self.begun = self.ended is None, self._reader.begun
        self.end(f"no answer to {first.name} within {first.patience:g} s")

    def end(self, reason: str, first: ProtocolError | None = None) -> None:
        """Close the socket at once; requests in flight are lost. The oldest of them fails with `first` if given."""
        if self.ended is not None:
            return
        self.ended = reason
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        outcome: ConnectionLostError | ProtocolError | None = first
        while self.in_flight:
            self.in_flight.popleft().end(outcome or self._lost(f"{self.broker}: {reason}"))
            outcome = None


class Response(Generic[R]):
    """A response to come, decoded when it is awaited."""

    def __init__(self, transport: BrokerTransport, request: Request[R], version: int, sent: _InFlight) -> None:
        self._transport = transport
        self._request = request
        self._version = version
        self._sent = sent

    def __await__(self) -> Generator[Any, None, R]:
        return _Arrival(self._sent, self._decoded).__await__()

    @property
    def arrived(self) -> bool:
        """It is there, or will not come any more."""
        return self._sent.outcome is not None

    def taken_by(self, take: Callable[[R], T]) -> Awaitable[T]:
        """`await` what `take` returns of the response, or raise what it raises.

        If the response comes while this is awaited, `take` runs in the callback that reads the socket, so that nothing
        waits for another turn of the event loop. It must not block. What it has done stays if the caller is cancelled
        in that turn: nobody gets what it has returned.
        """
        return _Arrival(self._sent, lambda: take(self._decoded()))

    def _decoded(self) -> R:
        body = _body(self._sent)
        try:
            return self._request.decode(self._version, body)
        except ProtocolError as error:
            self._transport.end(str(error))
            raise ProtocolError(f"{self._transport.broker}: {error}") from error


def _body(sent: _InFlight) -> memoryview:
    assert sent.outcome is not None
    if isinstance(sent.outcome, Exception):
        raise sent.outcome
    return sent.outcome


class _Arrival(Generic[T]):
    """Awaits the outcome of a request; `take` makes of it what this returns or raises, at the moment it is there."""

    def __init__(self, sent: _InFlight, take: Callable[[], T]) -> None:
        self._sent = sent
        self._take = take

    def __await__(self) -> Generator[Any, None, T]:
        if self._sent.outcome is not None:
            return self._take()
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken: list[T] = []
        failure: BaseException | None = None

        def arrived() -> None:
            nonlocal failure
            try:
                taken.append(self._take())
            except BaseException as error:  # the caller's, who is in another stack
                failure = error
            if not woken.done():
                woken.set_result(None)

        self._sent.when_ended(arrived)
        try:
            yield from woken
        finally:
            self._sent.when_ended(None)  # a caller that has given up takes nothing
        if failure is not None:
            raise failure
        return taken[0]
