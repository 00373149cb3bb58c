"""SaslAuthenticate: one token of a SASL exchange and the broker's answer to it (KIP-152, KIP-368; brokers from 1.0 on).

Owns no state. `network/sasl` asks. A request holds a secret or what follows from one: it shows itself without.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from kzconsumer.protocol.primitives import INT32, Reader, reading
from kzconsumer.protocol.versions import SASL_AUTHENTICATE


class SaslAuthenticateResponse(msgspec.Struct, frozen=True):
    error: int
    message: str
    """The broker's reason; empty where it gives none."""
    token: bytes
    lifetime_ms: int
    """After so long the broker ends the connection at the next request; 0 for never, and before version 1 (2.2)."""


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
