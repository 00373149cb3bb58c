"""DIGEST-MD5 against the exchange in the RFC, and against servers that do not know the password."""

from __future__ import annotations

import pytest

from kzconsumer.errors import ProtocolError, SecurityError
from kzconsumer.security import sasl as module
from kzconsumer.security.sasl import Exchange, digest_md5

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'


@pytest.fixture
def chris(monkeypatch: pytest.MonkeyPatch) -> Exchange:
    """RFC 2831, section 4, up to the server's first message."""
    monkeypatch.setattr(module, "DIGEST_URI", "imap/elwood.innosoft.com")
    exchange = digest_md5("chris", b"secret", "OA6MHXh6VqTrRk")
    assert next(exchange) == b""
    return exchange


def test_the_exchange_of_the_rfc(chris: Exchange) -> None:
    answer = chris.send(CHALLENGE)
    assert b"response=d388dad90d4bbd760a152321f2143af7" in answer
    assert b'username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",cnonce="OA6MHXh6VqTrRk"' in answer
    with pytest.raises(StopIteration):
        chris.send(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")


@pytest.mark.parametrize("proof", [b"", b'rspauth=""', b"rspauth=ea40f60335c427b5527b84dbabcdfffe"])
def test_a_server_that_does_not_know_the_password_is_rejected(chris: Exchange, proof: bytes) -> None:
    chris.send(CHALLENGE)
    with pytest.raises(SecurityError, match="does not know our password"):
        chris.send(proof)


@pytest.mark.parametrize(
    ("challenge", "error"),
    [
        (b"", SecurityError),
        (CHALLENGE.replace(b"md5-sess", b"md5"), SecurityError),
        (CHALLENGE.replace(b"auth", b"auth-conf"), SecurityError),
        (CHALLENGE.replace(b"nonce=", b"once="), SecurityError),
        (b"\xff\xfe", ProtocolError),
        (b'realm="unended', ProtocolError),
        (b"nonsense", ProtocolError),
    ],
)
def test_another_first_message_is_rejected(chris: Exchange, challenge: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        chris.send(challenge)


def test_names_are_quoted() -> None:
    exchange = digest_md5('a"b\\c,d', "gr\u00fc\u00dfe".encode(), "n")
    next(exchange)
    assert rb'username="a\"b\\c,d"' in exchange.send(CHALLENGE)
