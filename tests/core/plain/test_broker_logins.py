"""Logins at a broker: how long they remain valid, and which error is reported if a login fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kzconsumer.brokers.connection import authenticate
from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.versions import SASL_AUTHENTICATE, SASL_HANDSHAKE, SaslHandshakeRequest, Versions
from kzconsumer.brokers.transport import BrokerTransport
from kzconsumer.errors import BrokerError, ConnectionLostError, SecurityError
from kzconsumer.model import Broker
from kzconsumer.security.sasl import Exchange, Sasl

BROKER = Broker(1, "kafka1.", 9092)
LOST = ConnectionLostError("closed")
REFUSED = 58  # SASL_AUTHENTICATION_FAILED


class Peer:
    """A transport: the answers that its broker gives, in their order, and what it was sent."""

    broker = BROKER

    def __init__(self, version: int, *answers: object, ended_by_peer: bool = True) -> None:
        self.versions = Versions({SASL_HANDSHAKE: (0, version), SASL_AUTHENTICATE: (0, 1)})
        self.ended_by_peer = ended_by_peer
        self.sent: list[object] = []
        self._answers = list(answers)

    async def send(self, request: Any, version: int, timeout: float) -> Any:
        self.sent.append(request.mechanism if isinstance(request, SaslHandshakeRequest) else request.encode(1)[4:])
        return self._next(timeout)

    async def exchange_bare(self, token: bytes, timeout: float) -> Any:
        self.sent.append(token)
        return self._next(timeout)

    def send_bare(self, token: bytes) -> None:
        self.sent.append(token)

    def _next(self, timeout: float) -> object:
        assert timeout == 5.0
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def two_tokens(host: str) -> Exchange:
    assert host == "kafka1", "without the dot of an absolute name"
    if (yield b"first") != b"challenge":
        raise SecurityError("the server does not prove who it is")
    assert (yield b"second") == b"welcome"
    return None


def one_token_without_answer(host: str) -> Exchange:
    assert (yield b"first") == b"challenge"
    return b"last"


def handshake(error: int = 0, *mechanisms: str) -> object:
    return SimpleNamespace(error=error, mechanisms=mechanisms)


def answer(token: bytes, error: int = 0, message: str = "", lifetime_ms: int = 0) -> object:
    return SimpleNamespace(token=token, error=error, message=message, lifetime_ms=lifetime_ms)


async def log_in(peer: Peer, check: str = "", begin: Any = two_tokens) -> float:
    return await authenticate(cast(BrokerTransport, peer), peer.versions, Sasl("TOY", "as alice", begin, check), 5.0)


@pytest.mark.parametrize("lifetime", [0, 90_500])
async def test_a_login_is_good_for_as_long_as_the_last_answer_says(lifetime: int) -> None:
    last = answer(b"welcome", lifetime_ms=lifetime)
    peer = Peer(1, handshake(), answer(b"challenge", lifetime_ms=1), last)
    assert await log_in(peer) == lifetime / 1000
    assert peer.sent == ["TOY", b"first", b"second"]


async def test_before_1_0_tokens_are_sent_without_a_request() -> None:
    peer = Peer(0, handshake(), b"challenge", b"welcome")
    assert await log_in(peer) == 0.0
    assert peer.sent == ["TOY", b"first", b"second"]
    peer = Peer(0, handshake(), b"challenge")  # a last token without content gets no answer
    assert await log_in(peer, begin=one_token_without_answer) == 0.0
    assert peer.sent == ["TOY", b"first", b"last"]


@pytest.mark.parametrize(
    ("peer", "check", "why"),
    [
        (
            Peer(1, handshake(error_codes.UNSUPPORTED_SASL_MECHANISM, "PLAIN", "GSSAPI")),
            "",
            "not a mechanism of this listener; it has PLAIN, GSSAPI: [brokers.sasl] mechanism",
        ),
        (
            Peer(1, handshake(error_codes.UNSUPPORTED_SASL_MECHANISM)),
            "",
            "not a mechanism of this listener; it has none: [brokers.sasl] mechanism",
        ),
        (
            Peer(1, handshake(error_codes.ILLEGAL_SASL_STATE)),
            "",
            "this listener has no SASL: [brokers] security_protocol, listener",
        ),
        (Peer(1, handshake(), answer(b"", REFUSED, "no such user")), "", "no such user (SASL_AUTHENTICATION_FAILED)"),
        (Peer(1, handshake(), answer(b"", REFUSED)), "", "refused (SASL_AUTHENTICATION_FAILED)"),
        (
            Peer(1, handshake(), answer(b"challenge"), answer(b"", REFUSED)),
            "is the token valid?",
            "refused (SASL_AUTHENTICATION_FAILED): is the token valid?",
        ),
        (
            Peer(0, handshake(), LOST),
            "",
            "the broker hung up; those before 1.0 do not say why: wrong name or password?",
        ),
        (
            Peer(0, handshake(), LOST),
            "is the token valid?",
            "the broker hung up; those before 1.0 do not say why: is the token valid?",
        ),
        (Peer(0, handshake(), SecurityError("not TLS")), "", "not TLS"),
        (Peer(1, handshake(), answer(b"forged")), "", "the server does not prove who it is"),
    ],
)
async def test_a_refused_login_names_the_identity_and_what_to_check(peer: Peer, check: str, why: str) -> None:
    with pytest.raises(SecurityError) as raised:
        await log_in(peer, check)
    assert str(raised.value) == f"{BROKER}: [brokers.sasl] TOY as alice: {why}"


async def test_a_connection_that_is_lost_is_no_refusal() -> None:
    with pytest.raises(ConnectionLostError) as raised:
        await log_in(Peer(0, handshake(), LOST, ended_by_peer=False))
    assert raised.value is LOST
    with pytest.raises(BrokerError, match="SaslHandshake: REQUEST_TIMED_OUT"):
        await log_in(Peer(1, handshake(error_codes.REQUEST_TIMED_OUT)))
