"""SaslHandshake: which SASL mechanism the next exchange of tokens is in (KIP-43; brokers from 0.10.0 on).

Owns no state. After version 0 tokens follow as bare frames without headers; after version 1 (1.0 on, KIP-152) they
travel in SaslAuthenticate. `network/sasl` asks.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from kzconsumer.protocol.primitives import Reader, reading, string
from kzconsumer.protocol.versions import SASL_HANDSHAKE


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
