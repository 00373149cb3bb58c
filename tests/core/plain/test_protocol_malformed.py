"""Truncated, modified and random responses: a ProtocolError, or a result that lies within the given bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.brokers.protocol.cluster_state import MetadataRequest
from kzconsumer.brokers.protocol.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kzconsumer.brokers.protocol.log_reads import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.brokers.protocol.versions import (
    SPOKEN,
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kzconsumer.errors import ProtocolError

FETCH_V0 = "00000001 0001 74 00000001 00000001 0006 0000000000000009 00000002 6869"
FETCH_V5 = (
    "00000007 00000001 0001 74 00000001 00000001 0006 0000000000000009 0000000000000008 0000000000000002"
    "00000001 0000000000000063 0000000000000003 00000002 6869"
)
FETCH_V11 = (
    "00000007 0000 00000000 00000001 0001 74 00000001 00000001 0006 0000000000000009 0000000000000008"
    "0000000000000002 00000001 0000000000000063 0000000000000003 ffffffff 00000002 6869"
)
FETCH_V12 = (
    "00000007 0000 00000000 02 02 74 02 00000001 0006 0000000000000009 0000000000000008 0000000000000002"
    "02 0000000000000063 0000000000000003 00 ffffffff 03 6869 01 07 01 00 00 00"
)
FETCH_DIVERGING = (
    "00000007 0000 00000000 02 02 74 02 00000001 0000 0000000000000009 0000000000000009 0000000000000002"
    "01 ffffffff 01 01 00 0d 00000002 0000000000000004 00 00 00"
)
EPOCH_ENDS_V0 = "00000001 0001 74 00000001 0000 00000000 0000000000000009"
EPOCH_ENDS_V3 = "00000000 00000001 0001 74 00000001 0000 00000000 00000002 0000000000000009"
EPOCH_ENDS_V4 = "00000000 02 02 74 02 0000 00000000 00000002 0000000000000009 00 00 00"
METADATA_V8 = (
    "00000000 00000001 00000001 0001 68 00002384 ffff ffff 00000001 00000001 0000 0001 74 00 00000001 0000 00000000"
    "00000001 00000005 00000001 00000001 00000001 00000001 00000000 80000000 80000000"
)
LIST_OFFSETS_V0 = "00000001 0001 74 00000001 00000001 0000 00000001 0000000000000009"
LIST_OFFSETS_V5 = "00000000 00000001 0001 74 00000001 00000001 0000 ffffffffffffffff 0000000000000009 00000003"
FIND_COORDINATOR_V1 = "00000007 0000 ffff 00000001 0001 68 00002384"
FIND_COORDINATOR_V3 = "00000007 000f 02 78 00000001 02 68 00002384 00"
FIND_COORDINATOR_V4 = "00000007 02 02 67 00000001 02 68 00002384 0000 00 01 05 01 00 00"
DESCRIBE_GROUPS_V0 = (
    "00000001 0000 0001 67 0006 537461626c65 0001 63 0001 72 00000001 0001 6d 0001 6e 0001 68 00000002 6869 00000000"
)
OFFSET_COMMIT_V3 = "00000007 00000001 0001 74 00000001 00000001 0000"
OFFSET_COMMIT_V8 = "00000007 02 02 74 02 00000001 0000 00 00 01 05 01 00"
OFFSET_FETCH_V0 = "00000001 0001 74 00000001 00000001 0000000000000009 0000 0000"
OFFSET_FETCH_V5 = "00000007 00000001 0001 74 00000001 00000001 0000000000000009 00000003 ffff 0000 0000"
OFFSET_FETCH_V7 = "00000007 02 02 74 02 00000001 0000000000000009 00000003 00 0000 00 00 0000 00"
API_VERSIONS_V0 = "0000 00000001 0001 0004 0011"
SASL_HANDSHAKE_V1 = "0021 00000002 0005 504c41494e 0001 58"
SASL_AUTHENTICATE_V1 = "003a 0002 6e6f 00000002 6869 0000000000000dac"

FETCH = FetchRequest(0, 0, 0, {})
GOOD: list[tuple[Any, int, str]] = [
    (FETCH, 0, FETCH_V0),
    (FETCH, 5, FETCH_V5),
    (FETCH, 11, FETCH_V11),
    (FETCH, 12, FETCH_V12),
    (FETCH, 12, FETCH_DIVERGING),
    (OffsetForLeaderEpochRequest({}), 0, EPOCH_ENDS_V0),
    (OffsetForLeaderEpochRequest({}), 3, EPOCH_ENDS_V3),
    (OffsetForLeaderEpochRequest({}), 4, EPOCH_ENDS_V4),
    (MetadataRequest(None), 8, METADATA_V8),
    (ListOffsetsRequest({}), 0, LIST_OFFSETS_V0),
    (ListOffsetsRequest({}), 5, LIST_OFFSETS_V5),
    (ApiVersionsRequest(), 0, API_VERSIONS_V0),
    (SaslHandshakeRequest("PLAIN"), 1, SASL_HANDSHAKE_V1),
    (SaslAuthenticateRequest(b""), 1, SASL_AUTHENTICATE_V1),
    (FindCoordinatorRequest("g"), 1, FIND_COORDINATOR_V1),
    (FindCoordinatorRequest("g"), 3, FIND_COORDINATOR_V3),
    (FindCoordinatorRequest("g"), 4, FIND_COORDINATOR_V4),
    (DescribeGroupsRequest(("g",)), 0, DESCRIBE_GROUPS_V0),
    (OffsetCommitRequest("g", {}), 3, OFFSET_COMMIT_V3),
    (OffsetCommitRequest("g", {}), 8, OFFSET_COMMIT_V8),
    (OffsetFetchRequest("g", ()), 0, OFFSET_FETCH_V0),
    (OffsetFetchRequest("g", ()), 5, OFFSET_FETCH_V5),
    (OffsetFetchRequest("g", ()), 7, OFFSET_FETCH_V7),
]
each_good = pytest.mark.parametrize(
    ("request_", "version", "data"), GOOD, ids=[f"{SPOKEN[kind.api_key].name}-{version}" for kind, version, _ in GOOD]
)


@each_good
def test_every_truncation_and_every_addition_is_detected(request_: Any, version: int, data: str) -> None:
    body = bytes.fromhex(data)
    request_.decode(version, memoryview(body))
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            request_.decode(version, memoryview(body)[:size])
    with pytest.raises(ProtocolError, match="left over"):
        request_.decode(version, memoryview(body + b"\0"))


def decode_anything(request: Any, version: int, body: bytes) -> None:
    try:
        answer = request.decode(version, memoryview(body))
    except ProtocolError:
        return
    if isinstance(answer, FetchResponse):
        assert sum(len(part.records) for part in answer.partitions) <= len(body)


@each_good
@given(data_=st.data())
def test_changed_bytes(request_: Any, version: int, data: str, data_: st.DataObject) -> None:
    body = bytearray.fromhex(data)
    for at, byte in data_.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=4)):
        body[at] = byte
    decode_anything(request_, version, bytes(body))


@given(kind=st.sampled_from([each[0] for each in GOOD]), body=st.binary(max_size=200), data=st.data())
def test_random_bytes(kind: Any, body: bytes, data: st.DataObject) -> None:
    api = SPOKEN[kind.api_key]
    decode_anything(kind, data.draw(st.integers(api.oldest, api.newest)), body)
