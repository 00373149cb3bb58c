"""One TCP connection to one broker: versions negotiated, SASL done, requests sent in order; it does not retry."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Awaitable
from typing import Final, Self, TypeVar

import anyio

from kzconsumer.brokers import sasl
from kzconsumer.brokers.protocol.error_codes import broker_error
from kzconsumer.brokers.protocol.frames import Request
from kzconsumer.brokers.protocol.group_state import DescribeGroupsRequest
from kzconsumer.brokers.protocol.list_offsets import ListOffsetsRequest
from kzconsumer.brokers.protocol.versions import BEFORE_API_VERSIONS, UNKNOWN, ApiVersionsRequest
from kzconsumer.brokers.security import Security
from kzconsumer.brokers.transport import BrokerTransport
from kzconsumer.clock import now
from kzconsumer.connecting import NO_ANSWER, Attempts, connect
from kzconsumer.errors import ConnectionLostError, ProtocolError, SecurityError
from kzconsumer.model import Broker
from kzconsumer.security import tls_failures
from kzconsumer.security.exchange import Sasl
from kzconsumer.settings.secret import reason_of

R = TypeVar("R")

_HANG_UPS_BEFORE_0_10: Final = 2
"""Times a broker must hang up on ApiVersions before it gets a request of 0.8. Once may be a broker that stops."""

_SILENCE_OF_0_9: Final = 0.5
"""Seconds without an answer to ApiVersions after which a broker gets a request that 0.9 answers."""

_PART_OF_LIFETIME: Final = 0.8
"""Part of a SASL session's lifetime after which no more requests are sent: the last ones take time, too."""

_HANG_UPS: Final = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
"""What asyncio raises when the peer ends the connection in the TLS handshake."""

_PLAINTEXT: Final = Security()


class BrokerConnection:
    """Made by `open`. Once lost or closed it stays so."""

    def __init__(self, transport: BrokerTransport) -> None:
        self.broker = transport.broker
        self.versions = UNKNOWN
        self._transport = transport
        self._good_until = math.inf

    @classmethod
    async def open(
        cls, broker: Broker, *, client_id: str, timeout: float, security: Security = _PLAINTEXT
    ) -> BrokerConnection:
        """Connect, ask for the broker's versions and authenticate, all within `timeout` seconds.

        A broker that closes two connections at ApiVersions may be 0.8, or the network failed. It is taken to be old,
        and gets requests of 0.8, if on a third connection it answers one and hangs up on ApiVersions again. A newer
        broker would answer Fetch 0 without headers and with records of aborted transactions. 0.9 says nothing to
        ApiVersions: after a while it gets another request on the same connection, and answers that. Others answer in
        order.

        Raises ConnectionLostError (SecurityError when the reason is TLS or SASL), ProtocolError,
        UnsupportedVersionError, or BrokerError when the broker answers ApiVersions with an error.
        """
        attempts = Attempts()
        try:
            with anyio.fail_after(timeout):
                for _ in range(_HANG_UPS_BEFORE_0_10):
                    connection = await cls._connect(broker, client_id, security, attempts)
                    if await connection._negotiate(timeout, may_be_old=security.sasl is None):
                        await connection._authenticate(security.sasl, timeout)
                        return connection
                    if connection._passed_over:
                        return await cls._connect_to_old(broker, client_id, security, timeout)
                if security.sasl is not None:
                    raise SecurityError(
                        f"{broker}: hung up on ApiVersions: no broker, or one before 0.10, which does not support "
                        f"{security.sasl.mechanism}"
                    )
                connection = await cls._connect_to_old(broker, client_id, security, timeout)
                if not await connection._negotiate(timeout):
                    connection = await cls._connect_to_old(broker, client_id, security, timeout)
                return connection
        except TimeoutError:
            which = f": {attempts}" if NO_ANSWER in str(attempts) else ""
            raise ConnectionLostError(f"{broker}: not connected within {timeout:g} s{which}") from None

    @classmethod
    async def _connect(
        cls, broker: Broker, client_id: str, security: Security, attempts: Attempts | None = None
    ) -> Self:
        transport = BrokerTransport(broker, client_id, security)
        try:
            await connect(lambda: transport, broker.host, broker.port, tls=security.tls, attempts=attempts)
        except ssl.SSLError as error:
            why = tls_failures.explain(error, tls_failures.BROKER, certificate_given=security.certificate_given)
            raise SecurityError(f"{broker}: {why}") from error
        except (OSError, ValueError, OverflowError) as error:  # the last two: no possible host name or port
            hung_up = security.tls is not None and isinstance(error, _HANG_UPS)
            why = "connection refused" if isinstance(error, ConnectionRefusedError) else reason_of(error)
            raise ConnectionLostError(f"{broker}: {tls_failures.BROKER.hung_up if hung_up else why}") from error
        return cls(transport)

    @classmethod
    async def _connect_to_old(cls, broker: Broker, client_id: str, security: Security, timeout: float) -> Self:
        """Connect to a broker that answers a request of 0.8, an empty ListOffsets: other servers disconnect again."""
        connection = await cls._connect(broker, client_id, security)
        connection.versions = BEFORE_API_VERSIONS
        try:
            await connection.call(ListOffsetsRequest({}), timeout=timeout)
        except ConnectionLostError as error:
            raise ConnectionLostError(
                f"{error} (on ApiVersions too: is this a broker, and right for [brokers] security_protocol?)"
            ) from None
        except BaseException:
            connection.close()
            raise
        return connection

    async def _authenticate(self, identity: Sasl | None, timeout: float) -> None:
        if identity is None:
            return
        began = now()
        try:
            lifetime = await sasl.authenticate(self._transport, self.versions, identity, timeout)
        except BaseException:
            self.close()
            raise
        if lifetime:
            self._good_until = began + lifetime * _PART_OF_LIFETIME

    async def _negotiate(self, timeout: float, *, may_be_old: bool = False) -> bool:
        """False when the broker hung up on ApiVersions, or has passed it over."""
        self.versions = UNKNOWN
        second: asyncio.TimerHandle | None = None
        if may_be_old:
            second = asyncio.get_running_loop().call_later(_SILENCE_OF_0_9, self._ask_what_0_9_answers, timeout)
        try:
            answer = await self.call(ApiVersionsRequest(), timeout=timeout)
        except ProtocolError:
            if self._passed_over:
                return False
            raise
        except ConnectionLostError:
            if self._transport.ended_by_peer:
                return False
            raise
        except BaseException:
            self.close()
            raise
        finally:
            if second is not None:
                second.cancel()
        if answer.error:
            self.close()
            raise broker_error(answer.error, f"{self.broker}: ApiVersions")
        self.versions = answer.versions
        return True

    def _ask_what_0_9_answers(self, timeout: float) -> None:
        """About no group; from 0.9 to 4 it is valid."""
        if not self.closed:
            self._transport.send(DescribeGroupsRequest(()), 0, timeout)

    @property
    def _passed_over(self) -> bool:
        """The broker has answered the second request, and not ApiVersions."""
        return self._transport.passed_over

    async def call(self, request: Request[R], *, timeout: float) -> R:
        """Send a request and wait at most `timeout` seconds for its response; calls may overlap.

        Brokers answer in order, so a late response holds up the others: after `timeout` the connection is aborted.
        The response to a cancelled call is received and dropped. Raises ConnectionLostError (the outcome is unknown),
        ProtocolError (the connection is closed then), UnsupportedVersionError (nothing was sent).
        """
        return await self.send(request, timeout=timeout)

    def send(self, request: Request[R], *, timeout: float) -> Awaitable[R]:
        """`call` in two steps: the request is sent now, awaiting the result waits for the response."""
        return self._transport.send(request, self.versions.choose(request.api_key), timeout)

    @property
    def closed(self) -> bool:
        """Closed or lost."""
        return self._transport.ended is not None

    @property
    def ended_by_peer(self) -> bool:
        """The broker has closed it, or the network has."""
        return self._transport.ended_by_peer

    @property
    def timed_out(self) -> bool:
        """It was given up because an answer did not come in time."""
        return self._transport.timed_out

    @property
    def worn_out(self) -> bool:
        """Its SASL session expires soon, and the broker ends the connection then (KIP-368): open another.

        Not while a call is in flight: closing the connection would lose it.
        """
        return now() >= self._good_until and not self._transport.in_flight

    def close(self) -> None:
        """Close at once: calls in flight raise ConnectionLostError."""
        self._transport.end("closed by us")
