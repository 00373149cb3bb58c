"""Which version of each request to use with a broker: the newest that both sides support; and the requests of SASL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import ClassVar, Final, NamedTuple

import msgspec

from kzconsumer.brokers.protocol.primitives import COMPACT, INT32, PLAIN, Encoding, Reader, reading, string
from kzconsumer.errors import UnsupportedVersionError

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
OFFSET_FOR_LEADER_EPOCH: Final = 23
DESCRIBE_CONFIGS: Final = 32
SASL_AUTHENTICATE: Final = 36
LIST_PARTITION_REASSIGNMENTS: Final = 46
DESCRIBE_QUORUM: Final = 55
CONSUMER_GROUP_DESCRIBE: Final = 69


class Api(NamedTuple):
    """The versions of one request that this package supports, `oldest` to `newest`."""

    name: str
    oldest: int
    newest: int
    first_flexible: int | None
    """The first version in the compact encoding of KIP-482, supported or not."""


# Fetch from 13 on names topics by id, Metadata from 11 on adds nothing, OffsetFetch from 8 on has several groups.
# What is only asked of clusters that may be without ZooKeeper has the version that all of these brokers know.
# Every broker that knows ApiVersions accepts its version 0, and so do all that know DescribeGroups.
SPOKEN: Final[Mapping[int, Api]] = {
    FETCH: Api("Fetch", 0, 12, 12),
    LIST_OFFSETS: Api("ListOffsets", 0, 8, 6),
    METADATA: Api("Metadata", 0, 10, 9),
    OFFSET_COMMIT: Api("OffsetCommit", 0, 8, 8),
    OFFSET_FETCH: Api("OffsetFetch", 0, 7, 6),
    FIND_COORDINATOR: Api("FindCoordinator", 0, 4, 3),
    DESCRIBE_GROUPS: Api("DescribeGroups", 0, 5, 5),
    LIST_GROUPS: Api("ListGroups", 0, 5, 3),
    API_VERSIONS: Api("ApiVersions", 0, 0, 3),
    OFFSET_FOR_LEADER_EPOCH: Api("OffsetForLeaderEpoch", 0, 4, 4),
    SASL_HANDSHAKE: Api("SaslHandshake", 0, 1, None),
    SASL_AUTHENTICATE: Api("SaslAuthenticate", 0, 1, 2),
    DESCRIBE_CONFIGS: Api("DescribeConfigs", 4, 4, 4),
    LIST_PARTITION_REASSIGNMENTS: Api("ListPartitionReassignments", 0, 0, 0),
    DESCRIBE_QUORUM: Api("DescribeQuorum", 0, 0, 0),
    CONSUMER_GROUP_DESCRIBE: Api("ConsumerGroupDescribe", 0, 0, 0),
}
_PRODUCE_WITH_HEADERS: Final = 3


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether header and body of this version are in the compact encoding of KIP-482."""
    first = SPOKEN[api_key].first_flexible
    return first is not None and version >= first


def encoding_of(api_key: int, version: int) -> Encoding:
    return COMPACT if is_flexible(api_key, version) else PLAIN


@contextmanager
def response(api_key: int, version: int, body: memoryview) -> Iterator[Reader]:
    """A response to be read completely. Raises ProtocolError if it is malformed or longer than what was read."""
    with reading(SPOKEN[api_key].name, version):
        reader = encoding_of(api_key, version).reader(body)
        yield reader
        reader.tags()
        reader.end()


class Versions(msgspec.Struct, frozen=True):
    """The versions a broker speaks: `ranges[api_key]` is (oldest, newest), both included."""

    ranges: Mapping[int, tuple[int, int]]

    @property
    def keep_headers(self) -> bool:
        """Whether the broker keeps the headers of records: from 0.11 on."""
        return self.ranges.get(PRODUCE, (0, 0))[1] >= _PRODUCE_WITH_HEADERS

    def choose(self, api_key: int) -> int:
        """The newest version that both sides support. Raises UnsupportedVersionError if there is none."""
        ours = SPOKEN[api_key]
        if api_key not in self.ranges:
            raise UnsupportedVersionError(f"the broker does not know {ours.name}")
        oldest, newest = self.ranges[api_key]
        version = min(newest, ours.newest)
        if version < max(oldest, ours.oldest):
            raise UnsupportedVersionError(
                f"{ours.name}: the broker speaks {oldest} to {newest}, we speak {ours.oldest} to {ours.newest}"
            )
        return version


UNKNOWN: Final = Versions({API_VERSIONS: (0, 0)})
"""Before the response to ApiVersions."""

BEFORE_API_VERSIONS: Final = Versions(
    {
        FETCH: (0, 0),
        LIST_OFFSETS: (0, 0),
        METADATA: (0, 0),
        OFFSET_COMMIT: (0, 1),
        OFFSET_FETCH: (0, 1),
        FIND_COORDINATOR: (0, 0),
        DESCRIBE_GROUPS: (0, 0),
    }
)
"""0.8.2 and 0.9: what both know (0.9 also knows Fetch 1, which only adds the throttle time, and OffsetCommit 2), and
DescribeGroups, which 0.8.2 does not know."""


class ApiVersionsResponse(msgspec.Struct, frozen=True):
    error: int
    versions: Versions


class ApiVersionsRequest(msgspec.Struct, frozen=True):
    api_key: ClassVar[int] = API_VERSIONS

    def encode(self, version: int) -> bytes:
        return b""

    def decode(self, version: int, body: memoryview) -> ApiVersionsResponse:
        with response(API_VERSIONS, version, body) as reader:
            error = reader.int16()
            ranges = {reader.int16(): (reader.int16(), reader.int16()) for _ in range(reader.count())}
            return ApiVersionsResponse(error, Versions(ranges))


# SaslHandshake and SaslAuthenticate (KIP-43 and KIP-152).
#
# After version 0 of the handshake (0.10) tokens follow as bare frames without header, after version 1 (1.0) in
# SaslAuthenticate.


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
