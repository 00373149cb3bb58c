"""Bytes written out by hand: what must not change, and examples of the encodings."""

from __future__ import annotations

import pytest

from kzconsumer.brokers.protocol.cluster_state import (
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    AskedEpoch,
    Diverging,
    EpochEnd,
    FetchedPartition,
    FetchPosition,
    FetchRequest,
    ListedOffset,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.brokers.protocol.versions import ApiVersionsRequest
from kzconsumer.model import Broker, TopicPartition

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
U0 = TopicPartition("u", 0)

FETCH = FetchRequest(100, 1, 4096, {T0: FetchPosition(5, 512), T1: FetchPosition(6, 512)}, READ_COMMITTED)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (
            0,
            "ffffffff 00000064 00000001"
            "00000001 0001 74 00000002"
            "00000000 0000000000000005 00000200 00000001 0000000000000006 00000200",
        ),
        (
            4,
            "ffffffff 00000064 00000001 00001000 01"
            "00000001 0001 74 00000002"
            "00000000 0000000000000005 00000200 00000001 0000000000000006 00000200",
        ),
        (
            12,
            "ffffffff 00000064 00000001 00001000 01 00000000 ffffffff"
            "02 02 74 03"
            "00000000 ffffffff 0000000000000005 ffffffff ffffffffffffffff 00000200 00"
            "00000001 ffffffff 0000000000000006 ffffffff ffffffffffffffff 00000200 00"
            "00 01 01 00",
        ),
    ],
)
def test_fetch_requests(version: int, data: str) -> None:
    assert FETCH.encode(version) == bytes.fromhex(data)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (
            9,
            "ffffffff 00000064 00000001 00001000 00 00000000 ffffffff"
            "00000001 0001 74 00000001 00000000 00000004 0000000000000005 ffffffffffffffff 00000200 00000000",
        ),
        (
            12,
            "ffffffff 00000064 00000001 00001000 00 00000000 ffffffff"
            "02 02 74 02 00000000 00000004 0000000000000005 00000003 ffffffffffffffff 00000200 00 00 01 01 00",
        ),
    ],
)
def test_fetch_requests_with_epochs(version: int, data: str) -> None:
    assert FetchRequest(100, 1, 4096, {T0: FetchPosition(5, 512, 4, 3)}).encode(version) == bytes.fromhex(data)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (
            7,
            "ffffffff 00000064 00000001 00001000 00 00000009 00000003"
            "00000001 0001 74 00000001 00000000 0000000000000005 ffffffffffffffff 00000200"
            "00000002 0001 74 00000001 00000001 0001 75 00000001 00000000",
        ),
        (
            12,
            "ffffffff 00000064 00000001 00001000 00 00000009 00000003"
            "02 02 74 02 00000000 ffffffff 0000000000000005 ffffffff ffffffffffffffff 00000200 00 00"
            "03 02 74 02 00000001 00 02 75 02 00000000 00 01 00",
        ),
    ],
)
def test_fetch_requests_of_a_session(version: int, data: str) -> None:
    request = FetchRequest(100, 1, 4096, {T0: FetchPosition(5, 512)}, session_id=9, session_epoch=3, forgotten=(T1, U0))
    assert request.encode(version) == bytes.fromhex(data)


def test_a_response_names_its_session() -> None:
    assert FETCH.decode(12, memoryview(bytes.fromhex("00000000 0047 00000009 01 00"))).session_id == 9


def test_a_response_names_where_the_log_diverges() -> None:
    data = bytes.fromhex(
        "00000007 0000 00000000 02 02 74 02 00000001 0000 0000000000000009 0000000000000009 0000000000000002"
        "01 ffffffff 01 02 00 0d 00000002 0000000000000004 00 01 09 00000001 00000005 00 00 00"
    )
    (part,) = FETCH.decode(12, memoryview(data)).partitions
    assert part.diverging == Diverging(2, 4)


def test_offset_for_leader_epoch() -> None:
    request = OffsetForLeaderEpochRequest({T0: AskedEpoch(3, 5)})
    assert request.encode(0) == bytes.fromhex("00000001 0001 74 00000001 00000000 00000003")
    assert request.encode(3) == bytes.fromhex("ffffffff 00000001 0001 74 00000001 00000000 00000005 00000003")
    assert request.encode(4) == bytes.fromhex("ffffffff 02 02 74 02 00000000 00000005 00000003 00 00 00")
    read = request.decode(0, memoryview(bytes.fromhex("00000001 0001 74 00000001 0000 00000000 0000000000000009")))
    assert read == {T0: EpochEnd(0, -1, 9)}
    data = "00000000 02 02 74 02 0000 00000000 00000002 0000000000000009 00 00 00"
    assert request.decode(4, memoryview(bytes.fromhex(data))) == {T0: EpochEnd(0, 2, 9)}


def test_the_order_of_partitions_is_kept_even_if_a_topic_occurs_twice() -> None:
    positions = {T0: FetchPosition(1, 1), U0: FetchPosition(2, 1), T1: FetchPosition(3, 1)}
    data = FetchRequest(0, 0, 0, positions).encode(0)
    at = [data.index(offset.to_bytes(8, "big") + b"\0\0\0\1") for offset in (1, 2, 3)]
    assert at == sorted(at)
    assert data.count(b"\0\1t") == 2


@pytest.mark.parametrize(
    ("version", "data", "stable", "start", "aborted"),
    [
        (0, "00000001 0001 74 00000001 00000001 0006 0000000000000009 00000002 6869", -1, -1, ()),
        (
            5,
            "00000007 00000001 0001 74 00000001 00000001 0006 0000000000000009 0000000000000008 0000000000000002"
            "00000001 0000000000000063 0000000000000003 00000002 6869",
            8,
            2,
            ((99, 3),),
        ),
        (
            12,
            "00000007 0000 00000000 02 02 74 02 00000001 0006 0000000000000009 0000000000000008 0000000000000002"
            "02 0000000000000063 0000000000000003 00 ffffffff 03 6869 01 07 01 00 00 01 07 02 0000",
            8,
            2,
            ((99, 3),),
        ),
    ],
)
def test_fetch_responses(
    version: int, data: str, stable: int, start: int, aborted: tuple[tuple[int, int], ...]
) -> None:
    read = FETCH.decode(version, memoryview(bytes.fromhex(data)))
    assert read.error == 0
    assert read.throttle_ms == (7 if version else 0)
    assert read.partitions == [FetchedPartition(T1, 6, 9, stable, start, aborted, memoryview(b"hi"))]


def test_metadata() -> None:
    assert MetadataRequest(None).encode(0) == bytes.fromhex("00000000")
    assert MetadataRequest(None).encode(1) == bytes.fromhex("ffffffff")
    assert MetadataRequest(()).encode(1) == bytes.fromhex("00000000")
    assert MetadataRequest(("t",)).encode(4) == bytes.fromhex("00000001 0001 74 00")
    assert MetadataRequest(("t",)).encode(8) == bytes.fromhex("00000001 0001 74 00 00 00")
    assert MetadataRequest(("t",)).encode(10) == bytes.fromhex("02" + "00" * 16 + "02 74 00 00 00 00 00")


def test_metadata_of_no_topic_is_empty_even_if_the_broker_only_returns_all() -> None:
    data = memoryview(
        bytes.fromhex(
            "00000001 00000001 0001 68 00002384"
            "00000001 0000 0001 74 00000001 0000 00000000 00000001 00000001 00000001 00000001 00000001"
        )
    )
    brokers = {1: Broker(1, "h", 9092)}
    topics = {"t": TopicMetadata(0, {0: PartitionMetadata(0, 1, -1)})}
    assert MetadataRequest(None).decode(0, data) == MetadataResponse(brokers, topics)
    assert MetadataRequest(()).decode(0, data) == MetadataResponse(brokers, {})


def test_list_offsets() -> None:
    request = ListOffsetsRequest({T0: LATEST, U0: EARLIEST, T1: 5})
    assert request.encode(0) == bytes.fromhex(
        "ffffffff 00000002"
        "0001 74 00000002 00000000 ffffffffffffffff 00000001 00000001 0000000000000005 00000001"
        "0001 75 00000001 00000000 fffffffffffffffe 00000001"
    )
    read = request.decode(
        0, memoryview(bytes.fromhex("00000001 0001 74 00000001 00000001 0000 00000001 0000000000000009"))
    )
    assert read == {T1: ListedOffset(0, 9, -1)}
    read = request.decode(0, memoryview(bytes.fromhex("00000001 0001 74 00000001 00000001 0006 00000000")))
    assert read == {T1: ListedOffset(6, -1, -1)}


def test_api_versions() -> None:
    read = ApiVersionsRequest().decode(0, memoryview(bytes.fromhex("0000 00000001 0001 0004 0011")))
    assert read.versions.ranges == {1: (4, 17)}
