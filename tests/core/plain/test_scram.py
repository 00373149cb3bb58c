"""SCRAM against the exchanges printed in its RFCs, and against servers that cheat."""

from __future__ import annotations

import base64
import hashlib
import hmac
import traceback

import pytest

from kzconsumer.brokers.protocol.versions import SaslAuthenticateRequest
from kzconsumer.errors import KzConsumerError, ProtocolError, SecurityError
from kzconsumer.security.sasl import Exchange, exchange, scram

RFC_5802 = (
    "sha1",
    "fyko+d2lbbFgONRv9qkxdawL",
    "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)
RFC_7677 = (
    "sha256",
    "rOprNGfwEbeRWgbNEkqO",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


@pytest.mark.parametrize(("hash_name", "nonce", "first", "final", "verdict"), [RFC_5802, RFC_7677])
def test_the_exchanges_of_the_rfcs(hash_name: str, nonce: str, first: str, final: str, verdict: str) -> None:
    output = scram(hash_name, "user", b"pencil", nonce)
    assert next(output) == f"n,,n=user,r={nonce}".encode()
    assert output.send(first.encode()) == final.encode()
    with pytest.raises(StopIteration):
        output.send(verdict.encode())


class Server:
    """The server side, as in RFC 5802, section 3."""

    def __init__(self, hash_name: str, password: bytes, iterations: int = 4096) -> None:
        self.hash_name = hash_name
        self.salted = hashlib.pbkdf2_hmac(hash_name, password, b"salt", iterations)
        self.iterations = iterations

    def first(self, client_first: bytes) -> bytes:
        self.client_first = client_first.removeprefix(b"n,,")
        nonce = self.client_first.split(b",r=")[1]
        self.said = b"r=%s-more,s=%s,i=%d" % (nonce, base64.b64encode(b"salt"), self.iterations)
        return self.said

    def final(self, client_final: bytes) -> bytes:
        without_proof, _, proof = client_final.rpartition(b",p=")
        signed = b",".join((self.client_first, self.said, without_proof))
        key = hmac.digest(self.salted, b"Client Key", self.hash_name)
        stored = hashlib.new(self.hash_name, key).digest()
        signature = hmac.digest(stored, signed, self.hash_name)
        if bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) != key:
            return b"e=invalid-proof"
        server_key = hmac.digest(self.salted, b"Server Key", self.hash_name)
        return b"v=" + base64.b64encode(hmac.digest(server_key, signed, self.hash_name))


def run(output: Exchange, server: Server) -> None:
    final = output.send(server.first(next(output)))
    with pytest.raises(StopIteration):
        output.send(server.final(final))


@pytest.mark.parametrize(("mechanism", "hash_name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_both_mechanisms_of_kafka(mechanism: str, hash_name: str) -> None:
    run(exchange(mechanism, "me", b"secret", "nonce"), Server(hash_name, b"secret", 8192))


def test_a_wrong_password_is_reported_by_the_server() -> None:
    with pytest.raises(SecurityError, match="SCRAM: invalid-proof"):
        run(exchange("SCRAM-SHA-256", "me", b"wrong", "nonce"), Server("sha256", b"secret"))


def test_a_server_that_does_not_know_the_password_is_rejected() -> None:
    output = scram("sha256", "me", b"secret", "nonce")
    output.send(Server("sha256", b"guess").first(next(output)))
    forged = base64.b64encode(bytes(32))
    with pytest.raises(SecurityError, match="does not know our password"):
        output.send(b"v=" + forged)


def test_names_are_escaped() -> None:
    assert next(scram("sha256", "a=b,c", b"secret", "nonce")) == b"n,,n=a=3Db=2Cc,r=nonce"


@pytest.mark.parametrize(
    ("first", "kind", "why"),
    [
        (b"r=nonce,s=c2FsdA==,i=4096", SecurityError, "nonce"),
        (b"r=other,s=c2FsdA==,i=4096", SecurityError, "nonce"),
        (b"r=nonce-more,s=c2FsdA==,i=4095", SecurityError, "4095 iterations, from 4096 to 1000000"),
        (b"r=nonce-more,s=c2FsdA==,i=1000001", SecurityError, "1000001 iterations"),
        (b"r=nonce-more,s=c2FsdA==,i=" + b"9" * 5000, SecurityError, "99999 iterations"),
        (b"r=nonce-more,s=c2FsdA==,i=-1", SecurityError, "iterations"),
        (b"r=nonce-more,s=c2FsdA==", SecurityError, "no iterations"),
        (b"m=x,r=nonce-more,s=c2FsdA==,i=4096", ProtocolError, "extension"),
        (b"r=nonce-more,s=,i=4096", ProtocolError, "no s= in base64"),
        (b"r=nonce-more,s=?,i=4096", ProtocolError, "no s= in base64"),
        (b"", ProtocolError, "not a SCRAM message"),
        (b"\xff", ProtocolError, "not a SCRAM message"),
        (b"rnonce", ProtocolError, "not a SCRAM message"),
    ],
)
def test_invalid_server_messages_are_rejected(first: bytes, kind: type[Exception], why: str) -> None:
    output = scram("sha256", "me", b"secret", "nonce")
    next(output)
    with pytest.raises(kind, match=why):
        output.send(first)


@pytest.mark.parametrize("final", [b"v=", b"v=?", b"x=1", b""])
def test_an_invalid_final_message(final: bytes) -> None:
    output = scram("sha256", "me", b"secret", "nonce")
    output.send(Server("sha256", b"secret").first(next(output)))
    with pytest.raises(ProtocolError):
        output.send(final)


def test_plain() -> None:
    output = exchange("PLAIN", "me", "geh\u00e4im".encode(), "")
    assert next(output) == b"\0me\0geh\xc3\xa4im"
    with pytest.raises(StopIteration):
        output.send(b"")


def test_nothing_that_is_printed_holds_the_password() -> None:
    assert "secret" not in repr(SaslAuthenticateRequest(b"\0me\0secret"))
    output = scram("sha256", "me", b"secret", "nonce")
    next(output)
    with pytest.raises(KzConsumerError) as caught:
        output.send(b"r=nonce,s=c2FsdA==,i=4096")
    assert "secret" not in "".join(traceback.format_exception(caught.value)).replace('b"secret"', "")
    assert "secret" not in repr(output)
