from __future__ import annotations

import pytest

from kzconsumer.brokers.protocol.primitives import (
    Reader,
    compact_string,
    read_unsigned_varint,
    reading,
    skip_tags,
    string,
    unsigned_varint,
)
from kzconsumer.errors import ProtocolError


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
