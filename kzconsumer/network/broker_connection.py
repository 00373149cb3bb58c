"""One TCP connection to one broker: requests go out at once, answers come back in order.

`BrokerConnection` owns the socket, the requests in flight and the bytes of answers not yet complete. Fetchers and the
leader finder call it, from one event loop. It retries nothing and knows no topic. Socket errors end here: they become
ConnectionLost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Generator
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, cast

import anyio

from kzconsumer.errors import ConnectionLost, ProtocolError
from kzconsumer.model import Broker
from kzconsumer.protocol.api_versions import ApiVersionsRequest
from kzconsumer.protocol.error_codes import broker_error
from kzconsumer.protocol.frames import FrameReader, request_frame, response_body
from kzconsumer.protocol.list_offsets import ListOffsetsRequest
from kzconsumer.protocol.request import Request
from kzconsumer.protocol.versions import BEFORE_API_VERSIONS, SPOKEN, UNKNOWN, Versions, is_flexible

R = TypeVar("R")

_ASKED_FOR_VERSIONS: Final = 2
"""Times a broker must hang up on ApiVersions before it counts as older than 0.10. Once may be a broker that stops."""


class _InFlight(NamedTuple):
    correlation: int
    flexible: bool
    answer: asyncio.Future[memoryview | ConnectionLost | ProtocolError]
    timer: asyncio.TimerHandle


class _Wire(asyncio.BufferedProtocol):
    """The transport's side of a connection: matches answers to requests, and ends all of them when it ends."""

    def __init__(self, broker: Broker, client_id: str) -> None:
        self._broker = broker
        self._client_id = client_id.encode()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._correlation = 0
        self.in_flight: deque[_InFlight] = deque()
        self.ended: str | None = None
        self.ended_by_peer = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.received(nbytes):
                self._answered(frame)
        except ProtocolError as error:
            self.end(str(error), ProtocolError(f"{self._broker}: {error}"))

    def _answered(self, frame: memoryview) -> None:
        if self.ended is not None:
            return
        if not self.in_flight:
            raise ProtocolError("an answer to no request")
        request = self.in_flight[0]
        body = response_body(frame, request.correlation, flexible=request.flexible)
        self.in_flight.popleft()
        request.timer.cancel()
        if not request.answer.done():
            request.answer.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended is None:
            self.ended_by_peer = True
        self.end(str(exc) if exc else "closed by the broker")

    def send(
        self, api_key: int, version: int, body: bytes, timeout: float
    ) -> asyncio.Future[memoryview | ConnectionLost | ProtocolError]:
        """Errors are results of the future, not exceptions: a cancelled caller leaves no unretrieved exception."""
        if self.ended is not None or self._transport is None:
            raise ConnectionLost(f"{self._broker}: {self.ended}")
        correlation = self._correlation
        self._correlation = (correlation + 1) & 0x7FFFFFFF
        flexible = is_flexible(api_key, version)
        late = f"no answer to {SPOKEN[api_key].name} within {timeout:g} s"
        answer: asyncio.Future[memoryview | ConnectionLost | ProtocolError] = self._loop.create_future()
        timer = self._loop.call_later(timeout, self.end, late)
        self.in_flight.append(_InFlight(correlation, flexible, answer, timer))
        self._transport.write(request_frame(api_key, version, correlation, self._client_id, body, flexible=flexible))
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
                request.answer.set_result(outcome or ConnectionLost(f"{self._broker}: {why}"))
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

    def __repr__(self) -> str:
        state = f"{len(self._wire.in_flight)} in flight" if self._wire.ended is None else self._wire.ended
        return f"<BrokerConnection {self.broker}: {self.versions}; {state}>"

    @classmethod
    async def open(cls, broker: Broker, *, client_id: str, timeout: float) -> BrokerConnection:
        """Connect, and learn which versions the broker speaks; both within `timeout` seconds.

        A broker that hangs up on ApiVersions twice is taken to be 0.8 or 0.9 and reconnected to at their level.
        Raises ConnectionLost, ProtocolError, or BrokerError when the broker refuses to name its versions.
        """
        try:
            with anyio.fail_after(timeout):
                for _ in range(_ASKED_FOR_VERSIONS):
                    connection = await cls._connect(broker, client_id)
                    if await connection._learn_versions(timeout):
                        return connection
                connection = await cls._connect(broker, client_id)
                await connection._assume(BEFORE_API_VERSIONS, timeout)
                return connection
        except TimeoutError:
            raise ConnectionLost(f"{broker}: not connected within {timeout:g} s") from None

    @classmethod
    async def _connect(cls, broker: Broker, client_id: str) -> Self:
        loop = asyncio.get_running_loop()
        try:
            _, wire = await loop.create_connection(lambda: _Wire(broker, client_id), broker.host, broker.port)
        except (OSError, UnicodeError, OverflowError) as error:  # the last two: no possible host name or port
            raise ConnectionLost(f"{broker}: {error}") from error
        return cls(broker, wire)

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
                f"{error} (on ApiVersions too: a broker, and a listener without TLS or SASL?)"
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

    @property
    def closed(self) -> bool:
        """Closed by us or lost."""
        return self._wire.ended is not None

    def close(self) -> None:
        """At once: calls in flight raise ConnectionLost."""
        self._wire.end("closed by us")
