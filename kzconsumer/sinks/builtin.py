"""The sinks of the core: `callable`, the user's own coroutine function, and `jsonlines`, lines on standard output.

`callable` has no retries: when the function `async def f(batch)` returns, the batch is durable; an error other than
RecordsRejectedError stops the member.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Self

import anyio.from_thread
import anyio.to_thread
import msgspec

from kzconsumer.clock import now
from kzconsumer.errors import PLUGIN_FAULTS, SinkError, raised
from kzconsumer.offsets.progress import Message
from kzconsumer.plugins import load_async_function
from kzconsumer.records.forms import Content, Headers, content
from kzconsumer.settings.table_reader import read_table
from kzconsumer.sinks.capabilities import require_written
from kzconsumer.sinks.interface import Batch, RecordsRejectedError, SinkContext

_WHERE = "[sink.options]"


class CallableOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`function` is "module:function", an `async def` of one argument, the `Batch`."""

    function: str


class CallableSink:
    """Raises ConfigError if the function cannot be imported, is not async or cannot be called with one argument."""

    def __init__(self, options: Mapping[str, object], context: SinkContext) -> None:
        self._reference = read_table(options, CallableOptions, _WHERE).function
        where = f"{_WHERE} function"
        self._function: Callable[[Batch], Awaitable[object]] = load_async_function(self._reference, where, "batch")

    def __repr__(self) -> str:
        return f"CallableSink({self._reference})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def write(self, batch: Batch) -> None:
        try:
            returned = await self._function(batch)
        except RecordsRejectedError:
            raise
        except PLUGIN_FAULTS as error:
            raise SinkError(f"{self._reference} raised {raised(error)}") from error
        require_written(self._reference, returned)


# `jsonlines`: once `write` returns, the kernel has the bytes; a member that dies in a write may leave a partial last
# line. Nothing is written while the lease is in doubt.

_PIPE_ATOM = 4096  # PIPE_BUF: a pipe that polls writable takes this much without blocking
_FILE_PIECE = 256 * 1024
_POLL_SECONDS = 0.2
_DOUBT_SECONDS = 0.02
_ROWS = 1000  # records that are encoded at a time
_encoder = msgspec.json.Encoder()


class JsonLinesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The sink has no options."""


class JsonLine(msgspec.Struct, frozen=True):
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

    batch_bytes = 2 << 20  # lines gain nothing from larger batches

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
            messages = part.messages()
            while lines := encode(islice(messages, _ROWS)):
                self._write_all(descriptor, lines)

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


def encode(messages: Iterable[Message]) -> bytes:
    """The lines of messages, each ended by a newline."""
    records = list(messages)
    keys = _contents([record.key for record in records])
    values = _contents([record.value for record in records])
    lines = [
        JsonLine(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            key,
            value,
            _headers(record.headers) if record.headers else (),
        )
        for record, key, value in zip(records, keys, values, strict=True)
    ]
    return _encoder.encode_lines(lines)


def _contents(fields: Sequence[bytes | None]) -> Sequence[Content]:
    try:
        return [None if field is None else field.decode() for field in fields]
    except UnicodeDecodeError:
        return [content(field) for field in fields]


def _headers(headers: Headers) -> Sequence[tuple[str, Content]]:
    return [(key, content(value)) for key, value in headers]
