"""SaslHandshake and SaslAuthenticate (KIP-43 and KIP-152).

After version 0 of the handshake (0.10) tokens follow as bare frames without header, after version 1 (1.0) in
SaslAuthenticate.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from kzconsumer.brokers.protocol.primitives import INT32, Reader, reading, string
from kzconsumer.brokers.protocol.versions import SASL_AUTHENTICATE, SASL_HANDSHAKE


class SaslHandshakeResponse(msgspec.Struct, frozen=True):
    error: int
    mechanisms: tuple[str, ...]
    """Those the listener accepts."""


class SaslHandshakeRequest(msgspec.Struct, frozen=True):
    mechanism: str
    api_key: ClassVar[int] = SASL_HANDSHAKE

    def encode(self, version: int) -> bytes:
        return string(self.mechanism)

    def decode(self, version: int, body: memoryview) -> SaslHandshakeResponse:
        with reading("SaslHandshake", version):
            reader = Reader(body)
            error = reader.int16()
            mechanisms = tuple(reader.string() for _ in range(reader.count()))
            reader.end()
            return SaslHandshakeResponse(error, mechanisms)


class SaslAuthenticateResponse(msgspec.Struct, frozen=True):
    error: int
    message: str
    """The broker's reason; may be empty."""
    token: bytes
    lifetime_ms: int
    """After this time the broker ends the connection at the next request; 0 for never, and before version 1 (2.2)."""


class SaslAuthenticateRequest:
    api_key: ClassVar[int] = SASL_AUTHENTICATE

    def __init__(self, token: bytes) -> None:
        self._token = token

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(...)"

    def encode(self, version: int) -> bytes:
        return INT32.pack(len(self._token)) + self._token

    def decode(self, version: int, body: memoryview) -> SaslAuthenticateResponse:
        with reading("SaslAuthenticate", version):
            reader = Reader(body)
            error = reader.int16()
            message = reader.nullable_string() or ""
            token = reader.data()
            lifetime = reader.int64() if version >= 1 else 0
            reader.end()
            return SaslAuthenticateResponse(error, message, token, lifetime)
