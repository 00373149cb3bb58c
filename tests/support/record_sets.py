"""Record sets as brokers send them: every magic, every codec, and the irregularities of old clients.

Concatenate results for a log that changes its format; truncate the last one for a partial tail.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

import cramjam
from crc32c import crc32c

from kzconsumer.records import compression as L
from kzconsumer.records.compression import lz4_header_checksum

Codec = Literal["none", "gzip", "snappy", "snappy-raw", "lz4", "lz4-KAFKA-3160", "zstd"]
"""`snappy` has xerial's framing, as Java writes; `lz4-KAFKA-3160` has the header checksum of clients before 0.10."""

CODECS: dict[Codec, int] = {
    "none": L.NONE,
    "gzip": L.GZIP,
    "snappy": L.SNAPPY,
    "snappy-raw": L.SNAPPY,
    "lz4": L.LZ4,
    "lz4-KAFKA-3160": L.LZ4,
    "zstd": L.ZSTD,
}
LEGACY_CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "snappy-raw", "lz4", "lz4-KAFKA-3160")

_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10


class Record(NamedTuple):
    """A record to produce. `headers` and `timestamp` exist from magic 2 and 1 on; the builders omit them otherwise."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp: int = 1_700_000_000_000
    """Milliseconds since 1970, -1 for none."""


def compress(codec: Codec, data: bytes) -> bytes:
    """`data` as the body of a batch or wrapper of that codec."""
    match codec:
        case "none":
            return data
        case "gzip":
            return gzip.compress(data, mtime=0)
        case "snappy":
            blocks = [data[at : at + _XERIAL_BLOCK] for at in range(0, len(data), _XERIAL_BLOCK)]
            packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
            return _XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in packed)
        case "snappy-raw":
            return bytes(cramjam.snappy.compress_raw(data))
        case "lz4" | "lz4-KAFKA-3160":
            compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
            compressor.compress(data)
            frame = bytearray(compressor.finish())
            if codec == "lz4-KAFKA-3160":
                end = 14 if frame[4] & 0x08 else 6
                frame[end] = lz4_header_checksum(bytes(frame[:end]))
            return bytes(frame)
        case "zstd":
            return bytes(cramjam.zstd.compress(data, 3))


def varint(number: int) -> bytes:
    """Zigzag and base 128, as in records of magic 2."""
    number = (number << 1 ^ number >> 63) & (1 << 64) - 1
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def record_batch(
    records: Sequence[Record],
    *,
    base_offset: int,
    codec: Codec = "none",
    log_append_time: int | None = None,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    transactional: bool = False,
    control: bool = False,
    producer_id: int = -1,
    body: bytes | None = None,
    count: int | None = None,
    leader_epoch: int = 0,
) -> bytes:
    """One batch of magic 2.

    `log_append_time`: the broker's timestamp instead of the records'. `offset_deltas` and `last_offset_delta` with gaps
    make a compacted batch. `body` and `count` replace the encoded, compressed records and their number: a broken batch.
    """
    deltas = range(len(records)) if offset_deltas is None else offset_deltas
    if last_offset_delta is None:
        last_offset_delta = max(deltas, default=0)
    first = records[0].timestamp if records else -1
    encoded = b"".join(_record(record, delta, first) for record, delta in zip(records, deltas, strict=True))
    latest = max((record.timestamp for record in records), default=-1) if log_append_time is None else log_append_time
    attributes = CODECS[codec]
    attributes |= L.LOG_APPEND_TIME if log_append_time is not None else 0
    attributes |= L.TRANSACTIONAL if transactional else 0
    attributes |= L.CONTROL if control else 0
    checked = struct.pack(
        ">hiqqqhii",
        attributes,
        last_offset_delta,
        first,
        latest,
        producer_id,
        0 if transactional else -1,
        0 if transactional else -1,
        len(records) if count is None else count,
    )
    checked += compress(codec, encoded) if body is None else body
    return struct.pack(">qiibI", base_offset, len(checked) + 9, leader_epoch, 2, crc32c(checked)) + checked


def control_batch(base_offset: int, *, producer_id: int, commit: bool, timestamp: int = 1_700_000_000_000) -> bytes:
    """The marker that ends a transaction (KIP-98): one record, which is not delivered to applications."""
    marker = Record(struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0), (), timestamp)
    return record_batch([marker], base_offset=base_offset, transactional=True, control=True, producer_id=producer_id)


def message_set(
    records: Sequence[Record],
    *,
    magic: int,
    base_offset: int,
    codec: Codec = "none",
    log_append_time: int | None = None,
    offsets: Sequence[int] | None = None,
    relative: bool | None = None,
) -> bytes:
    """Messages of magic 0 or 1: one after the other or, with a codec, all in one wrapper message.

    `offsets`: instead of consecutive ones. `relative`: inner offsets of a wrapper start at 0 (KIP-31, the default for
    magic 1) or are absolute (the default for magic 0).
    """
    absolute = range(base_offset, base_offset + len(records)) if offsets is None else offsets
    timestamp_type = L.LOG_APPEND_TIME if log_append_time is not None else 0
    if codec == "none":
        times = [record.timestamp if log_append_time is None else log_append_time for record in records]
        return b"".join(
            message(magic, offset, time, record.key, record.value, timestamp_type)
            for offset, time, record in zip(absolute, times, records, strict=True)
        )
    subtract = absolute[0] if (magic == 1 if relative is None else relative) else 0
    inner = b"".join(
        message(magic, offset - subtract, record.timestamp, record.key, record.value)
        for offset, record in zip(absolute, records, strict=True)
    )
    latest = max(record.timestamp for record in records) if log_append_time is None else log_append_time
    return message(magic, absolute[-1], latest, None, compress(codec, inner), CODECS[codec] | timestamp_type)


def message(
    magic: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None, attributes: int = 0
) -> bytes:
    """One message of magic 0 or 1 with its offset and size."""
    checked = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for field in (key, value):
        checked += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(checked) + 4, zlib.crc32(checked)) + checked


def _record(record: Record, offset_delta: int, first_timestamp: int) -> bytes:
    encoded = b"\0" + varint(record.timestamp - first_timestamp) + varint(offset_delta)
    encoded += _field(record.key) + _field(record.value) + varint(len(record.headers))
    encoded += b"".join(_field(key) + _field(value) for key, value in record.headers)
    return varint(len(encoded)) + encoded


def _field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data
