"""Decompresses the bodies of batches into bounded memory; the constants of the record formats.

The size of an output is bounded before a byte of it is made: from the block headers (lz4, zstd), from the declared
length (snappy), or by the decoder's limit (gzip).
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Any

import cramjam

from kzconsumer.records import _native

# Wire layouts and limits. Sources: `org.apache.kafka.common.record` of Kafka 3.9 (DefaultRecordBatch, DefaultRecord,
# LegacyRecord); KIP-31, KIP-32, KIP-98. The compiled decoder has its own (`native/framing.h`).

# Attributes of a batch (magic 2) or message (magic 0 and 1).
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

# offset int64, size int32.
LOG_OVERHEAD = 12
# After the size: crc, magic, attributes, [timestamp int64 from magic 1 on], key length, value length.
MESSAGE_SIZE_V0 = 14
# After the size of a magic 2 batch: 49 bytes of header; the records begin at byte 61 of the batch.
BATCH_SIZE = 49
BATCH_HEADER = 61

# One decode stops before the batch that would take all bodies beyond it; and no batch may decompress to more, unless
# the caller says otherwise.
MAX_BODY = 256 << 20
# Highest base offset whose batch cannot overflow an int64.
MAX_OFFSET = (1 << 63) - 1 - (1 << 31)
NO_TIMESTAMP = -1


_CHUNK = 1 << 20
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16  # magic, version int32, lowest compatible version int32
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_BLOCK_SIZES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # behind a byte from 0x50 to 0x5f
_ZSTD_BLOCK_SIZE = 128 << 10
_NEXT_MEMBER = 512  # bytes of input that a gzip member after the first is given at first


class BadCompression(Exception):
    """The bytes are invalid for their codec, or decompress to more than is allowed."""


class NoRoom(Exception):
    """The bodies of one response need more room than was given."""


class Scratch:
    """Memory for decompressed bodies, given out piece by piece and freed as a whole.

    No body is larger than `limit`, and all bodies together are no larger than `room`.
    """

    def __init__(self, limit: int | None = None, room: int | None = None) -> None:
        self.limit = MAX_BODY if limit is None else limit
        self.left = sys.maxsize if room is None else room
        self._chunk = memoryview(_native.Memory(0))
        self._used = 0

    def room(self, size: int) -> memoryview:
        """At least `size` writable bytes; `keep` takes the used ones, else they are given out again."""
        if len(self._chunk) - self._used < size:
            self._chunk = memoryview(_native.Memory(max(size, _CHUNK)))
            self._used = 0
        return self._chunk[self._used :]

    @property
    def most(self) -> int:
        """Bytes that the next body may have."""
        return min(self.limit, self.left)

    def too_large(self) -> BadCompression | NoRoom:
        """The error of a body with more than `most` bytes."""
        if self.left < self.limit:
            return NoRoom(f"more than {self.left} bytes")
        return BadCompression(f"it decompresses to more than largest_body = {self.limit} bytes of the table [fetch]")

    def keep(self, size: int) -> memoryview:
        """The first `size` bytes of the last room."""
        self.left -= size
        self._used += size
        return self._chunk[self._used - size : self._used]


def decompress(codec: int, magic: int, data: memoryview, scratch: Scratch) -> memoryview:
    """The records of a batch whose attributes name `codec`. Raises BadCompression, and NoRoom if they do not fit."""
    if scratch.left <= 0:
        raise NoRoom("no room is left")
    try:
        if codec == GZIP:
            return _gunzip(data, scratch)
        if codec == SNAPPY:
            return _snappy(data, scratch)
        if codec == LZ4:
            frame, bound = _lz4_frame(data)
            if magic < 2:
                frame = _with_right_header_checksum(frame)
            return _into(cramjam.lz4.decompress_into, frame, bound, scratch)
        if codec == ZSTD and magic == 2:
            frames, bound = _zstd_frames(data, scratch.most)
            return _into(cramjam.zstd.decompress_into, frames, bound, scratch)
    except (cramjam.DecompressionError, zlib.error, IndexError) as error:
        raise BadCompression(f"it cannot be decompressed: {error}") from error
    raise BadCompression(f"its compression codec {codec} is unknown")


def _into(decoder: Callable[[Any, Any], int], data: memoryview, bound: int, scratch: Scratch) -> memoryview:
    bound = min(bound, scratch.most)
    room = scratch.room(bound)[:bound]
    try:
        size = decoder(data, room)
    except cramjam.DecompressionError:
        if bound == scratch.most:
            raise scratch.too_large() from None
        raise
    return scratch.keep(size)


def _gunzip(data: memoryview, scratch: Scratch) -> memoryview:
    parts: list[bytes] = []
    left = scratch.most
    at = 0
    size = len(data)
    while True:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            if at >= len(data):
                raise BadCompression("it cannot be decompressed: its gzip data is cut off")
            part = member.decompress(data[at : at + size], left + 1)
            left -= len(part)
            if left < 0:
                raise scratch.too_large()
            parts.append(part)
            at = min(at + size, len(data))
            size *= 2
        at -= len(member.unused_data)
        if bytes(data[at : at + 2]) != b"\x1f\x8b":  # java.util.zip.GZIPInputStream ends here, too
            break
        size = _NEXT_MEMBER  # zlib copies the input behind a member's end: all of it each time would be quadratic
    body = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
    scratch.left -= len(body)
    return body


def _snappy(data: memoryview, scratch: Scratch) -> memoryview:
    """Raw snappy (librdkafka may write it) or xerial's blocks (snappy-java, hence all Java clients)."""
    blocks = _xerial_blocks(data) if bytes(data[:8]) == _XERIAL_MAGIC else [data]
    sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    total = sum(sizes)
    if total > scratch.most:
        raise scratch.too_large()
    room = scratch.room(total)
    at = 0
    for block, size in zip(blocks, sizes, strict=True):
        at += cramjam.snappy.decompress_raw_into(block, room[at : at + size])
    return scratch.keep(at)


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    """Of all streams in `data`, one after the other, as `org.xerial.snappy.SnappyInputStream` reads them.

    It ignores up to three bytes behind the last block.
    """
    blocks = []
    position = _XERIAL_HEADER
    while len(data) - position >= 4:
        if bytes(data[position : position + 8]) == _XERIAL_MAGIC:
            if int.from_bytes(data[position + 8 : position + 12], "big", signed=True) < 1:
                raise BadCompression("it cannot be decompressed: a snappy stream of an unknown version")
            position += _XERIAL_HEADER
            if position > len(data):
                raise BadCompression("it cannot be decompressed: a snappy header is cut off")
            continue
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if size < 0 or size > len(data) - position:
            raise BadCompression("it cannot be decompressed: a snappy block is cut off")
        blocks.append(data[position : position + size])
        position += size
    return blocks


def _lz4_frame(data: memoryview) -> tuple[memoryview, int]:
    """The first frame (Java stops at its end mark) and a bound of what it decompresses to."""
    if bytes(data[:4]) != _LZ4_MAGIC:
        raise BadCompression("it cannot be decompressed: not an lz4 frame")
    flags = data[4]
    block_size = _LZ4_BLOCK_SIZES.get(data[5] >> 4 & 7)
    if block_size is None or flags & 0x01:
        raise BadCompression("it cannot be decompressed: lz4 block size or dictionary that Kafka does not use")
    block_checksum = 4 if flags & 0x10 else 0
    position = _lz4_descriptor_end(flags) + 1
    bound = 0
    while True:
        header = int.from_bytes(data[position : position + 4], "little")
        position += 4
        if position > len(data):
            raise BadCompression("it cannot be decompressed: its lz4 frame is cut off")
        if header == 0:
            return data[: position + (4 if flags & 0x04 else 0)], bound
        size = header & 0x7FFFFFFF
        bound += min(block_size, 255 * size)
        position += size + block_checksum


def _lz4_descriptor_end(flags: int) -> int:
    return 6 + (8 if flags & 0x08 else 0)


def _with_right_header_checksum(frame: memoryview) -> memoryview:
    """Kafka before 0.10 took the frame's magic into the header checksum (KAFKA-3160), and for magic 0 still does."""
    end = _lz4_descriptor_end(frame[4])
    checksum = lz4_header_checksum(bytes(frame[4:end]))
    if frame[end] == checksum:
        return frame
    if frame[end] != lz4_header_checksum(bytes(frame[:end])):
        raise BadCompression("it cannot be decompressed: wrong lz4 header checksum")
    right = bytearray(frame)
    right[end] = checksum
    return memoryview(right)


def lz4_header_checksum(data: bytes) -> int:
    """The second lowest byte of the xxHash32, with seed 0, of fewer than 16 bytes."""
    prime1, prime2, prime3, prime4, prime5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFFFFFF

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & mask

    value = prime5 + len(data) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little")
        value = rotate(value + word * prime3 & mask, 17) * prime4 & mask
    for byte in data[whole:]:
        value = rotate(value + byte * prime5 & mask, 11) * prime1 & mask
    value = (value ^ value >> 15) * prime2 & mask
    value = (value ^ value >> 13) * prime3 & mask
    return (value ^ value >> 16) >> 8 & 255


def _zstd_frames(data: memoryview, limit: int) -> tuple[memoryview, int]:
    """The frames up to the last one with content, and a bound of what they decompress to: the sum of their blocks'.

    Skippable frames (RFC 8878, 3.1.2) have no content. Java reads one at the end even if it is cut off.
    """
    position = 0
    end = 0
    bound = 0
    while position < len(data):
        magic = bytes(data[position : position + 4])
        if magic[1:] == _ZSTD_SKIPPABLE and magic[0] & 0xF0 == 0x50:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
            continue
        if magic != _ZSTD_MAGIC:
            raise BadCompression("it cannot be decompressed: not a zstd frame")
        descriptor = data[position + 4]
        single_segment = descriptor >> 5 & 1
        position += 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
        position += (single_segment, 2, 4, 8)[descriptor >> 6]
        last = 0
        while not last:
            header = int.from_bytes(data[position : position + 3], "little")
            position += 3
            if position > len(data):
                raise BadCompression("it cannot be decompressed: its zstd frame is cut off")
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            bound += _ZSTD_BLOCK_SIZE if kind == 2 else size
            position += 1 if kind == 1 else size
            if bound > limit:
                return data, bound
        position += 4 if descriptor & 4 else 0
        end = min(position, len(data))
    return data[:end], bound
