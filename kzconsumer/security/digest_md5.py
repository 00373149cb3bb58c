"""SASL DIGEST-MD5 (RFC 2831) as ZooKeeper's servers implement it: the client's half.

The password is not sent, and the server proves that it knows it, too.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from kzconsumer.errors import ProtocolError, SecurityError
from kzconsumer.security.exchange import Exchange

_URI: Final = "zookeeper/zk-sasl-md5"
"""The service and the server's name, the same for all servers (`ZooKeeperSaslClient`, `SecurityUtils`, 3.8)."""
_COUNT: Final = "00000001"
_FIELD: Final = re.compile(r'\s*([a-z-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^",\s]+))\s*(?:,|$)', re.DOTALL)


def digest_md5(username: str, password: bytes, nonce: str) -> Exchange:
    """The first token is empty: the server begins. `nonce` is printable ASCII and unique."""
    challenge = _fields((yield b""))
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
        return _md5(session + between + _md5(f"{what}:{_URI}".encode()))

    directives = {"username": username, "realm": realm, "nonce": theirs, "cnonce": nonce, "digest-uri": _URI}
    quoted = ",".join(f'{name}="{_escaped(value)}"' for name, value in directives.items())
    plain = f"charset=utf-8,nc={_COUNT},qop=auth,response={proof('AUTHENTICATE').decode()}"
    answer = _fields((yield f"{quoted},{plain}".encode()))
    if not hmac.compare_digest(answer.get("rspauth", "").encode(), proof("")):
        raise SecurityError("the server does not know our password: it is not the one it claims to be")
    return None


def _fields(message: bytes) -> dict[str, str]:
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
