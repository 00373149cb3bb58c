"""Kafka's primitive types, in the plain encoding and the compact one of KIP-482 ("flexible"); frames on the wire."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import ClassVar, Final, NamedTuple, Protocol, TypeVar

from kzconsumer.errors import ProtocolError
from kzconsumer.model import TopicPartition
from kzconsumer.records import _native

INT8 = struct.Struct(">b")
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")

NO_TAGS = b"\0"
"""An empty tagged-field section (KIP-482)."""


def string(text: str) -> bytes:
    """STRING: two bytes of length, then UTF-8."""
    data = text.encode()
    return INT16.pack(len(data)) + data


@lru_cache
def unsigned_varint(value: int) -> bytes:
    """UNSIGNED_VARINT (KIP-482): seven bits a byte, the lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache
def compact_string(text: str) -> bytes:
    """COMPACT_STRING: length + 1 as UNSIGNED_VARINT, then UTF-8."""
    data = text.encode()
    return unsigned_varint(len(data) + 1) + data


def read_unsigned_varint(body: memoryview, at: int) -> tuple[int, int]:
    """The UNSIGNED_VARINT at `at`, and where it ends. Raises IndexError past the end, ProtocolError above 32 bits."""
    value = body[at]
    if value < 0x80:  # nearly all are, and there are several for each partition fetched
        return value, at + 1
    value = 0
    for shift in range(0, 35, 7):
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, at
    raise ProtocolError("a varint of more than 32 bits")


def skip_tags(body: memoryview, at: int) -> int:
    """Where the tagged-field section that begins at `at` ends. Tags we do not know are allowed by KIP-482."""
    if body[at] == 0:
        return at + 1
    count, at = read_unsigned_varint(body, at)
    for _ in range(count):
        _, at = read_unsigned_varint(body, at)
        size, at = read_unsigned_varint(body, at)
        at += size
        if at > len(body):
            raise ProtocolError("a tagged field reaches past the end")
    return at


MALFORMED: Final = (struct.error, IndexError, UnicodeDecodeError, ProtocolError)
"""What malformed bytes cause: too short, not UTF-8."""


def malformed(what: str, version: int, error: Exception) -> ProtocolError:
    """Names the response in which one of MALFORMED was met."""
    return ProtocolError(f"malformed {what} v{version} response: {error}")


@contextmanager
def reading(what: str, version: int) -> Iterator[None]:
    """Turns what malformed bytes cause into a ProtocolError that names the response."""
    try:
        yield
    except MALFORMED as error:
        raise malformed(what, version, error) from error


class Reader:
    """Reads a non-flexible response field by field. Use inside `reading`; call `end` last."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    def int8(self) -> int:
        return self._one(INT8)

    def int16(self) -> int:
        return self._one(INT16)

    def int32(self) -> int:
        return self._one(INT32)

    def int64(self) -> int:
        return self._one(INT64)

    def fields(self, form: struct.Struct) -> tuple[int, ...]:
        """Several numbers at once, where there are many structures of them."""
        values = form.unpack_from(self._body, self._at)
        self._at += form.size
        return values

    def _one(self, form: struct.Struct) -> int:
        (value,) = form.unpack_from(self._body, self._at)
        self._at += form.size
        return int(value)

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise ProtocolError("null where a string must be")
        return text

    def nullable_string(self) -> str | None:
        size = self.int16()
        if size == -1:
            return None
        return str(self._take(size), "utf-8")

    def data(self) -> bytes:
        """BYTES: four bytes of length, then a copy of what follows."""
        return bytes(self._take(self.int32()))

    def topic_id(self) -> str:
        """A UUID as Kafka writes it, in base64; empty if it is zero."""
        data = bytes(self._take(16))
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode() if any(data) else ""

    def count(self) -> int:
        """The number of elements of the ARRAY that follows, 0 for null."""
        count = self.int32()
        if count < -1:
            raise ProtocolError(f"an array of {count} elements")
        return max(count, 0)

    def partitions(self) -> Iterator[TopicPartition]:
        """Partitions in an ARRAY by topic; each partition's fields are to be read before the next is taken."""
        for _ in range(self.count()):
            topic = self.string()
            for _ in range(self.count()):
                yield TopicPartition(topic, self.int32())
            self.tags()

    def skip_int32s(self) -> None:
        """Skip an ARRAY of INT32."""
        self._pass(4 * self.count())

    def int32s(self) -> tuple[int, ...]:
        """An ARRAY of INT32."""
        return tuple(value for (value,) in INT32.iter_unpack(self._take(4 * self.count())))

    def int64s(self) -> list[int]:
        """An ARRAY of INT64."""
        return [value for (value,) in INT64.iter_unpack(self._take(8 * self.count()))]

    def _take(self, size: int) -> memoryview:
        begin = self._at
        self._pass(size)
        return self._body[begin : self._at]

    def _pass(self, size: int) -> None:
        end = self._at + size
        if size < 0 or end > len(self._body):
            raise ProtocolError(f"{size} bytes wanted at {self._at} of {len(self._body)}")
        self._at = end

    def tags(self) -> None:
        """Skip the tagged fields at the end of a structure; before KIP-482 there are none."""

    def end(self) -> None:
        """Raises ProtocolError if bytes are left over."""
        if self._at != len(self._body):
            raise ProtocolError(f"{len(self._body) - self._at} bytes left over")


class CompactReader(Reader):
    """The same in a flexible response (KIP-482)."""

    __slots__ = ()

    def nullable_string(self) -> str | None:
        size = self._unsigned_varint() - 1
        return None if size == -1 else str(self._take(size), "utf-8")

    def data(self) -> bytes:
        return bytes(self._take(self._unsigned_varint() - 1))

    def count(self) -> int:
        return max(self._unsigned_varint() - 1, 0)

    def tags(self) -> None:
        self._at = skip_tags(self._body, self._at)

    def _unsigned_varint(self) -> int:
        value, self._at = read_unsigned_varint(self._body, self._at)
        return value


class Encoding(NamedTuple):
    """What differs between the plain encoding and the compact one of KIP-482."""

    string: Callable[[str], bytes]
    array: Callable[[int], bytes]
    """The begin of an array of so many elements, -1 for null."""
    tags: bytes
    """An empty tagged-field section, which ends every structure."""
    reader: type[Reader]

    def by_topic(self, partitions: Iterable[tuple[TopicPartition, bytes]]) -> bytes:
        """An ARRAY of topics with their partitions, each partition as INT32 and then the bytes given for it."""
        topics: dict[str, list[bytes]] = {}
        for (topic, partition), fields in partitions:
            topics.setdefault(topic, []).append(INT32.pack(partition) + fields)
        parts = [self.array(len(topics))]
        for topic, packed in topics.items():
            parts += (self.string(topic), self.array(len(packed)), *packed, self.tags)
        return b"".join(parts)


PLAIN: Final = Encoding(string, INT32.pack, b"", Reader)
COMPACT: Final = Encoding(compact_string, lambda number: unsigned_varint(number + 1), NO_TAGS, CompactReader)


# Frames: responses cut out of a byte stream, and requests with size, header and correlation id, ready to send.

MAX_RESPONSE: Final = 1 << 30
"""Bytes. A peer that is no Kafka broker exceeds it: `HTTP`, read as a size, is more."""

_TLS_ALERT: Final = 0x15030000
"""The upper half of the "size" when a TLS server answers with an alert that it expected TLS."""

_STAGING: Final = 4096
_REQUEST_HEADER: Final = struct.Struct(">ihhih")


def request_frame(
    api_key: int, version: int, correlation: int, client_id: bytes, body: bytes, *, flexible: bool
) -> bytes:
    """A request as it is sent: size, header (version 1, or 2 when flexible), body."""
    tags = NO_TAGS if flexible else b""
    size = _REQUEST_HEADER.size - 4 + len(client_id) + len(tags) + len(body)
    return b"".join((_REQUEST_HEADER.pack(size, api_key, version, correlation, len(client_id)), client_id, tags, body))


def bare_frame(token: bytes) -> bytes:
    """A SASL token as it is sent without a header: size, token."""
    return INT32.pack(len(token)) + token


def response_body(frame: memoryview, correlation: int, *, flexible: bool) -> memoryview:
    """The body of a response without its header (version 0, or 1 when flexible).

    Raises ProtocolError when the response is not the one to the request `correlation`: brokers answer in order.
    """
    if len(frame) < 4:
        raise ProtocolError(f"a response of {len(frame)} bytes")
    (answered,) = INT32.unpack_from(frame)
    if answered != correlation:
        raise ProtocolError(f"response {answered} arrived where response {correlation} was expected")
    if not flexible:
        return frame[4:]
    try:
        return frame[skip_tags(frame, 4) :]
    except IndexError:
        raise ProtocolError("a response header is cut short") from None


class FrameReader:
    """Cuts a stream into frames, each in memory of its own, without the four bytes of size.

    The next bytes are to be read into `buffer()` and reported with `received`. A small response takes one read and one
    copy; of a large one at most the first 4 KiB are copied, the rest is read in place.
    """

    __slots__ = ("_frame", "_held", "_staging", "_used", "limit")

    def __init__(self, limit: int = MAX_RESPONSE) -> None:
        self.limit = limit
        self._staging = memoryview(bytearray(_STAGING))
        self._held = 0
        self._frame: memoryview | None = None
        self._used = 0

    def buffer(self) -> memoryview:
        """Where to read to; never empty."""
        if self._frame is None:
            return self._staging[self._held :]
        return self._frame[self._used :]

    @property
    def missing(self) -> int:
        """Bytes of a large response that have not come yet; 0 between responses."""
        return 0 if self._frame is None else len(self._frame) - self._used

    @property
    def begun(self) -> int:
        """Bytes that have come of a response that is not complete."""
        return self._held if self._frame is None else self._used

    def received(self, count: int) -> list[memoryview]:
        """`count` bytes were read into `buffer()`; returns the frames that are now complete, read-only, in order.

        Raises ProtocolError for an impossible size; the stream is unusable then.
        """
        if self._frame is not None:
            self._used += count
            if self._used < len(self._frame):
                return []
            frame, self._frame = self._frame, None
            return [frame.toreadonly()]
        return self._cut(self._held + count)

    def _cut(self, held: int) -> list[memoryview]:
        staging = self._staging
        frames: list[memoryview] = []
        start = 0
        while held - start >= 4:
            (size,) = INT32.unpack_from(staging, start)
            if not 0 <= size <= self.limit:
                if size & ~0xFFFF == _TLS_ALERT:
                    raise ProtocolError("this listener speaks TLS: [brokers] security_protocol, listener")
                raise ProtocolError(f"a response of {size} bytes (up to {self.limit} are possible): no Kafka?")
            start += 4
            there = min(size, held - start)
            if there == size:
                frames.append(memoryview(bytes(staging[start : start + size])))
                start += size
                continue
            try:
                self._frame = memoryview(_native.Memory(size))
            except MemoryError:
                raise ProtocolError(f"no memory for a response of {size} bytes ([fetch] response_bytes)") from None
            self._frame[:there] = staging[start : start + there]
            self._used = there
            start += there
            break
        self._held = held - start
        if self._held:
            staging[: self._held] = bytes(staging[start:held])
        return frames


R_co = TypeVar("R_co", covariant=True)


class Request(Protocol[R_co]):
    """`version` is always one that `versions.SPOKEN` has for `api_key`."""

    api_key: ClassVar[int]

    def encode(self, version: int) -> bytes:
        """The request's body, without size and header."""

    def decode(self, version: int, body: memoryview) -> R_co:
        """The response from its body, without size and header. Raises ProtocolError and nothing else."""
