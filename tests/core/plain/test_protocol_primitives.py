"""What requests to brokers and their responses are made of: numbers, texts, frames, versions and error codes."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.error_codes import ERROR_CODES, broker_error
from kzconsumer.brokers.protocol.primitives import (
    FrameReader,
    Reader,
    compact_string,
    read_unsigned_varint,
    reading,
    response_body,
    skip_tags,
    string,
    unsigned_varint,
)
from kzconsumer.brokers.protocol.versions import API_VERSIONS, BEFORE_API_VERSIONS, FETCH, METADATA, UNKNOWN, Versions
from kzconsumer.errors import ProtocolError, UnsupportedVersionError
from tests.support.agreed_versions import agreed


@pytest.mark.parametrize(
    ("value", "data"), [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")]
)
def test_unsigned_varints(value: int, data: str) -> None:
    assert unsigned_varint(value) == bytes.fromhex(data)
    assert read_unsigned_varint(memoryview(b"?" + bytes.fromhex(data) + b"?"), 1) == (value, 1 + len(data) // 2)


@pytest.mark.parametrize("data", ["ffffffff1f", "ffffffffff", "808080808001"])
def test_a_varint_has_at_most_32_bits(data: str) -> None:
    with pytest.raises(ProtocolError, match="32 bits"):
        read_unsigned_varint(memoryview(bytes.fromhex(data)), 0)


def test_strings_are_utf8_with_their_size_in_bytes() -> None:
    assert string("é") == b"\0\2\xc3\xa9"
    assert compact_string("é") == b"\3\xc3\xa9"


def test_tags_are_skipped() -> None:
    tags = b"\2" + b"\0\1x" + b"\5\3abc"
    assert skip_tags(memoryview(b"-" + tags + b"-"), 1) == 1 + len(tags)
    with pytest.raises(ProtocolError, match="past the end"):
        skip_tags(memoryview(b"\1\0\2x"), 0)


def test_a_reader_reads_in_order_and_respects_the_end() -> None:
    body = memoryview(b"\xff\xff\xfe\0\1a\xff\xff\0\0\0\1\0\0\0\0\0\0\0\7\xff\xff\xff\xff!")
    reader = Reader(body)
    assert reader.int8() == -1
    assert reader.int16() == -2
    assert reader.string() == "a"
    assert reader.nullable_string() is None
    assert reader.int64s() == [7]
    assert reader.count() == 0
    with pytest.raises(ProtocolError, match="1 bytes left over"):
        reader.end()


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("int32", "0000"),
        ("string", "ffff"),
        ("string", "fffe"),
        ("string", "000261"),
        ("string", "0001ff"),
        ("count", "fffffffe"),
        ("int32s", "7fffffff"),
        ("int64s", "7fffffff"),
        ("skip_int32s", "00000001000000"),
    ],
)
def test_malformed_bytes_are_a_protocol_error(method: str, data: str) -> None:
    with pytest.raises(ProtocolError, match="malformed Any v3 response: "), reading("Any", 3):
        getattr(Reader(memoryview(bytes.fromhex(data))), method)()


def feed(reader: FrameReader, stream: bytes, at_most: list[int]) -> list[bytes]:
    """Feed `stream` to `reader` as a socket would: at most what its buffer holds, or the next of `at_most`."""
    frames = []
    turn = 0
    while stream:
        buffer = reader.buffer()
        count = min(len(buffer), len(stream), at_most[turn % len(at_most)])
        turn += 1
        buffer[:count] = stream[:count]
        stream = stream[count:]
        frames += [bytes(frame) for frame in reader.received(count)]
    return frames


sizes = st.one_of(st.integers(0, 40), st.integers(4080, 4110), st.integers(8000, 20000))
reads = st.lists(st.one_of(st.integers(1, 9), st.integers(4000, 9000), st.just(1 << 20)), min_size=1, max_size=6)


@given(sizes=st.lists(sizes, max_size=6), reads=reads)
def test_frames_are_restored_however_the_stream_is_split(sizes: list[int], reads: list[int]) -> None:
    frames = [bytes((number + byte) % 251 for byte in range(size)) for number, size in enumerate(sizes)]
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    reader = FrameReader()
    assert feed(reader, stream, reads) == frames
    assert reader.missing == 0


def test_frames_have_memory_of_their_own() -> None:
    reader = FrameReader()
    buffer = reader.buffer()
    buffer[:16] = b"\0\0\0\4aaaa\0\0\0\4bbbb"
    first, second = reader.received(16)
    reader.buffer()[:8] = b"\0\0\0\4cccc"
    reader.received(8)
    assert (bytes(first), bytes(second)) == (b"aaaa", b"bbbb")
    assert first.readonly


@pytest.mark.parametrize("size", [-1, -(2**31), 101])
def test_an_impossible_size_is_refused(size: int) -> None:
    reader = FrameReader(limit=100)
    reader.buffer()[:4] = size.to_bytes(4, "big", signed=True)
    with pytest.raises(ProtocolError, match=f"a response of {size} bytes"):
        reader.received(4)


def test_http_is_not_kafka() -> None:
    reader = FrameReader()
    reader.buffer()[:8] = b"HTTP/1.1"
    with pytest.raises(ProtocolError, match="no Kafka"):
        reader.received(8)


def test_a_tls_alert_is_recognized() -> None:
    reader = FrameReader(limit=1000)
    reader.buffer()[:7] = bytes.fromhex("15030300020250")
    with pytest.raises(ProtocolError, match="speaks TLS"):
        reader.received(7)


def test_a_waiting_reader_reports_its_progress() -> None:
    reader = FrameReader()
    reader.buffer()[:6] = b"\0\0\0\5ab"
    assert reader.received(6) == []
    assert reader.missing == 3


def test_a_response_without_room_for_its_header() -> None:
    for size in range(4):
        with pytest.raises(ProtocolError, match=f"a response of {size} bytes"):
            response_body(memoryview(bytes(size)), 0, flexible=False)


@pytest.mark.parametrize(
    ("frame", "why"),
    [(b"\0\0\0\6\0", "response 6 arrived where response 7"), (b"\0\0\0\7", "cut short"), (b"\0\0\0\7\1\0\2x", "past")],
)
def test_malformed_response_headers(frame: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        response_body(memoryview(frame), 7, flexible=True)


def test_a_response_for_which_there_is_no_memory_is_named() -> None:
    """As of a process with a limit: asyncio would close the connection, as if the broker had done so."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    reader = FrameReader()
    reader.buffer()[:8] = (1 << 30).to_bytes(4, "big") + b"frag"
    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, limits[1]))
    try:
        with pytest.raises(ProtocolError, match="no memory for a response of 1073741824 bytes"):
            reader.received(8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize(("range_", "version"), [((0, 17), 12), ((0, 3), 3), ((4, 4), 4), ((12, 20), 12)])
def test_the_newest_common_version(range_: tuple[int, int], version: int) -> None:
    assert Versions({FETCH: range_}).choose(FETCH) == version


def test_no_common_version() -> None:
    with pytest.raises(UnsupportedVersionError, match="Fetch: the broker speaks 13 to 17, we speak 0 to 12"):
        Versions({FETCH: (13, 17)}).choose(FETCH)


def test_a_request_unknown_to_the_broker() -> None:
    with pytest.raises(UnsupportedVersionError, match="the broker does not know Metadata"):
        Versions({FETCH: (0, 3)}).choose(METADATA)


def test_versions_of_brokers_without_api_versions() -> None:
    assert agreed(BEFORE_API_VERSIONS) == (
        "Fetch 0, ListOffsets 0, Metadata 0, OffsetCommit 1, OffsetFetch 1, FindCoordinator 0, DescribeGroups 0"
    )
    with pytest.raises(UnsupportedVersionError):
        BEFORE_API_VERSIONS.choose(API_VERSIONS)


def test_before_negotiation_only_api_versions_can_be_requested() -> None:
    assert UNKNOWN.choose(API_VERSIONS) == 0


def test_names_and_retriable_match_another_implementation() -> None:
    theirs = {int(code): (code.name.upper(), code.retriable) for code in ErrorCode}
    assert {code: (entry.name, entry.retriable) for code, entry in ERROR_CODES.items()} == {
        code: entry for code, entry in theirs.items() if code in ERROR_CODES
    }
    assert set(ERROR_CODES) == set(range(-1, 128))


def test_errors_that_require_new_metadata_are_retriable() -> None:
    refresh = {entry.name for entry in ERROR_CODES.values() if entry.refresh_metadata}
    assert {"NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE"} <= refresh
    assert all(entry.retriable for entry in ERROR_CODES.values() if entry.refresh_metadata)


@pytest.mark.parametrize("name", [name for name in vars(error_codes) if name.isupper() and name != "ERROR_CODES"])
def test_constants(name: str) -> None:
    assert ERROR_CODES[getattr(error_codes, name)].name == name


def test_errors() -> None:
    error = broker_error(6, "t-0")
    assert (str(error), error.code, error.retriable, error.refresh_metadata) == (
        "t-0: NOT_LEADER_OR_FOLLOWER (6)",
        6,
        True,
        True,
    )
    unknown = broker_error(999)
    assert (str(unknown), unknown.retriable, unknown.refresh_metadata) == ("UNKNOWN_ERROR_CODE (999)", False, False)
