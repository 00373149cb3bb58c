from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.brokers.protocol.primitives import FrameReader, request_frame, response_body
from kzconsumer.errors import ProtocolError


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


def test_request_frames() -> None:
    plain = request_frame(3, 1, 7, b"me", b"body", flexible=False)
    assert plain == bytes.fromhex("00000010 0003 0001 00000007 0002") + b"me" + b"body"
    flexible = request_frame(1, 12, 8, b"me", b"body", flexible=True)
    assert flexible == bytes.fromhex("00000011 0001 000c 00000008 0002") + b"me" + b"\0" + b"body"


def test_a_response_without_room_for_its_header() -> None:
    for size in range(4):
        with pytest.raises(ProtocolError, match=f"a response of {size} bytes"):
            response_body(memoryview(bytes(size)), 0, flexible=False)


def test_response_headers() -> None:
    assert bytes(response_body(memoryview(b"\0\0\0\7body"), 7, flexible=False)) == b"body"
    assert bytes(response_body(memoryview(b"\0\0\0\7\1\0\1xbody"), 7, flexible=True)) == b"body"


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
