"""SASL with a broker at the begin of a connection, in the form that its version knows.

Owns no state; `BrokerConnection.open` calls it before anything else is asked. Brokers from 1.0 on carry the tokens in
SaslAuthenticate and tell why they refuse; 0.10 and 0.11 take bare tokens, and hang up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.error_codes import broker_error, error_code
from kzconsumer.brokers.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kzconsumer.brokers.protocol.versions import SASL_HANDSHAKE
from kzconsumer.brokers.security import Sasl
from kzconsumer.errors import ConnectionLost, SecurityError

if TYPE_CHECKING:
    from kzconsumer.brokers.connection import BrokerConnection


async def authenticate(connection: BrokerConnection, sasl: Sasl, timeout: float) -> float:
    """Prove to the broker who we are; returns for how many seconds it will believe it, 0.0 for ever.

    `timeout` is for each answer. Raises SecurityError when either side does not accept the other, ConnectionLost,
    ProtocolError, UnsupportedVersion (a broker without SaslHandshake), BrokerError.
    """
    try:
        bare = connection.versions.choose(SASL_HANDSHAKE) == 0
        await _agree_on(connection, sasl.mechanism, timeout)
        exchange = sasl.exchange()
        token, lifetime_ms = next(exchange), 0
        while True:
            if bare:
                answer = await _bare(connection, sasl, token, timeout)
            else:
                answer, lifetime_ms = await _wrapped(connection, token, timeout)
            try:
                token = exchange.send(answer)
            except StopIteration:
                return lifetime_ms / 1000
    except SecurityError as error:
        raise SecurityError(f"{connection.broker}: {sasl.mechanism} as {sasl.username}: {error}") from None


async def _agree_on(connection: BrokerConnection, mechanism: str, timeout: float) -> None:
    answer = await connection.call(SaslHandshakeRequest(mechanism), timeout=timeout)
    if answer.error == error_codes.UNSUPPORTED_SASL_MECHANISM:
        known = ", ".join(answer.mechanisms) or "none"
        raise SecurityError(f"not a mechanism of this listener; it has {known}: [brokers.sasl] mechanism")
    if answer.error == error_codes.ILLEGAL_SASL_STATE:
        raise SecurityError("this listener has no SASL: [brokers] security_protocol, listener")
    if answer.error:
        raise broker_error(answer.error, f"{connection.broker}: SaslHandshake")


async def _wrapped(connection: BrokerConnection, token: bytes, timeout: float) -> tuple[bytes, int]:
    answer = await connection.call(SaslAuthenticateRequest(token), timeout=timeout)
    if answer.error:
        raise SecurityError(f"{answer.message or 'refused'} ({error_code(answer.error).name})")
    return answer.token, answer.lifetime_ms


async def _bare(connection: BrokerConnection, sasl: Sasl, token: bytes, timeout: float) -> bytes:
    try:
        return await connection.exchange_bare(token, timeout=timeout)
    except SecurityError:
        raise
    except ConnectionLost:
        if not connection.ended_by_peer:
            raise
        raise SecurityError("the broker hung up; those before 1.0 do not say why: wrong name or password?") from None
