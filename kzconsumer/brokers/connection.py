"""One TCP connection to one broker: versions negotiated, SASL done, requests sent in order; it does not retry."""

from __future__ import annotations

import asyncio
import math
import ssl
from typing import Final, Self, TypeVar

import anyio

from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.error_codes import broker_error, error_code
from kzconsumer.brokers.protocol.groups import DescribeGroupsRequest
from kzconsumer.brokers.protocol.log_reads import ListOffsetsRequest
from kzconsumer.brokers.protocol.primitives import Request
from kzconsumer.brokers.protocol.versions import (
    BEFORE_API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    UNKNOWN,
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    Versions,
)
from kzconsumer.brokers.transport import BrokerTransport, Response, Security
from kzconsumer.clock import now
from kzconsumer.connecting import NO_ANSWER, AddressOutcomes, connect, server_name
from kzconsumer.errors import ConnectionLostError, ProtocolError, SecurityError
from kzconsumer.model import Broker
from kzconsumer.security.sasl import Sasl
from kzconsumer.security.tls import BROKER, explain
from kzconsumer.security.tokens import next_token
from kzconsumer.settings.layers import reason_of

# SASL in the form that the broker's version knows. Brokers from 1.0 on carry the tokens in SaslAuthenticate and say why
# they refuse; 0.10 and 0.11 take bare tokens, and hang up.


async def authenticate(transport: BrokerTransport, versions: Versions, sasl: Sasl, timeout: float) -> float:
    """Authenticate; returns for how many seconds the broker accepts it, 0.0 without a limit.

    `timeout` is for each response. Raises SecurityError when either side does not accept the other,
    ConnectionLostError, ProtocolError, UnsupportedVersionError (a broker without SaslHandshake), BrokerError.
    """
    try:
        version = versions.choose(SASL_HANDSHAKE)
        answer = await transport.send(SaslHandshakeRequest(sasl.mechanism), version, timeout)
        _check(answer.error, answer.mechanisms, transport)
        exchange = sasl.begin(server_name(transport.broker.host))
        reply, lifetime_ms, goes_on = None, 0, True
        while goes_on:
            token, goes_on = await next_token(exchange, reply)
            if token is None:
                continue
            if version > 0:
                token_version = versions.choose(SASL_AUTHENTICATE)
                reply, lifetime_ms = await _wrapped(transport, token_version, token, timeout, sasl.check)
            elif goes_on:
                reply = await _bare(transport, token, timeout, sasl.check)
            else:
                transport.send_bare(token)  # no frame answers a last token without content
        return lifetime_ms / 1000
    except SecurityError as error:
        raise SecurityError(f"{transport.broker}: [brokers.sasl] {sasl}: {error}") from None


def _check(error: int, mechanisms: tuple[str, ...], transport: BrokerTransport) -> None:
    if error == error_codes.UNSUPPORTED_SASL_MECHANISM:
        known = ", ".join(mechanisms) or "none"
        raise SecurityError(f"not a mechanism of this listener; it has {known}: [brokers.sasl] mechanism")
    if error == error_codes.ILLEGAL_SASL_STATE:
        raise SecurityError("this listener has no SASL: [brokers] security_protocol, listener")
    if error:
        raise broker_error(error, f"{transport.broker}: SaslHandshake")


async def _wrapped(
    transport: BrokerTransport, version: int, token: bytes, timeout: float, check: str
) -> tuple[bytes, int]:
    answer = await transport.send(SaslAuthenticateRequest(token), version, timeout)
    if answer.error:
        refusal = f"{answer.message or 'refused'} ({error_code(answer.error).name})"
        raise SecurityError(f"{refusal}: {check}" if check else refusal)
    return answer.token, answer.lifetime_ms


async def _bare(transport: BrokerTransport, token: bytes, timeout: float, check: str) -> bytes:
    try:
        return await transport.exchange_bare(token, timeout)
    except SecurityError:
        raise
    except ConnectionLostError:
        if not transport.ended_by_peer:
            raise
        why = check or "wrong name or password?"
        raise SecurityError(f"the broker hung up; those before 1.0 do not say why: {why}") from None


R = TypeVar("R")

_HANG_UPS_BEFORE_0_10: Final = 2
"""Times a broker must hang up on ApiVersions before it gets a request of 0.8. Once may be a broker that stops."""

_SILENCE_OF_0_9: Final = 0.5
"""Seconds without an answer to ApiVersions after which a broker gets a request that 0.9 answers."""

_PART_OF_LIFETIME: Final = 0.8
"""Part of a SASL session's lifetime after which no more requests are sent: the last ones take time, too."""

_MOST_IDLE: Final = 60.0
"""Seconds without a request after which a connection is not used again. Firewalls, NAT gateways and load balancers
forget idle ones, after a minute to an hour, and many tell nobody: a request on it would wait for its timeout."""

_HANG_UPS: Final = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
"""What asyncio raises when the peer ends the connection in the TLS handshake."""

_LIMIT: Final = "has it reached a limit of connections (max.connections.per.ip)"
"""What a peer may have that hangs up at once; it does not say so."""

_PLAINTEXT: Final = Security()


class BrokerConnection:
    """Made by `open`. Once lost or closed it stays so."""

    def __init__(self, transport: BrokerTransport) -> None:
        self.broker = transport.broker
        self.versions = UNKNOWN
        self.transport = transport
        self._good_until = math.inf
        self._used = now()

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
        attempts = AddressOutcomes()
        try:
            with anyio.fail_after(timeout):
                for _ in range(_HANG_UPS_BEFORE_0_10):
                    connection = await cls._connect(broker, client_id, security, attempts)
                    if await connection._negotiate(timeout, may_be_old=security.sasl is None):
                        await connection._authenticate(security.sasl, timeout)
                        return connection
                    if connection._passed_over:
                        return await cls._connect_to_old(broker, client_id, security, timeout)
                if security.sasl is not None:  # not refused: it was sent no token
                    raise ConnectionLostError(
                        f"{broker}: hung up on ApiVersions: {_LIMIT}, is it no broker, or one before 0.10, which does "
                        f"not support {security.sasl.mechanism}?"
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
        cls, broker: Broker, client_id: str, security: Security, attempts: AddressOutcomes | None = None
    ) -> Self:
        transport = BrokerTransport(broker, client_id, security)
        try:
            await connect(lambda: transport, broker.host, broker.port, tls=security.tls, attempts=attempts)
        except ssl.SSLError as error:
            why = explain(error, BROKER, certificate_given=security.certificate_given)
            raise SecurityError(f"{broker}: {why}") from error
        except (OSError, ValueError, OverflowError) as error:  # the last two: no possible host name or port
            hung_up = security.tls is not None and isinstance(error, _HANG_UPS)
            why = "connection refused" if isinstance(error, ConnectionRefusedError) else reason_of(error)
            raise ConnectionLostError(f"{broker}: {BROKER.hung_up if hung_up else why}") from error
        return cls(transport)

    @classmethod
    async def _connect_to_old(cls, broker: Broker, client_id: str, security: Security, timeout: float) -> Self:
        """Connect to a broker that answers a request of 0.8, an empty ListOffsets: other servers disconnect again."""
        # Is it an old broker, or a bad network?
        # 1. Brokers of 0.8 hang up on ApiVersions; so does a network that fails, or a broker that stops. A modern
        #    broker that was taken to be old would be asked by Fetch 0: without headers, and with the records of aborted
        #    transactions.
        # 2. So a broker is taken to be old only if it has hung up on ApiVersions, and, on another connection, answers a
        #    request of 0.8 and then hangs up on ApiVersions again.
        # 3. Brokers of 0.9 do not hang up: they pass ApiVersions over without a word. Half a second later
        #    (`_ask_what_0_9_answers`) they get DescribeGroups, without groups, on the same connection. An answer to
        #    that proves it, as every broker answers in order; and it is a valid request up to Kafka 4.
        connection = await cls._connect(broker, client_id, security)
        connection.versions = BEFORE_API_VERSIONS
        try:
            await connection.call(ListOffsetsRequest({}), timeout=timeout)
        except ConnectionLostError as error:
            raise ConnectionLostError(
                f"{error} (on ApiVersions too: {_LIMIT}, is it a broker, is [brokers] security_protocol right?)"
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
            lifetime = await authenticate(self.transport, self.versions, identity, timeout)
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
        except (ConnectionLostError, ProtocolError):
            if self._passed_over or self.transport.ended_by_peer:
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
            self.transport.send(DescribeGroupsRequest(()), 0, timeout)

    @property
    def _passed_over(self) -> bool:
        """The broker has answered the second request, and not ApiVersions."""
        return self.transport.passed_over

    async def call(self, request: Request[R], *, timeout: float) -> R:
        """Send a request and wait at most `timeout` seconds for its response; calls may overlap.

        Brokers answer in order, so a late response holds up the others: after `timeout` the connection is aborted.
        The response to a cancelled call is received and dropped. Raises ConnectionLostError (the outcome is unknown),
        ProtocolError (the connection is closed then), UnsupportedVersionError (nothing was sent).
        """
        return await self.send(request, timeout=timeout)

    def send(self, request: Request[R], *, timeout: float) -> Response[R]:
        """`call` in two steps: the request is sent now, awaiting the result waits for the response."""
        self._used = now()
        return self.transport.send(request, self.versions.choose(request.api_key), timeout)

    @property
    def closed(self) -> bool:
        """Closed or lost."""
        return self.transport.ended is not None

    @property
    def ended_by_peer(self) -> bool:
        """The broker has closed it, or the network has."""
        return self.transport.ended_by_peer

    @property
    def timed_out(self) -> bool:
        """It was given up because an answer did not come in time."""
        return self.transport.timed_out

    @property
    def begun(self) -> int:
        """Bytes that had come of that answer: the line is too slow for it."""
        return self.transport.begun

    @property
    def worn_out(self) -> bool:
        """It has been idle for long, or its SASL session expires soon, when the broker ends it (KIP-368): open another.

        "Soon" is after _PART_OF_LIFETIME of the time, so that no request is on its way at the end. Not while a call is
        in flight: closing the connection would lose it.
        """
        time = now()
        return (time >= self._good_until or time - self._used > _MOST_IDLE) and not self.transport.in_flight

    def close(self, why: str = "closed by us") -> None:
        """Close at once: calls in flight raise ConnectionLostError, which says why."""
        self.transport.end(why)
