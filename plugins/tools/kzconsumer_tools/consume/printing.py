"""Writes records from the cluster to a file descriptor, as a member of a group or without one.

Only a few batches are buffered while one is written: a slow reader of the output slows down fetching.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

import anyio
import msgspec
import pyarrow as pa
from anyio import to_thread
from anyio.streams.memory import MemoryObjectSendStream

from kzconsumer.consumer import connect
from kzconsumer.errors import NotDoneError, OutputError
from kzconsumer.fetcher.range_reader import RangeReader, range_reader
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.records.forms import ColumnRecords
from kzconsumer.registry.nodes import decode_offset
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.builtin import encode
from kzconsumer_tools.consume.format_and_places import ENDLESS, Format, Place, offset_at, ranges
from kzconsumer_tools.consume.record_text import RecordFilter, pieces
from kzconsumer_tools.groups.cluster_access import read_nodes
from kzconsumer_tools.groups.group_nodes import GroupNodes
from kzconsumer_tools.offsets.prepare import Scope, by_topic, choose
from kzconsumer_tools.offsets.stored_offsets import origin_of, stored_offsets

log = get_logger("kzconsumer")

# For at most this many records fetches are small: most of a large one would not be printed.
FEW = 1000
LITTLE = 64 * 1024
# Decoded parts of responses that are buffered, of some MiB each.
AHEAD = 4
# Seconds for a write in progress at the end.
LAST_WRITE = 1.0

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Wanted(msgspec.Struct, frozen=True):
    """What to print. `form` None: JSON lines; `until` None: no end; `count` None: all."""

    begin: Place
    until: Place | None
    count: int | None
    filter: RecordFilter
    form: Format | None
    null: bytes


class Printer:
    """Filters, counts and writes records; `records` and `size` (bytes) have been written.

    `behind`: all records of the present batch below that offset have been written or filtered out.
    """

    def __init__(self, wanted: Wanted, descriptor: int) -> None:
        self._wanted = wanted
        self._descriptor = descriptor
        self.records = 0
        self.size = 0
        self.behind = 0
        self._ended = threading.Event()

    def __repr__(self) -> str:
        return f"Printer({self.records} records, {self.size} bytes)"

    @property
    def done(self) -> bool:
        return self._wanted.count is not None and self.records >= self._wanted.count

    async def print(self, batch: pa.RecordBatch) -> None:
        """Write the records of one partition's batch that the filter allows.

        Raises BrokenPipeError if the reader of the output is gone, OutputError for other errors of writing.
        """
        self.behind = 0
        self._ended.clear()
        try:
            await to_thread.run_sync(self._print, batch, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            # Let a write in progress complete and be counted, but do not wait for a stalled reader.
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._ended.wait, LAST_WRITE)
            raise

    def _print(self, batch: pa.RecordBatch) -> None:
        try:
            self._write(batch)
        finally:
            self._ended.set()

    def _write(self, batch: pa.RecordBatch) -> None:
        for rows, out in self._made(batch):
            size = len(out)
            try:
                while len(out):
                    out = out[os.write(self._descriptor, out) :]
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OutputError(f"standard output: {error.strerror}") from None
            self.records += rows.num_rows
            self.size += size
            self.behind = rows.column("offset")[-1].as_py() + 1 if rows.num_rows else 0
        if not self.done:
            self.behind = ENDLESS

    def _made(self, batch: pa.RecordBatch) -> Iterable[tuple[pa.RecordBatch, memoryview]]:
        rows = self._wanted.filter.rows(batch)
        if self._wanted.count is not None:
            rows = rows.slice(0, self._wanted.count - self.records)
        if self._wanted.form is None:
            return [(rows, memoryview(encode(ColumnRecords(rows).messages())))]
        return pieces(rows, self._wanted.form, self._wanted.null)


async def print_records(
    settings: Settings,
    wanted: Wanted,
    *,
    scope: Scope | None,
    member: bool,
    descriptor: int,
    beside: Callable[[Printer], Coroutine[None, None, None]],
) -> int | None:
    """Print the subscribed topics; returns the signal (SIGTERM, SIGHUP, SIGPIPE) that ended it, None at the end.

    `beside` runs concurrently and is cancelled. Raises what `connect` and RangeReader raise, in exception groups.
    """
    printer = Printer(wanted, descriptor)
    ended_by: int | None = None
    try:
        async with anyio.create_task_group() as tasks:

            async def end_on_signal() -> None:
                nonlocal ended_by
                handled = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]  # nohup ignores
                with anyio.open_signal_receiver(*handled) as signals:
                    async for each in signals:
                        ended_by = each
                        tasks.cancel_scope.cancel()

            tasks.start_soon(end_on_signal)
            tasks.start_soon(_end_with_reader, descriptor)
            tasks.start_soon(beside, printer)
            await (
                _as_member(settings, printer, wanted) if member else _without_group(settings, printer, wanted, scope)
            )
            tasks.cancel_scope.cancel()
    except* BrokenPipeError:
        ended_by = signal.SIGPIPE
    return ended_by


async def _as_member(settings: Settings, printer: Printer, wanted: Wanted) -> None:
    """What has been written is committed, at intervals and at the end."""
    stop_at = None
    if wanted.until is not None:
        async with range_reader(settings) as reader:
            partitions = await reader.partitions(settings.subscription)
            stop_at = await _offsets(reader, wanted.until, await reader.logs(partitions), {})
    topics = settings.subscription.filter
    assert topics is not None
    async with connect(settings, stop_at=stop_at) as connector:
        (stream,) = await connector.create_message_streams_by_filter(topics)
        async for batch in stream.batches():
            try:
                await printer.print(batch)
            finally:  # also if it is cancelled after the write
                stream.ack_below(printer.behind)
            if printer.done:
                return


async def _without_group(settings: Settings, printer: Printer, wanted: Wanted, scope: Scope | None) -> None:
    """Nothing is joined or stored."""
    positions: dict[TopicPartition, tuple[int, int]] = {}
    if wanted.begin.group is not None:
        positions = _readable(await read_nodes(settings, wanted.begin.group))
    if wanted.count is not None and wanted.count <= FEW and wanted.filter == RecordFilter():
        settings = msgspec.structs.replace(settings, fetch=msgspec.structs.replace(settings.fetch, max_bytes=LITTLE))
    async with range_reader(settings) as reader:
        partitions = await reader.partitions(settings.subscription)
        if scope is not None:
            partitions = choose(by_topic(partitions), scope)
        logs = await reader.logs(partitions)
        held = {each: at for each, at in positions.items() if each in logs}
        await reader.require_logs(held, "--from OFFSET, or beginning, says where to read on")
        stored = {each: at for each, (at, _) in held.items()}
        for each, at in sorted(stored.items()):
            if at < logs[each][0]:
                log.warning("records are gone from the log", **each._asdict(), first=at, until=logs[each][0])
        begin = await _offsets(reader, wanted.begin, logs, stored)
        until = await _offsets(reader, wanted.until, logs, {}) if wanted.until is not None else None
        send, receive = anyio.create_memory_object_stream[pa.RecordBatch](AHEAD)
        async with anyio.create_task_group() as tasks, receive:
            async with send:
                for led in await reader.by_leader(ranges(logs, begin, until)):
                    tasks.start_soon(_read, reader, led, until is None, send.clone())
            async for batch in receive:
                await printer.print(batch)
                if printer.done:
                    tasks.cancel_scope.cancel()


async def _read(
    reader: RangeReader, led: Sequence[OffsetRange], follow: bool, send: MemoryObjectSendStream[pa.RecordBatch]
) -> None:
    async with send:
        async for _, batch in reader.read(led, follow=follow):
            await send.send(batch)


async def _offsets(
    reader: RangeReader,
    place: Place,
    logs: Mapping[TopicPartition, tuple[int, int]],
    stored: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    times = await reader.at_time(logs, place.number) if place.kind == "time" else {}
    return {each: offset_at(place, each, log, times, stored) for each, log in logs.items()}


def _readable(nodes: GroupNodes) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets, and the leader epochs of the records before them (-1: unknown).

    Raises NotDoneError for an unreadable offset; partitions with the original's "no offset stored" are left out, and
    those whose offset is of an earlier topic of that name."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    for partition, data in stored_offsets(nodes).items():
        topic = nodes.topics.get(partition.topic)
        origin = origin_of(nodes, partition)
        if topic is not None and origin.differs(topic):
            continue
        try:
            offset = decode_offset(data)
        except ValueError as error:
            raise NotDoneError(f"the stored offset of {partition}: {error}") from None
        if offset is not None:
            found[partition] = offset, origin.leader_epoch
    return found


async def _end_with_reader(descriptor: int) -> None:
    """Raises BrokenPipeError when the reader closes the pipe, even if there is nothing to write."""
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        await anyio.wait_readable(descriptor)  # the write end of a pipe becomes readable only by an error
        raise BrokenPipeError
