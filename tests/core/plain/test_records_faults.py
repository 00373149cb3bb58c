"""What `decode` returns for invalid record sets: never an exception, and everything before the fault."""

from __future__ import annotations

import random
import struct
import zlib
from itertools import accumulate
from random import Random

import pytest
from crc32c import crc32c

from kzconsumer.records import compression as L
from kzconsumer.records.decode import Decoded, decode, scan_next_offset
from tests.support.record_sets import (
    CODECS,
    LEGACY_CODECS,
    Codec,
    Record,
    compress,
    message,
    record_batch,
    varint,
)

BAD_SIZE = "its size field is smaller than its header"
BAD_CRC = "its checksum does not match"
BAD_MAGIC = "its magic byte is unknown or does not fit"
BAD_VARINT = "a variable-length number is overlong or cut off"
BAD_RECORD = "a record does not fit its length"
BAD_FIELD = "a key or value does not fit its record"
BAD_COUNT = "its record count does not fit its size"
BAD_HEADER = "a record header does not fit its record"
BAD_OFFSET = "an offset is negative or outside the batch"
BAD_TAIL = "bytes are left after its last record"
BAD_NESTING = "a compressed message holds a compressed message"

RECORDS = [Record(b"key %d" % n, b"value %d" % n, ((b"h", b"x"),)) for n in range(10)]
BIG = [Record(b"k", bytes(2048))]
GOOD = record_batch(RECORDS, base_offset=0)


def run(data: bytes, start: int = 0) -> Decoded:
    decoded = decode(memoryview(data), topic="events", partition=7, start=start)
    decoded.records.columns().validate(full=True)
    return decoded


def changed(data: bytes, at: int, new: bytes, *, checksum: bool = True) -> bytes:
    """One batch or message with other bytes at `at`, and a correct checksum."""
    data = data[:at] + new + data[at + len(new) :]
    if not checksum:
        return data
    if data[16] == 2:
        return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]
    return data[:12] + struct.pack(">I", zlib.crc32(data[16:])) + data[16:]


def batch_of(body: bytes, count: int, codec: Codec = "none") -> bytes:
    return record_batch([], base_offset=10, codec=codec, body=body, count=count, last_offset_delta=9)


def one(*fields: bytes, length: int | None = None) -> bytes:
    record = b"\0" + b"".join(fields)
    return varint(len(record) if length is None else length) + record


ZERO, NULL = varint(0), varint(-1)
RECORD = one(ZERO, ZERO, NULL, NULL, ZERO)
MESSAGE = message(1, 10, 5, b"key", b"value")
FAULTS = {
    "checksum": (changed(GOOD, 70, b"\xff", checksum=False), BAD_CRC),
    "checksum of a large batch": (changed(record_batch(BIG, base_offset=10), 99, b"x", checksum=False), BAD_CRC),
    "checksum of a message": (changed(MESSAGE, 20, b"\xff", checksum=False), BAD_CRC),
    "magic": (changed(GOOD, 16, b"\x03", checksum=False), BAD_MAGIC),
    "negative magic": (changed(GOOD, 16, b"\xff", checksum=False), BAD_MAGIC),
    "size 0": (changed(GOOD, 8, struct.pack(">i", 0), checksum=False), BAD_SIZE),
    "size negative": (changed(GOOD, 8, struct.pack(">i", -5), checksum=False), BAD_SIZE),
    "size below the header": (changed(GOOD, 8, struct.pack(">i", 48), checksum=False), BAD_SIZE),
    "size of a message": (changed(MESSAGE, 8, struct.pack(">i", 21), checksum=False), BAD_SIZE),
    "negative offset": (changed(GOOD, 0, struct.pack(">q", -1)), BAD_OFFSET),
    "overflowing offset": (changed(GOOD, 0, struct.pack(">q", (1 << 63) - 1)), BAD_OFFSET),
    "negative last offset delta": (changed(GOOD, 23, struct.pack(">i", -1)), BAD_OFFSET),
    "count too high": (batch_of(RECORD, 2), BAD_COUNT),
    "count far too high": (batch_of(RECORD, 2**31 - 1), BAD_COUNT),
    "count negative": (batch_of(RECORD, -1), BAD_COUNT),
    "count too low": (batch_of(RECORD + RECORD, 1), BAD_TAIL),
    "record longer than the batch": (batch_of(one(ZERO, ZERO, NULL, NULL, ZERO, length=7), 1), BAD_RECORD),
    "record longer than its fields": (batch_of(one(ZERO, ZERO, NULL, NULL, ZERO, b"\0"), 1), BAD_RECORD),
    "record length negative": (batch_of(varint(-7) + RECORD, 1), BAD_RECORD),
    "endless varint": (batch_of(b"\xff" * 20, 1), BAD_VARINT),
    "endless timestamp": (batch_of(one(b"\xff" * 11, ZERO, NULL, NULL, ZERO), 1), BAD_VARINT),
    "offset beyond the batch": (batch_of(one(ZERO, varint(10), NULL, NULL, ZERO), 1), BAD_OFFSET),
    "offset before the batch": (batch_of(one(ZERO, varint(-1), NULL, NULL, ZERO), 1), BAD_OFFSET),
    "key too long": (batch_of(one(ZERO, ZERO, varint(3), NULL, ZERO), 1), BAD_FIELD),
    "key length -2": (batch_of(one(ZERO, ZERO, varint(-2), NULL, ZERO), 1), BAD_FIELD),
    "value too long": (batch_of(one(ZERO, ZERO, NULL, varint(2), ZERO), 1), BAD_FIELD),
    "value length 2^31 - 1": (batch_of(one(ZERO, ZERO, NULL, varint(2**31 - 1), ZERO), 1), BAD_FIELD),
    "header count": (batch_of(one(ZERO, ZERO, NULL, NULL, varint(1)), 1), BAD_HEADER),
    "header count too high by one": (
        batch_of(one(ZERO, ZERO, NULL, NULL, varint(3), *[ZERO, NULL] * 2), 1),
        BAD_HEADER,
    ),
    "header count too high for its bytes": (
        batch_of(one(ZERO, ZERO, NULL, NULL, varint(400), *[ZERO, NULL] * 200), 1),
        BAD_HEADER,
    ),
    "header count 2^31 - 1": (
        batch_of(one(ZERO, ZERO, NULL, NULL, varint(2**31 - 1), *[ZERO, NULL] * 200), 1),
        BAD_HEADER,
    ),
    "header count too low": (batch_of(one(ZERO, ZERO, NULL, NULL, varint(1), *[ZERO, NULL] * 2), 1), BAD_RECORD),
    "header count negative": (batch_of(one(ZERO, ZERO, NULL, NULL, varint(-1)), 1), BAD_HEADER),
    "header key null": (batch_of(one(ZERO, ZERO, NULL, NULL, varint(1), NULL, NULL), 1), BAD_HEADER),
    "header value too long": (batch_of(one(ZERO, ZERO, NULL, NULL, varint(1), ZERO, varint(9)), 1), BAD_HEADER),
    "message key too long": (changed(MESSAGE, 26, struct.pack(">i", 9)), BAD_FIELD),
    "message value too short": (changed(MESSAGE, 33, struct.pack(">i", 4)), BAD_FIELD),
    "message value negative": (changed(MESSAGE, 33, struct.pack(">i", -2)), BAD_FIELD),
    "checksum inside": (
        message(1, 10, 5, None, compress("gzip", message(1, 0, 5, None, b"v")[:-1] + b"w"), L.GZIP),
        "the checksum of a message inside does not match",
    ),
    "wrapper without value": (message(1, 10, 5, None, None, L.GZIP), BAD_FIELD),
    "nested wrapper": (
        message(1, 10, 5, None, compress("gzip", message(1, 0, 5, None, compress("gzip", MESSAGE), L.GZIP)), L.GZIP),
        BAD_NESTING,
    ),
    "inner magic": (message(1, 10, 5, None, compress("gzip", message(0, 0, 5, None, bytes(30))), L.GZIP), BAD_MAGIC),
    "inner size": (
        message(1, 10, 5, None, compress("gzip", struct.pack(">qi", 0, 3) + bytes(9)), L.GZIP),
        BAD_SIZE,
    ),
    "inner offset above the wrapper's": (
        message(0, 10, 5, None, compress("gzip", message(0, 11, 5, None, b"v")), L.GZIP),
        BAD_OFFSET,
    ),
    "inner offset above the wrapper's, relative": (
        message(1, 10, 5, None, compress("gzip", message(1, 11, 5, None, b"v")), L.GZIP),
        BAD_OFFSET,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_decoding_and_is_reported(name: str) -> None:
    bad, reason = FAULTS[name]
    good = record_batch(RECORDS, base_offset=0)
    decoded = run(good + bad + record_batch(RECORDS, base_offset=20))
    assert decoded.records.columns().column("offset").to_pylist() == list(range(10))
    assert decoded.corrupt is not None
    assert decoded.corrupt.reason == f"batch at byte {len(good)}: {reason}"
    assert (decoded.corrupt.offset, decoded.next_offset, decoded.incomplete) == (10, 10, False)
    alone = run(bad, 7)
    assert not alone.records
    assert alone.corrupt is not None
    assert (alone.corrupt.offset, alone.next_offset) == (7, 7)


@pytest.mark.parametrize(
    ("magic", "codec"),
    [
        *((1, codec) for codec in LEGACY_CODECS if codec != "none"),
        *((2, codec) for codec in CODECS if codec not in ("none", "lz4-KAFKA-3160")),
    ],
)
def test_a_body_that_does_not_decompress_is_a_fault(codec: Codec, magic: int) -> None:
    body = compress(codec, RECORD * 50)
    for broken in (body[:-6], body[: len(body) // 2], b"", b"\0" * 9, bytes(100), body[::-1]):
        bad = batch_of(broken, 50, codec) if magic == 2 else message(1, 59, 5, None, broken, CODECS[codec])
        decoded = run(GOOD + bad)
        assert (len(decoded.records), decoded.next_offset) == (10, 10)
        assert decoded.corrupt is not None


def test_of_two_faults_the_first_is_named() -> None:
    """Bodies are decompressed before any record is read."""
    broken = message(1, 59, 5, None, b"no gzip", L.GZIP)
    decoded = run(GOOD + batch_of(RECORD, 2) + broken)
    assert (len(decoded.records), decoded.next_offset) == (10, 10)
    assert decoded.corrupt is not None
    assert decoded.corrupt.reason == f"batch at byte {len(GOOD)}: {BAD_COUNT}"


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_a_fault(codec: int) -> None:
    bad = changed(GOOD, 21, struct.pack(">h", codec))
    decoded = run(bad)
    assert decoded.corrupt is not None
    assert decoded.corrupt.reason == f"batch at byte 0: its compression codec {codec} is unknown"


def test_zstd_is_unknown_before_magic_2() -> None:
    decoded = run(message(1, 5, 0, None, compress("zstd", MESSAGE), L.ZSTD))
    assert decoded.corrupt is not None


def test_the_wrong_lz4_header_checksum_is_not_accepted_in_magic_2() -> None:
    decoded = run(record_batch(RECORDS, base_offset=0, codec="lz4-KAFKA-3160"))
    assert decoded.corrupt is not None


def test_decoding_stops_before_the_bodies_exceed_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not before the first that is wanted. Compressed ones count twice: as they came, and once they are opened."""
    chance = random.Random(1)
    for _ in range(300):
        start = chance.choice([0, 0, 1])
        chosen: list[tuple[int, Codec]] = [
            (chance.choice([0, 9, 50, 90]), chance.choice(["none", "zstd"])) for _ in range(5)
        ]
        pairs = [
            [record_batch([Record(None, bytes(size))], base_offset=n, codec=each) for each in ("none", codec)]
            for n, (size, codec) in enumerate(chosen)
        ]
        sizes = [[len(each) - L.BATCH_HEADER for each in pair] for pair in pairs]
        limit = sum(opened for opened, _ in chance.sample(sizes, 2)) + chance.choice([-1, 0, 1])
        sums = [list(accumulate(each)) for each in zip(*sizes[start:], strict=True)]
        fitting = sum(max(both) <= limit for both in zip(*sums, strict=True))
        monkeypatch.setattr(L, "MAX_BODY", limit)
        data = b"".join(came for _, came in pairs)
        decoded = decode(memoryview(data), topic="events", partition=7, start=start, largest_body=1000)
        until = start + max(fitting, 1)
        assert (len(decoded.records), decoded.next_offset, decoded.corrupt) == (until - start, until, None)
        assert scan_next_offset(memoryview(data), start) == 5


SIZES = [1, 2, 3, 5, 9, 20, 100, 924, 1024, 4096, 65_536, 1 << 20, 3_000_001]
"""Sizes of the only value of a batch, in bytes."""
CHECKED_FROM = 21


def accepts(data: bytes) -> bool:
    found = decode(memoryview(data), topic="t", partition=0, start=40)
    assert found.corrupt is None or (len(found.records), found.next_offset) == (0, 40)
    return found.corrupt is None


def resealed(data: bytes) -> bytes:
    """The batch with a correct checksum."""
    return data[:17] + struct.pack(">I", crc32c(data[CHECKED_FROM:])) + data[CHECKED_FROM:]


@pytest.mark.parametrize("size", SIZES)
def test_a_flipped_bit_of_a_value_is_detected(size: int) -> None:
    chance = Random(size)
    good = record_batch([Record(None, chance.randbytes(size))], base_offset=40)
    assert accepts(good)
    end = len(good) - 1  # the last byte is the number of headers
    for at in {end - size, end - 1, *(end - 1 - chance.randrange(size) for _ in range(4))}:
        damaged = good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :]
        assert not accepts(damaged), f"byte {at} of {len(good)}"
        assert accepts(resealed(damaged)), "nothing else is wrong with it"
