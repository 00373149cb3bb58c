"""SASL, the client's half: what an exchange is, and the mechanisms with a password.

PLAIN and SCRAM (RFC 5802, RFC 7677) are for brokers, DIGEST-MD5 (RFC 2831) is for ZooKeeper. `tokens` has the
mechanisms without a password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Generator
from typing import Final

from kzconsumer.errors import ProtocolError, SecurityError

Exchange = Generator[bytes, bytes, bytes | None]
"""Yields the tokens to send and receives the answers. A token that it returns is sent, too: its answer has no content.

May block. Raises SecurityError if either side is refused, ProtocolError for a malformed answer.
"""


class Sasl:
    """A mechanism with an identity. Secrets are in no text of it."""

    def __init__(self, mechanism: str, identity: str, begin: Callable[[str], Exchange], check: str = "") -> None:
        """`begin` starts an exchange with a host. `check`: what to check if the server refuses; empty for passwords."""
        self.mechanism = mechanism
        self.begin = begin
        self.check = check
        self._identity = identity

    def __str__(self) -> str:
        """`PLAIN as orders`"""
        return f"{self.mechanism} {self._identity}"


LEAST_ITERATIONS: Final = 4096
"""RFC 7677, and the minimum of Kafka's client: with fewer an eavesdropper could guess the password."""
MOST_ITERATIONS: Final = 1_000_000
"""Half a second of computing. Kafka's tools store 16384 at most."""


def scram(hash_name: str, username: str, password: bytes, nonce: str) -> Exchange:
    """`hash_name` is hashlib's; `nonce` is printable ASCII without commas, and unique. The password is not sent.

    No SASLprep is applied to the password, though RFC 5802 demands it: Kafka applies none when it stores one (0.10.2 to
    3.9, `ScramFormatter`), so another form of the same text would be refused.
    """
    name = username.replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={name},r={nonce}"
    server_first = yield f"n,,{client_first}".encode()

    fields = _fields(server_first)
    if "m" in fields:
        raise ProtocolError("SCRAM: the broker demands an extension that we do not know")
    combined, salt, iterations = fields.get("r", ""), _decoded(fields, "s"), fields.get("i", "")
    if not combined.startswith(nonce) or combined == nonce:
        raise SecurityError("SCRAM: the broker's nonce is not an addition to ours")
    short = iterations.isdecimal() and len(iterations) <= 9  # int() refuses more than 4,300 digits
    if not short or not LEAST_ITERATIONS <= int(iterations) <= MOST_ITERATIONS:
        raise SecurityError(
            f"SCRAM: {iterations[:20] or 'no'} iterations, from {LEAST_ITERATIONS} to {MOST_ITERATIONS} are acceptable"
        )
    salted = hashlib.pbkdf2_hmac(hash_name, password, salt, int(iterations))
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    without_proof = f"c=biws,r={combined}"
    signed = b",".join((client_first.encode(), server_first, without_proof.encode()))
    signature = hmac.digest(stored_key, signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    fields = _fields(server_final)
    if "e" in fields:
        raise SecurityError(f"SCRAM: {fields['e']}")
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    if not hmac.compare_digest(hmac.digest(server_key, signed, hash_name), _decoded(fields, "v")):
        raise SecurityError("SCRAM: the broker does not know our password: it is not the one it claims to be")
    return None


def _fields(message: bytes) -> dict[str, str]:
    """The attributes of a message, `r=...,s=...`."""
    try:
        pairs = [part.partition("=") for part in message.decode().split(",")]
    except UnicodeDecodeError:
        pairs = [("", "", "")]
    if not all(len(name) == 1 and equals for name, equals, _ in pairs):
        raise ProtocolError("SCRAM: the answer is not a SCRAM message")
    return {name: value for name, _, value in pairs}


def _decoded(fields: dict[str, str], name: str) -> bytes:
    try:
        value = base64.b64decode(fields.get(name, ""), validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if not value:
        raise ProtocolError(f"SCRAM: the answer has no {name}= in base64")
    return value


_SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def with_password(mechanism: str, username: str, password: bytes) -> Sasl:
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
    nonce = secrets.token_urlsafe
    return Sasl(mechanism, f"as {username}", lambda host: exchange(mechanism, username, password, nonce(24)))


def exchange(mechanism: str, username: str, password: bytes, nonce: str) -> Exchange:
    """A new exchange of `mechanism`: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 (KIP-84). `nonce` is for SCRAM."""
    if mechanism == "PLAIN":
        return _plain(username, password)
    return scram(_SCRAM_HASHES[mechanism], username, password, nonce)


def _plain(username: str, password: bytes) -> Exchange:
    yield b"\0".join((b"", username.encode(), password))
    return None


# DIGEST-MD5 as ZooKeeper's servers implement it. The password is not sent, and the server proves that it knows it, too.

DIGEST_URI: Final = "zookeeper/zk-sasl-md5"
"""The service and the server's name, the same for all servers (`ZooKeeperSaslClient`, `SecurityUtils`, 3.8)."""
_COUNT: Final = "00000001"
_FIELD: Final = re.compile(r'\s*([a-z-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^",\s]+))\s*(?:,|$)', re.DOTALL)


def digest_md5(username: str, password: bytes, nonce: str) -> Exchange:
    """The first token is empty: the server begins. `nonce` is printable ASCII and unique."""
    challenge = _digest_fields((yield b""))
    if challenge.get("algorithm") != "md5-sess" or "nonce" not in challenge:
        raise SecurityError(
            "the server does not begin as DIGEST-MD5 does: has its JAAS configuration a section Server?"
        )
    if "auth" not in challenge.get("qop", "auth").split(","):
        raise SecurityError(f"the server wants the protection {challenge['qop']}, which ZooKeeper's protocol has not")
    realm, theirs = challenge.get("realm", ""), challenge["nonce"]
    secret = b":".join((_octets(username.encode()), _octets(realm.encode()), _octets(password)))
    between = f":{theirs}:{_COUNT}:{nonce}:auth:".encode()
    session = _md5(b":".join((_raw_md5(secret), theirs.encode(), nonce.encode())))

    def proof(what: str) -> bytes:
        return _md5(session + between + _md5(f"{what}:{DIGEST_URI}".encode()))

    directives = {"username": username, "realm": realm, "nonce": theirs, "cnonce": nonce, "digest-uri": DIGEST_URI}
    quoted = ",".join(f'{name}="{_escaped(value)}"' for name, value in directives.items())
    plain = f"charset=utf-8,nc={_COUNT},qop=auth,response={proof('AUTHENTICATE').decode()}"
    answer = _digest_fields((yield f"{quoted},{plain}".encode()))
    if not hmac.compare_digest(answer.get("rspauth", "").encode(), proof("")):
        raise SecurityError("the server does not know our password: it is not the one it claims to be")
    return None


def _digest_fields(message: bytes) -> dict[str, str]:
    """The directives of a message, `name="value",name=value`. Raises ProtocolError."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ProtocolError("DIGEST-MD5: the answer is not text") from None
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _FIELD.match(text, at)
        if match is None:
            raise ProtocolError("DIGEST-MD5: the answer is not a DIGEST-MD5 message")
        name, quoted, plain = match.groups()
        found.setdefault(name, plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        at = match.end()
    return found


def _octets(text: bytes) -> bytes:
    """The bytes to hash of a text in UTF-8: in ISO 8859-1 if possible, as in the RFC."""
    try:
        return text.decode().encode("latin-1")
    except UnicodeError:
        return text


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _raw_md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _md5(data: bytes) -> bytes:
    return _raw_md5(data).hex().encode()
