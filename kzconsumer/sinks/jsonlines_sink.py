"""The sink `jsonlines`: prints one JSON object per line on standard output.

Once `write` returns, the kernel has the bytes; a member that dies in a write may leave a partial last line. Nothing is
written while the lease is in doubt.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import anyio.from_thread
import anyio.to_thread
import msgspec
import pyarrow as pa

from kzconsumer.clock import now
from kzconsumer.errors import SinkError
from kzconsumer.records.json_content import Content, content
from kzconsumer.settings.tables import read_table
from kzconsumer.sinks.interface import Batch, RangeData, SinkContext

_PIPE_ATOM = 4096  # PIPE_BUF: a pipe that polls writable takes this much without blocking
_FILE_PIECE = 256 * 1024
_POLL_SECONDS = 0.2
_DOUBT_SECONDS = 0.02
_encoder = msgspec.json.Encoder()


class JsonLinesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The sink has no options."""


class Line(msgspec.Struct, frozen=True):
    """One record; the fields are the object's keys, in this order. `timestamp` is ms since 1970, UTC, or null."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: Content
    value: Content
    headers: Sequence[tuple[str, Content]]


class JsonLinesSink:
    """`write` raises SinkError if standard output was closed by its reader. A reader that stalls is backpressure."""

    def __init__(self, options: Mapping[str, object], context: SinkContext) -> None:
        read_table(options, JsonLinesOptions, "[sink.options]")
        self._safe_until = context.safe_until
        self._torn = b""  # the rest of a line that a cancelled write has begun

    def __repr__(self) -> str:
        return "JsonLinesSink(stdout)"

    async def __aenter__(self) -> Self:
        sys.stdout.flush()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def write(self, batch: Batch) -> None:
        try:
            await anyio.to_thread.run_sync(self._print, batch)
        except BrokenPipeError as error:
            raise SinkError("jsonlines: standard output was closed by its reader") from error
        except OSError as error:
            raise SinkError(f"jsonlines: cannot write to standard output: {error}") from error

    def _print(self, batch: Batch) -> None:
        descriptor = sys.stdout.fileno()
        self._write_all(descriptor, self._torn)
        for part in batch.ranges:
            self._write_all(descriptor, encode_range(part))

    def _write_all(self, descriptor: int, data: bytes) -> None:
        """Write to a descriptor that may stall; a cancellation is noticed within `_POLL_SECONDS`."""
        piece = _FILE_PIECE if stat.S_ISREG(os.fstat(descriptor).st_mode) else _PIPE_ATOM
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        rest = memoryview(data)
        try:
            while rest:
                anyio.from_thread.check_cancelled()
                if now() >= self._safe_until():
                    time.sleep(_DOUBT_SECONDS)
                elif poll.poll(_POLL_SECONDS * 1000):
                    rest = rest[os.write(descriptor, rest[:piece]) :]
        finally:
            if begun := data[: len(data) - len(rest)]:  # otherwise an earlier rest is still to be written
                whole = begun.endswith(b"\n")
                self._torn = b"" if whole else bytes(rest[: data.index(b"\n", len(begun)) + 1 - len(begun)])


def encode_range(part: RangeData) -> bytes:
    """The lines of one range, each ended by a newline."""
    return b"".join(encode_batch(part.topic, part.partition, batch) for batch in part.batches)


def encode_batch(topic: str, partition: int, batch: pa.RecordBatch) -> bytes:
    """The lines of one record batch."""
    lines = [
        Line(topic, partition, offset, timestamp, key, value, headers)
        for offset, timestamp, key, value, headers in zip(
            cast("list[int]", batch.column("offset").to_pylist()),
            batch.column("timestamp").cast(pa.int64()).to_pylist(),
            _contents(batch.column("key")),
            _contents(batch.column("value")),
            _headers(batch.column("headers")),
            strict=True,
        )
    ]
    return _encoder.encode_lines(lines)


def _contents(column: pa.Array[Any]) -> list[Content]:
    if column.null_count == len(column):
        return [None] * len(column)
    try:
        texts = column.cast(pa.string())  # checks the UTF-8 of the whole column at once
    except pa.ArrowInvalid:
        return [content(each) for each in column.to_pylist()]
    return cast("list[Content]", texts.to_pylist())


def _headers(column: pa.Array[Any]) -> list[list[tuple[str, Content]]]:
    if len(cast("pa.ListArray[Any]", column).flatten()) == 0:
        return [[]] * len(column)
    return [[(header["key"], content(header["value"])) for header in headers or ()] for headers in column.to_pylist()]
