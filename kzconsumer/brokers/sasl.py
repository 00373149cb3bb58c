"""SASL at the beginning of a connection to a broker, in the form that its version knows.

Brokers from 1.0 on carry the tokens in SaslAuthenticate and say why they refuse; 0.10 and 0.11 take bare tokens, and
hang up.
"""

from __future__ import annotations

from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.error_codes import broker_error, error_code
from kzconsumer.brokers.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kzconsumer.brokers.protocol.versions import SASL_AUTHENTICATE, SASL_HANDSHAKE, Versions
from kzconsumer.brokers.transport import BrokerTransport
from kzconsumer.connecting import server_name
from kzconsumer.errors import ConnectionLostError, SecurityError
from kzconsumer.security.exchange import Sasl
from kzconsumer.security.next_token import next_token


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
