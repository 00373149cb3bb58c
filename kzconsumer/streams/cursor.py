"""Where one stream is: what was taken from its queue, handed out to the application and acknowledged.

The member closes, pauses and drops claims here; the application iterates through `KafkaStream`. Source:
`kafka.consumer.ConsumerIterator` (1.1.1), which all iterators of a stream share there, too.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from kzconsumer.clock import now
from kzconsumer.logs.logger import get_logger
from kzconsumer.offsets.progress import Chunk, HandedOut, Message, Progress, handed_out, last_handed_out, load
from kzconsumer.records import _native
from kzconsumer.records.forms import NO_RECORDS
from kzconsumer.streams.chunk_queue import ChunkQueue, EndOfStream
from kzconsumer.threads import in_thread
from kzconsumer.zookeeper.session import Lease

if TYPE_CHECKING:
    import pyarrow as pa


# What is handed out and not acknowledged: records per owned partition, and which batches. Only streams with explicit
# acknowledgement count records.

log = get_logger("kzconsumer")

# Seconds for which a stream waits for room before it is logged, and until it is logged again.
PATIENCE = 10.0
LOG_AGAIN = 60.0

# Makes batches of what was decoded, and loads Arrow.
COLUMNS = "kzconsumer.records.columns"


class HandedOutBatches:
    """The range of each batch that the application still holds: its columns do not say where the range begins."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[pa.RecordBatch], HandedOut]] = {}

    def add(self, batch: pa.RecordBatch, handed_out: HandedOut) -> None:
        key = id(batch)
        self._known[key] = weakref.ref(batch, lambda _: self._known.pop(key, None)), handed_out

    def find(self, batch: pa.RecordBatch) -> HandedOut | None:
        known = self._known.get(id(batch))
        return known[1] if known is not None else None


class Unacknowledged:
    """At most about `most` records: a batch is handed out whole if there is room for one record."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._records: dict[Progress, int] = {}
        self.total = 0
        self._change = anyio.Event()

    @property
    def room(self) -> int:
        return max(0, self._most - self.total)

    def add(self, progress: Progress, records: int) -> None:
        """Count records; a negative number for records that were made and not handed out after all."""
        if progress not in self._records and records > 0:
            self._records[progress] = 0
            progress.when_lost(partial(self._forget, progress))
        if progress in self._records:
            self._records[progress] += records
            self.total += records

    def remove(self, progress: Progress, records: int) -> None:
        """Count records as acknowledged."""
        self.add(progress, -records)
        self._change.set()

    def _forget(self, progress: Progress) -> None:
        """The claim is lost: its records are not waited for."""
        self.total -= self._records.pop(progress, 0)
        self._change.set()

    async def until_room(self) -> None:
        """Wait for room; a long wait is logged with the claim that has most records unacknowledged."""
        began, patience = now(), PATIENCE
        while not self.room:
            self._change = anyio.Event()
            with anyio.move_on_after(patience) as waiting:
                await self._change.wait()
            if waiting.cancelled_caught:
                patience = LOG_AGAIN
                slowest = max(self._records, key=lambda progress: self._records[progress])
                log.warning(
                    "stream waiting, too many records unacknowledged",
                    records=self.total,
                    most=self._most,
                    seconds=round(now() - began, 1),
                    **slowest.topic_partition._asdict(),
                    first_unacknowledged=slowest.processed,
                )


LOT_ROWS = 1000
# With explicit acknowledgement all of a lot counts as handed out.
COUNTED_LOT_ROWS = 50
# Messages are handed out for so long without a look at the lease, and without a turn of the event loop: a loop body may
# block it, and the process may have been stopped.
LOOK_SECONDS = 0.02


class StreamCursor:
    """Hands out the records of all partitions that one thread owns, in order within a partition."""

    def __init__(self, queue: ChunkQueue, lease: Lease, unacknowledged: Unacknowledged | None = None) -> None:
        """With `unacknowledged` acknowledgement is explicit."""
        self.queue = queue
        self._lease = lease
        self._unacknowledged = unacknowledged
        self._batches = HandedOutBatches()
        self.chunk: Chunk | None = None
        self._patience = anyio.CancelScope()  # waiting for the lease or acknowledgements; `close` ends it
        self._row = 0  # rows of the chunk that went into lots or batches
        self._lot = _native.Lot()
        self._loaded = False  # what makes batches
        self._looking = False  # a task is looking for what is next
        self._looked: anyio.Event | None = None  # waited for by those that want to do so after it, if there are any
        self._cut = False  # the chunk's remaining rows were dropped
        self._passed = 0  # the chunk is processed, or handed out for explicit acknowledgement, below this offset
        self._message: HandedOut | None = None  # what was in hand when the rest of its lot was given back
        self._claims = weakref.WeakSet[Progress]()  # those of which something was handed out
        self._batch: HandedOut | None = None  # in hand: the range of a batch
        self._last_of_batch = 0  # the offset of its last record
        # With explicit acknowledgement: the message or batch that was in hand before a look for the next, which may be
        # cancelled. It is the last one until the next is handed out.
        self._last: tuple[HandedOut | None, HandedOut | None] = None, None

    def __repr__(self) -> str:
        return f"at {self._passed} of {self.chunk} {self.queue}"

    def messages(self) -> AsyncIterator[Message]:
        return _native.MessageIterator(self._lot, self._allow_more)

    async def _allow_more(self) -> None:
        """Let more messages of the lot be taken, or of another one; none at the end of the stream."""
        await self._begin_looking()
        try:
            if self._lot:
                if self._unacknowledged is None:
                    self.ack()  # it is processed even if what follows is cancelled
                await anyio.lowlevel.checkpoint()
            while self._lot and not self._lease.held:
                await self._wait(self._lease.wait)
            if not self._lot:  # it may also have been given back meanwhile
                self._load_lot(await self._next_chunk())
            self._lot.allow(LOOK_SECONDS)
        except EndOfStream:
            return
        finally:
            self._end_looking()

    def _load_lot(self, chunk: Chunk) -> None:
        # A lot holds offsets, keys and values, and makes each message when it is taken. So a release takes back what
        # was not handed out by emptying the lot, and no message of it is left with the application. Timestamps and
        # headers are looked up in copies that the lot shares.
        # How much of a lot may be taken follows the application's speed (`allow`): the body of a loop may block. A fast
        # one must not delay the heartbeats by a thousand messages, and a slow one must not get messages long after the
        # lease has ended.
        most = LOT_ROWS if self._unacknowledged is None else min(COUNTED_LOT_ROWS, self._unacknowledged.room)
        records = chunk.records.slice(self._row, self._row + most)
        load(self._lot, records, chunk.progress, self._passed)
        self._take(len(records))

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        return _Batches(self._next_batch)

    async def _next_batch(self) -> pa.RecordBatch:
        if not self._loaded:
            # Arrow takes tenths of a second. Meanwhile the event loop fetches, and keeps the session alive.
            await in_thread(import_module, COLUMNS)
            self._loaded = True
        await self._begin_looking()
        try:
            chunk = await self._next_chunk()
        except EndOfStream:
            raise StopAsyncIteration from None
        finally:
            self._end_looking()
        batch = chunk.records.slice(self._row).columns()
        self._take(batch.num_rows)
        self._batch = HandedOut(chunk.progress, self._passed, chunk.until, batch.num_rows)
        self._last_of_batch = batch.column("offset")[-1].as_py()
        chunk.progress.hand_over(chunk.until)
        self._batches.add(batch, self._batch)
        return batch

    async def _begin_looking(self) -> None:
        """With explicit acknowledgement several tasks may iterate one stream: they look one after the other.

        Without it the record that a task works on would be committed once another task takes the next one.
        """
        if self._looking and self._unacknowledged is None:
            way_out = 'read it in one task, or with acknowledge="explicit"'
            raise RuntimeError(f"another task waits for the next record of this stream: {way_out}")
        while self._looking:
            if self._looked is None:
                self._looked = anyio.Event()
            await self._looked.wait()
        self._looking = True

    def _end_looking(self) -> None:
        self._looking = False
        if self._looked is not None:
            self._looked.set()
            self._looked = None

    def ack(self, taken: Message | pa.RecordBatch | None = None) -> bool:
        """See `KafkaStream.ack`."""
        if taken is not None or self._unacknowledged is not None:
            return self.ack_one(self.handed_out(taken))
        if self.chunk is None:
            return True
        if (message := self._in_hand()) is not None:
            self._mark(message.until)
            self._message = None
        elif self._batch is not None:
            self._mark(self._batch.until)
            self._batch = None
        return not self.chunk.progress.lost

    def handed_out(self, taken: Message | pa.RecordBatch | None) -> HandedOut | None:
        """The range to acknowledge; None if nothing is in hand. Raises ValueError for what was not handed out here."""
        if taken is None:
            message, batch = self._last
            return self._in_hand() or self._batch or message or batch
        found = handed_out(taken) if isinstance(taken, Message) else self._batches.find(taken)
        if found is None or (not found.progress.lost and found.progress not in self._claims):
            named = (
                f"{taken.topic}-{taken.partition} at {taken.offset}"
                if isinstance(taken, Message)
                else type(taken).__name__
            )
            raise ValueError(f"this stream has not handed out {named}")  # without the record: it may get into a log
        return found

    def ack_one(self, handed_out: HandedOut | None) -> bool:
        if handed_out is None:
            return True
        progress, first, until, records = handed_out
        progress.hand_over(until)
        if progress.mark(first, until) and self._unacknowledged is not None:
            self._unacknowledged.remove(progress, records)
        return not progress.lost

    def ack_below(self, offset: int) -> None:
        """Mark the part of the batch in hand below `offset` as processed; the rest stays in hand."""
        batch = self._batch if self._batch is not None or self._in_hand() is not None else self._last[1]
        if batch is not None:
            whole = offset > self._last_of_batch
            self.ack_one(batch if whole else batch._replace(until=offset, records=0))

    def checkpoint(self) -> None:
        """Report the application's progress to the partition's progress; the message in hand is not processed."""
        if (message := self._in_hand()) is not None and self.chunk is not None:
            self.chunk.progress.hand_over(message.until)
            if self._unacknowledged is None:
                self._mark(message.until - 1)

    def drop(self, progress: Progress) -> None:
        """The claim is closed: hand out nothing more of it. What is in hand may still be acknowledged."""
        self.queue.drop(progress)
        if self.chunk is not None and self.chunk.progress is progress:
            self.checkpoint()
            self._give_back_rows()
            self._drop_rest(self.chunk)

    def pause(self, progress: Progress) -> None:
        """Hand out nothing more of a claim until `resume`; the rest is held in the queue."""
        chunk, rest = self.chunk, None
        if chunk is not None and chunk.progress is progress and not self._cut:
            self._give_back_rows()
            if self._row < len(chunk.records):
                rest = chunk.rest(self._row, self._passed if self._message is None else self._message.until)
                self._drop_rest(chunk)
        self.queue.hold(progress, rest)

    def resume(self, progress: Progress) -> None:
        self.queue.unhold(progress)

    def close(self) -> None:
        """End the iteration; what was fetched and not handed out is dropped."""
        if self.chunk is not None:
            self.drop(self.chunk.progress)
        self._patience.cancel()
        self.queue.close()

    def _in_hand(self) -> HandedOut | None:
        """The range of the message handed out last."""
        return last_handed_out(self._lot) or self._message

    def _give_back_rows(self) -> None:
        """Drop the messages that were not handed out: they are due again."""
        self._message = self._in_hand()
        rest = len(self._lot)
        self._lot.clear()
        self._take(-rest)

    def _drop_rest(self, chunk: Chunk) -> None:
        self._cut = True
        chunk.records = NO_RECORDS  # they must not stay in memory for as long as the last one is in hand

    def _take(self, rows: int) -> None:
        """Count rows of the chunk as taken for the application."""
        self._row += rows
        if self._unacknowledged is not None and self.chunk is not None:
            self._unacknowledged.add(self.chunk.progress, rows)

    def _pass_on(self) -> None:
        """The next is taken: what was in hand is processed by that, unless acknowledgement is explicit."""
        last = self._message, self._batch
        passed = self._message or self._batch
        self._message = self._batch = None
        if passed is None:
            return
        if self._unacknowledged is None:
            self._mark(passed.until)
        else:
            self._last = last
            passed.progress.hand_over(passed.until)
            self._passed = passed.until

    async def _next_chunk(self) -> Chunk:
        """The chunk that has rows from `_row` on. What was in hand before is in hand no longer."""
        self._give_back_rows()
        self._pass_on()
        if (self.chunk is not None and self._row < len(self.chunk.records)) or self.queue:  # else it waits anyhow
            await anyio.lowlevel.checkpoint()  # a loop over what is queued must not delay the heartbeats
        while True:
            chunk = self.chunk
            if chunk is not None and not self._cut and self._row < len(chunk.records):
                if not self._lease.held:
                    await self._wait(self._lease.wait)
                    continue  # the claim may have been closed meanwhile
                if self._unacknowledged is not None and not self._unacknowledged.room:
                    await self._wait(self._unacknowledged.until_room)
                    continue
                return chunk
            if chunk is not None:
                if not self._cut:
                    self._mark(chunk.until)
                self.chunk = chunk = None  # frees its memory while this waits for the next
            chunk = await self.queue.get()
            if chunk.error is not None:
                raise chunk.error
            self.chunk, self._row, self._cut, self._passed = chunk, 0, False, chunk.first
            self._claims.add(chunk.progress)

    async def _wait(self, wait: Callable[[], Awaitable[None]]) -> None:
        with anyio.CancelScope() as self._patience:
            await wait()

    def _mark(self, until: int) -> None:
        assert self.chunk is not None
        progress = self.chunk.progress
        if until > self._passed:
            progress.hand_over(until)
            progress.mark(self._passed, until)
            self._passed = until


class _Batches:
    """Not a generator, which would end when it is cancelled, and keep its last batch in memory."""

    def __init__(self, next_batch: Callable[[], Awaitable[pa.RecordBatch]]) -> None:
        self._next_batch = next_batch

    def __aiter__(self) -> _Batches:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        return await self._next_batch()
