"""One TCP connection to one broker: requests go out at once, answers come back in order.

`BrokerConnection` owns the socket, the requests in flight and the bytes of answers not yet complete. Fetchers and the
leader finder call it, from one event loop. It retries nothing and knows no topic. Errors of sockets and of TLS end
here: they become ConnectionLost.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
from collections import deque
from collections.abc import Awaitable, Generator
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, cast

import anyio

from kzconsumer.brokers import sasl
from kzconsumer.brokers.protocol.error_codes import broker_error
from kzconsumer.brokers.protocol.frames import (
    MAX_RESPONSE,
    FrameReader,
    Request,
    bare_frame,
    request_frame,
    response_body,
)
from kzconsumer.brokers.protocol.list_offsets import ListOffsetsRequest
from kzconsumer.brokers.protocol.versions import (
    BEFORE_API_VERSIONS,
    SPOKEN,
    UNKNOWN,
    ApiVersionsRequest,
    Versions,
    is_flexible,
)
from kzconsumer.brokers.security import Sasl, Security
from kzconsumer.clock import now
from kzconsumer.errors import ConnectionLost, ProtocolError, SecurityError
from kzconsumer.model import Broker
from kzconsumer.security import tls_failures

R = TypeVar("R")

_ASKED_FOR_VERSIONS: Final = 2
"""Times a broker must hang up on ApiVersions before it counts as older than 0.10. Once may be a broker that stops."""

_MAX_FIRST_RESPONSE: Final = 1 << 20
"""Bytes. What another protocol sends, read as a size, is more: we do not wait for so much before we say so."""

_WORTH_A_LOOK: Final = 64 * 1024
"""Bytes of an answer still to come for which the socket is looked at again at once."""

_LOOKS: Final = 16
"""Most of these in a row: the event loop is held up for a millisecond or two."""

_PART_OF_LIFETIME: Final = 0.8
"""Of the time for which a broker believes a SASL exchange: after it no more requests, the last ones need some too."""

_HANG_UPS: Final = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
"""What asyncio raises when the peer ends the connection in the TLS handshake."""

_PLAINTEXT: Final = Security()


class _InFlight(NamedTuple):
    correlation: int | None
    """None for a bare token of SASL, which has no header."""
    flexible: bool
    answer: asyncio.Future[memoryview | ConnectionLost | ProtocolError]
    timer: asyncio.TimerHandle


class _Wire(asyncio.BufferedProtocol):
    """The transport's side of a connection: matches answers to requests, and ends all of them when it ends."""

    def __init__(self, broker: Broker, client_id: str, security: Security) -> None:
        self._broker = broker
        self._client_id = client_id.encode()
        self._security = security
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket = -1
        self._reader = FrameReader(_MAX_FIRST_RESPONSE)
        self._correlation = 0
        self.in_flight: deque[_InFlight] = deque()
        self.ended: str | None = None
        self.ended_by_peer = False
        self._answers = 0
        self._lost: type[ConnectionLost] = ConnectionLost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._security.tls is None:  # else what the socket has is for TLS to read
            self._socket = transport.get_extra_info("socket").fileno()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._received(nbytes)
            if self._socket >= 0:
                self._look_again()
        except ProtocolError as error:
            self.end(str(error), ProtocolError(f"{self._broker}: {error}"))

    def _received(self, nbytes: int) -> None:
        for frame in self._reader.received(nbytes):
            self._answered(frame)

    def _look_again(self) -> None:
        """Of a large answer more has come while we read: another turn of the event loop costs ten times the look."""
        for _ in range(_LOOKS):
            if self._reader.missing < _WORTH_A_LOOK or self.ended is not None:
                return
            try:
                nbytes = os.readv(self._socket, [self._reader.buffer()])
            except BlockingIOError:
                return
            except OSError as error:  # told once: the transport would take what follows for a proper end
                self.connection_lost(error)
                return
            if nbytes == 0:
                return  # the transport finds the end, too
            self._received(nbytes)

    def _answered(self, frame: memoryview) -> None:
        if self.ended is not None:
            return
        if not self.in_flight:
            raise ProtocolError("an answer to no request")
        request = self.in_flight[0]
        body = frame
        if request.correlation is not None:
            body = response_body(frame, request.correlation, flexible=request.flexible)
        self._answers += 1
        self._reader.limit = MAX_RESPONSE
        self.in_flight.popleft()
        request.timer.cancel()
        if not request.answer.done():
            request.answer.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended is not None:
            return
        if isinstance(exc, ssl.SSLError):
            self._lost = SecurityError
            self.end(tls_failures.explain(exc, tls_failures.BROKER, certificate_given=self._security.certificate_given))
            return
        self.ended_by_peer = True
        why = str(exc) if exc else "closed by the broker"
        if self._answers == 1 and self._security.sasl is None:
            why += " after ApiVersions: does this listener want SASL? ([brokers] security_protocol, listener)"
        self.end(why)

    def send(
        self, api_key: int, version: int, body: bytes, timeout: float
    ) -> asyncio.Future[memoryview | ConnectionLost | ProtocolError]:
        """Errors are results of the future, not exceptions: a cancelled caller leaves no unretrieved exception."""
        if self.ended is not None or self._transport is None:
            raise self._lost(f"{self._broker}: {self.ended}")
        correlation = self._correlation
        self._correlation = (correlation + 1) & 0x7FFFFFFF
        flexible = is_flexible(api_key, version)
        frame = request_frame(api_key, version, correlation, self._client_id, body, flexible=flexible)
        return self._send(frame, correlation, flexible, SPOKEN[api_key].name, timeout)

    def send_bare(self, token: bytes, timeout: float) -> asyncio.Future[memoryview | ConnectionLost | ProtocolError]:
        """A frame without header, answered by one, as SASL was before Kafka 1.0."""
        if self.ended is not None or self._transport is None:
            raise self._lost(f"{self._broker}: {self.ended}")
        return self._send(bare_frame(token), None, False, "a SASL token", timeout)

    def _send(
        self, frame: bytes, correlation: int | None, flexible: bool, what: str, timeout: float
    ) -> asyncio.Future[memoryview | ConnectionLost | ProtocolError]:
        assert self._transport is not None
        answer: asyncio.Future[memoryview | ConnectionLost | ProtocolError] = self._loop.create_future()
        timer = self._loop.call_later(timeout, self.end, f"no answer to {what} within {timeout:g} s")
        self.in_flight.append(_InFlight(correlation, flexible, answer, timer))
        self._transport.write(frame)
        return answer

    def end(self, why: str, first: ProtocolError | None = None) -> None:
        """Drop the socket at once; every request in flight is lost, the oldest one to `first` when given."""
        if self.ended is not None:
            return
        self.ended = why
        if self._transport is not None:
            self._transport.abort()
        outcome: ConnectionLost | ProtocolError | None = first
        while self.in_flight:
            request = self.in_flight.popleft()
            request.timer.cancel()
            if not request.answer.done():
                request.answer.set_result(outcome or self._lost(f"{self._broker}: {why}"))
            outcome = None


class _Reply(Generic[R]):
    """An answer to come. One that nobody awaits is received all the same, and dropped."""

    def __init__(
        self,
        broker: Broker,
        wire: _Wire,
        request: Request[R],
        version: int,
        answer: asyncio.Future[memoryview | ConnectionLost | ProtocolError],
    ) -> None:
        self._broker = broker
        self._wire = wire
        self._request = request
        self._version = version
        self._answer = answer

    def __await__(self) -> Generator[Any, None, R]:
        body = yield from self._answer.__await__()
        if isinstance(body, Exception):
            raise body
        try:
            return self._request.decode(self._version, body)
        except ProtocolError as error:
            self._wire.end(str(error))
            raise ProtocolError(f"{self._broker}: {error}") from error


class BrokerConnection:
    """Use `open`. Once lost or closed a connection stays so; its owner opens another."""

    def __init__(self, broker: Broker, wire: _Wire) -> None:
        self.broker = broker
        self.versions = UNKNOWN
        self._wire = wire
        self._good_until = math.inf

    def __repr__(self) -> str:
        state = f"{len(self._wire.in_flight)} in flight" if self._wire.ended is None else self._wire.ended
        return f"<BrokerConnection {self.broker}: {self.versions}; {state}>"

    @classmethod
    async def open(
        cls, broker: Broker, *, client_id: str, timeout: float, security: Security = _PLAINTEXT
    ) -> BrokerConnection:
        """Connect, learn which versions the broker speaks, and prove who we are; all within `timeout` seconds.

        A broker that hangs up on ApiVersions twice is taken to be 0.8 or 0.9 and reconnected to at their level.
        Raises ConnectionLost (SecurityError when the reason is TLS or SASL), ProtocolError, UnsupportedVersion, or
        BrokerError when the broker refuses to name its versions.
        """
        try:
            with anyio.fail_after(timeout):
                for _ in range(_ASKED_FOR_VERSIONS):
                    connection = await cls._connect(broker, client_id, security)
                    if await connection._learn_versions(timeout):
                        await connection._authenticate(security.sasl, timeout)
                        return connection
                if security.sasl is not None:
                    raise SecurityError(
                        f"{broker}: hung up on ApiVersions: no broker, or one before 0.10, which knows no "
                        f"{security.sasl.mechanism}"
                    )
                connection = await cls._connect(broker, client_id, security)
                await connection._assume(BEFORE_API_VERSIONS, timeout)
                return connection
        except TimeoutError:
            raise ConnectionLost(f"{broker}: not connected within {timeout:g} s") from None

    @classmethod
    async def _connect(cls, broker: Broker, client_id: str, security: Security) -> Self:
        loop = asyncio.get_running_loop()
        try:
            _, wire = await loop.create_connection(
                lambda: _Wire(broker, client_id, security),
                broker.host,
                broker.port,
                ssl=security.tls,
                server_hostname=broker.host if security.tls else None,
            )
        except ssl.SSLError as error:
            why = tls_failures.explain(error, tls_failures.BROKER, certificate_given=security.certificate_given)
            raise SecurityError(f"{broker}: {why}") from error
        except (OSError, ValueError, OverflowError) as error:  # the last two: no possible host name or port
            hung_up = security.tls is not None and isinstance(error, _HANG_UPS)
            raise ConnectionLost(f"{broker}: {tls_failures.BROKER.hung_up if hung_up else error}") from error
        return cls(broker, wire)

    async def _authenticate(self, identity: Sasl | None, timeout: float) -> None:
        if identity is None:
            return
        began = now()
        try:
            lifetime = await sasl.authenticate(self, identity, timeout)
        except BaseException:
            self.close()
            raise
        if lifetime:
            self._good_until = began + lifetime * _PART_OF_LIFETIME

    async def _learn_versions(self, timeout: float) -> bool:
        """False when the broker hung up on the question."""
        try:
            answer = await self.call(ApiVersionsRequest(), timeout=timeout)
        except ConnectionLost:
            if self._wire.ended_by_peer:
                return False
            raise
        except BaseException:
            self.close()
            raise
        if answer.error:
            self.close()
            raise broker_error(answer.error, f"{self.broker}: ApiVersions")
        self.versions = answer.versions
        return True

    async def _assume(self, versions: Versions, timeout: float) -> None:
        """Use these versions, after a question that costs nothing: something that is no broker at all also hangs up."""
        self.versions = versions
        try:
            await self.call(ListOffsetsRequest({}), timeout=timeout)
        except ConnectionLost as error:
            raise ConnectionLost(
                f"{error} (on ApiVersions too: is this a broker, and right for [brokers] security_protocol?)"
            ) from None
        except BaseException:
            self.close()
            raise

    async def call(self, request: Request[R], *, timeout: float) -> R:
        """Send a request, and wait at most `timeout` seconds from now for its answer. Calls may overlap, sent in order.

        Brokers answer in order too, so a late answer holds up the others: if it does not come in time the connection is
        aborted. A cancelled call's answer is still awaited, within its timeout, and dropped. Raises ConnectionLost
        (whether the broker executed the request is unknown), ProtocolError (the connection is closed then),
        UnsupportedVersion (nothing was sent).
        """
        return await self.send(request, timeout=timeout)

    def send(self, request: Request[R], *, timeout: float) -> Awaitable[R]:
        """`call` in two steps: the request is sent now, and awaiting the result waits for the answer."""
        version = self.versions.choose(request.api_key)
        answer = self._wire.send(request.api_key, version, request.encode(version), timeout)
        return _Reply(self.broker, self._wire, request, version, answer)

    async def exchange_bare(self, token: bytes, *, timeout: float) -> bytes:
        """Send a SASL token without header, and wait for the broker's. Raises ConnectionLost, ProtocolError."""
        answer = await self._wire.send_bare(token, timeout)
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)

    @property
    def closed(self) -> bool:
        """Closed by us or lost."""
        return self._wire.ended is not None

    @property
    def ended_by_peer(self) -> bool:
        return self._wire.ended_by_peer

    @property
    def worn_out(self) -> bool:
        """The broker will end it soon, for our proof of identity is only believed so long (KIP-368): open another."""
        return now() >= self._good_until

    def close(self) -> None:
        """At once: calls in flight raise ConnectionLost."""
        self._wire.end("closed by us")
