"""Record sets that differ in one thing from what producers send today: what readers of Kafka's log must agree on."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator

from tests.support.record_sets import (
    CODECS,
    Codec,
    Record,
    compress,
    control_batch,
    message,
    message_set,
    record_batch,
)

RECORDS = [Record(b"k%d" % n, b"v" * 20) for n in range(4)]
XERIAL = compress("snappy", b"")
"""The header of a stream of xerial's."""


def skippable(number: int, content: bytes) -> bytes:
    """A frame of zstd without content (RFC 8878, 3.1.2)."""
    return struct.pack("<II", 0x184D2A50 + number, len(content)) + content


def zstd_bodies(data: bytes) -> Iterator[tuple[str, bytes]]:
    whole, half = compress("zstd", data), len(data) // 2
    parts = compress("zstd", data[:half]), compress("zstd", data[half:])
    yield "two frames", b"".join(parts)
    yield "skippable frame first", skippable(0, b"abc") + whole
    yield "skippable frame last", whole + skippable(15, b"")
    yield "skippable frame between", parts[0] + skippable(3, b"abc") + parts[1]
    yield "skippable frame cut off", whole + skippable(0, b"abcdef")[:-2]
    yield "skippable header cut off", whole + skippable(0, b"abcdef")[:6]
    yield "skippable frame alone", skippable(0, b"abc")
    yield "rubbish behind", whole + b"rubbish"
    yield "a byte behind", whole + b"r"
    yield "zeros behind", whole + bytes(8)
    yield "cut off", whole[:-2]


def snappy_bodies(data: bytes) -> Iterator[tuple[str, bytes]]:
    whole, half = compress("snappy", data), len(data) // 2
    first, second = compress("snappy", data[:half]), compress("snappy", data[half:])
    yield "two streams", first + second
    yield "a stream without blocks last", whole + XERIAL
    yield "a stream too many", whole + compress("snappy", b"more")
    yield "second of version 0", first + XERIAL[:8] + struct.pack(">ii", 0, 0) + second[16:]
    yield "first of version 2", XERIAL[:8] + struct.pack(">ii", 2, 2) + whole[16:]
    yield "second header cut off", whole + XERIAL[:9]
    yield "magic cut off", whole + XERIAL[:4]
    yield "a byte behind", whole + b"\0"
    yield "three bytes behind", whole + b"abc"
    yield "rubbish behind", whole + b"rubbishrubbish"
    yield "block of no bytes", whole + struct.pack(">i", 0)
    yield "block of nothing", whole + struct.pack(">i", 1) + b"\0"
    yield "block of a negative size", whole + struct.pack(">i", -5) + b"abc"
    yield "cut off", whole[:-2]


def gzip_bodies(data: bytes) -> Iterator[tuple[str, bytes]]:
    whole, half = compress("gzip", data), len(data) // 2
    yield "two members", gzip.compress(data[:half]) + gzip.compress(data[half:])
    yield "rubbish behind", whole + b"rubbish"
    yield "zeros behind", whole + bytes(20)
    yield "another checksum", whole[:-8] + b"abcd" + whole[-4:]
    yield "cut off", whole[:-3]


def lz4_bodies(data: bytes) -> Iterator[tuple[str, bytes]]:
    whole, half = compress("lz4", data), len(data) // 2
    yield "two frames", compress("lz4", data[:half]) + compress("lz4", data[half:])
    yield "rubbish behind", whole + b"rubbish"
    yield "cut off", whole[:-6]


def batches() -> Iterator[tuple[str, bytes]]:
    """Of magic 2."""
    encoded = record_batch(RECORDS, base_offset=100)[61:]
    kinds: dict[Codec, Iterator[tuple[str, bytes]]] = {
        "zstd": zstd_bodies(encoded),
        "snappy": snappy_bodies(encoded),
        "gzip": gzip_bodies(encoded),
        "lz4": lz4_bodies(encoded),
    }
    for codec, bodies in kinds.items():
        yield codec, record_batch(RECORDS, base_offset=100, codec=codec)
        for name, body in bodies:
            yield f"{codec}: {name}", record_batch(RECORDS, base_offset=100, codec=codec, body=body)
    yield "raw snappy", record_batch(RECORDS, base_offset=100, codec="snappy-raw")
    yield "holes", record_batch(RECORDS, base_offset=100, offset_deltas=[0, 3, 4, 9])
    yield "last offset compacted", record_batch(RECORDS, base_offset=100, last_offset_delta=20)
    yield (
        "an offset beyond the last",
        record_batch(RECORDS, base_offset=100, offset_deltas=[0, 1, 2, 9], last_offset_delta=5),
    )
    for count in (5, 3, -1):
        yield f"count {count}", record_batch(RECORDS, base_offset=100, count=count)
    yield "a byte too many", record_batch(RECORDS, base_offset=100, body=encoded + b"x")
    changed = bytearray(record_batch(RECORDS, base_offset=100))
    changed[-1] ^= 1
    yield "another checksum", bytes(changed)
    yield "marker", control_batch(100, producer_id=1, commit=True)
    yield "emptied", record_batch([], base_offset=100, last_offset_delta=3)
    yield "append time", record_batch(RECORDS, base_offset=100, log_append_time=77)
    headers = ((b"h", None), (b"h", b"x"), (b"", b""), (b"\xff", None))
    yield "headers", record_batch([Record(b"k", b"v", headers)], base_offset=5)


def message_sets() -> Iterator[tuple[str, bytes]]:
    """Of magic 0 and 1."""
    for magic in (0, 1):
        for name, data in _message_sets(magic):
            yield f"magic {magic}: {name}", data
    yield (
        "all magics",
        message_set(RECORDS, magic=0, base_offset=1)
        + message_set(RECORDS, magic=1, base_offset=10, codec="gzip")
        + record_batch(RECORDS, base_offset=20),
    )


def _message_sets(magic: int) -> Iterator[tuple[str, bytes]]:
    yield "plain", message_set(RECORDS, magic=magic, base_offset=100)
    codecs: tuple[Codec, ...] = ("gzip", "snappy", "lz4")
    for codec in codecs:
        yield codec, message_set(RECORDS, magic=magic, base_offset=100, codec=codec)
        yield (
            f"{codec}, append time",
            message_set(RECORDS, magic=magic, base_offset=100, codec=codec, log_append_time=9),
        )
        for relative in (False, True):
            made = message_set(RECORDS, magic=magic, base_offset=100, codec=codec, relative=relative)
            yield f"{codec}, {'relative' if relative else 'absolute'}", made
        offsets = [100, 105, 106, 110]
        yield f"{codec}, holes", message_set(RECORDS, magic=magic, base_offset=100, codec=codec, offsets=offsets)
    inside = [message(magic, n, 5, b"k", b"v%d" % n) for n in range(3)]
    good = b"".join(inside)
    changed = [each[:-1] + b"!" for each in inside]
    yield "another checksum inside, last", wrapped(magic, 2, inside[0] + inside[1] + changed[2])
    yield "another checksum inside, first", wrapped(magic, 2, changed[0] + inside[1] + inside[2])
    wrapper = bytearray(wrapped(magic, 2, good))
    wrapper[12] ^= 1
    yield "another checksum of the wrapper", bytes(wrapper)
    yield "another checksum", changed[0]
    yield "cut off inside", wrapped(magic, 2, good + inside[0][:20])
    yield "size cut off inside", wrapped(magic, 2, good + inside[0][:5])
    yield "nothing inside", wrapped(magic, 2, b"")
    yield "a wrapper inside", wrapped(magic, 2, wrapped(magic, 2, good))
    yield "the other magic inside", wrapped(magic, 2, b"".join(message(1 - magic, n, 5, b"k", b"v") for n in range(3)))
    yield "append time inside", wrapped(magic, 2, b"".join(message(magic, n, 5, b"k", b"v", 8) for n in range(3)))
    yield "append time of the wrapper", wrapped(magic, 2, good, attributes=8)
    yield "offsets go down", wrapped(magic, 12, b"".join(reversed(inside)))
    yield "offsets are all 0", wrapped(magic, 50, b"".join(message(magic, 0, 5, b"k", b"v%d" % n) for n in range(3)))
    yield "an offset beyond the wrapper's", wrapped(magic, 1, good)
    yield "a wrapper without value", message(magic, 5, 5, None, None, CODECS["gzip"])
    yield "zstd", message(magic, 5, 5, None, compress("zstd", good), CODECS["zstd"])
    yield "codec 5", message(magic, 5, 5, None, good, 5)
    yield "a wrapper with a key", message(magic, 2, 5, b"key", compress("gzip", good), CODECS["gzip"])
    yield "no timestamp", message(magic, 3, -1, b"k", b"v")
    yield "twice the same offsets", wrapped(magic, 2, good) * 2
    streams = compress("snappy", good[:40]) + compress("snappy", good[40:])
    yield "two streams of snappy", message(magic, 2, 7, None, streams, CODECS["snappy"])


def wrapped(magic: int, offset: int, inside: bytes, attributes: int = 0) -> bytes:
    return message(magic, offset, 7, None, compress("gzip", inside), CODECS["gzip"] | attributes)


ODD = {**dict(batches()), **dict(message_sets())}
