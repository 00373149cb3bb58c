"""ApiVersions: which versions of which requests the broker speaks (KIP-35; brokers from 0.10.0 on).

Owns no state. `network/broker_connection` asks it first of all. Version 0 only: all later ones answer the same.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from kzconsumer.protocol.primitives import Reader, reading
from kzconsumer.protocol.versions import API_VERSIONS, Versions


class ApiVersionsResponse(msgspec.Struct, frozen=True):
    error: int
    versions: Versions


class ApiVersionsRequest(msgspec.Struct, frozen=True):
    api_key: ClassVar[int] = API_VERSIONS

    def encode(self, version: int) -> bytes:
        return b""

    def decode(self, version: int, body: memoryview) -> ApiVersionsResponse:
        with reading("ApiVersions", version):
            reader = Reader(body)
            error = reader.int16()
            ranges = {reader.int16(): (reader.int16(), reader.int16()) for _ in range(reader.count())}
            reader.end()
            return ApiVersionsResponse(error, Versions(ranges))
