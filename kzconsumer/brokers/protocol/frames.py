"""Sizes, headers and correlation ids: responses cut out of a byte stream, and requests made ready to send."""

from __future__ import annotations

import struct
from typing import ClassVar, Final, Protocol, TypeVar

from kzconsumer.brokers.protocol.primitives import INT32, NO_TAGS, skip_tags
from kzconsumer.errors import ProtocolError
from kzconsumer.records import _native

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
        frames = []
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
            self._frame = memoryview(_native.Memory(size))
            self._frame[:there] = staging[start : start + there]
            self._used = there
            start += there
            break
        self._held = held - start
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
