"""SaslHandshake and SaslAuthenticate (KIP-43 and KIP-152).

After version 0 of the handshake (0.10) tokens follow as bare frames without header, after version 1 (1.0) in
SaslAuthenticate.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from kzconsumer.brokers.protocol.primitives import INT32, string
from kzconsumer.brokers.protocol.versions import SASL_AUTHENTICATE, SASL_HANDSHAKE, response


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
        with response(SASL_HANDSHAKE, version, body) as reader:
            error = reader.int16()
            return SaslHandshakeResponse(error, tuple(reader.string() for _ in range(reader.count())))


class SaslAuthenticateResponse(msgspec.Struct, frozen=True):
    error: int
    message: str
    """The broker's reason; may be empty."""
    token: bytes
    lifetime_ms: int
    """After this time the broker ends the connection at the next request; 0 for never, and before version 1 (2.2)."""


class SaslAuthenticateRequest:
    """No struct: its representation would show the token, which may be a password."""

    api_key: ClassVar[int] = SASL_AUTHENTICATE

    def __init__(self, token: bytes) -> None:
        self._token = token

    def encode(self, version: int) -> bytes:
        return INT32.pack(len(self._token)) + self._token

    def decode(self, version: int, body: memoryview) -> SaslAuthenticateResponse:
        with response(SASL_AUTHENTICATE, version, body) as reader:
            error = reader.int16()
            message = reader.nullable_string() or ""
            token = reader.data()
            lifetime = reader.int64() if version >= 1 else 0
            return SaslAuthenticateResponse(error, message, token, lifetime)
