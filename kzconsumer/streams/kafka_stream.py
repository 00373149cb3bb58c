"""A stream of one topic's records, for one thread: `async for message in stream`, or `stream.batches()`.

Owns the place inside the current chunk. Application code iterates; the connector closes and drops. Fetched and consumed
positions are separate: the fetcher runs ahead, and consumption is marked here as things are taken. A message or batch
is *processed* when it is acknowledged: by taking the next one, or, where that is left to the application, by `ack()`
alone, in any order. All iterators of a stream share its one place, as in Kafka.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import islice
from operator import length_hint
from typing import TypeAlias

import anyio
import anyio.lowlevel
import pyarrow as pa

from kzconsumer.clock import now
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.streams.chunk import Chunk
from kzconsumer.streams.chunk_queue import ChunkQueue, EndOfStream
from kzconsumer.streams.message import HandedOut, Message
from kzconsumer.streams.unacknowledged import HandedOutBatches, Unacknowledged
from kzconsumer.zookeeper.lease import Lease

# Rows made into objects at a time: fewer cost more per row. Between two lots the event loop gets its turn, so a loop
# body that holds it for long (a blocking driver) gets small lots: heartbeats must not wait for a thousand of them.
MOST_ROWS = 1000
FIRST_ROWS = 50
LOT_SECONDS = 0.02
# Messages that an application gets for one look at the lease, when a thousand take it a moment.
FAST_ROWS = 250

SetAside: TypeAlias = Callable[[Message, str, str, Callable[[], bool]], Awaitable[bool]]
"""Puts a message aside for a class of errors and a reason, unless its partition is lost: False then."""


class KafkaStream:
    """One thread's records, of every partition it owns; order is kept within a partition.

    A cancelled `anext()` ends that iterator, as it does any generator's; `aiter(stream)` goes on at the same place.
    """

    def __init__(
        self,
        topic: str | None,
        thread: int,
        queue: ChunkQueue,
        lease: Lease,
        unacknowledged: Unacknowledged | None = None,
        set_aside: SetAside | None = None,
    ) -> None:
        """`topic` is None for a stream of a white or black list, which brings records of all its topics.

        With `unacknowledged` acknowledgement is explicit: `ack` alone makes what was taken count as processed.
        Without `set_aside` nothing can be rejected.
        """
        self.topic = topic
        self.thread = thread
        self.queue = queue
        self._lease = lease
        self._unacknowledged = unacknowledged
        self._set_aside = set_aside
        self._batches = HandedOutBatches()
        self._chunk: Chunk | None = None
        self._patience = anyio.CancelScope()  # for the lease, for acknowledgements; `close` ends it
        self._row = 0  # rows of the chunk made into messages or batches
        self._lot = FIRST_ROWS
        self._cut = False  # the chunk's remaining rows were dropped
        self._passed = 0  # everything of the chunk below this offset is processed, or the application's to acknowledge
        self._rows: list[Message] = []
        self._rest: Iterator[Message] = iter(self._rows)
        self._message: Message | None = None  # what was in hand when the rows were given back
        self._batch: HandedOut | None = None  # in hand: what a batch stands for

    def __repr__(self) -> str:
        return f"<KafkaStream {self.topic or '*'}/{self.thread} at {self._passed} of {self._chunk} {self.queue}>"

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Message]:
        handed_out = now()
        while True:
            # Emptying the list ends these loops at once: that is how a release takes back what was not handed out.
            # The lease is asked within a lot, too: the process may have stood still in the middle of it. A slow
            # application has it asked before each message.
            rows = FAST_ROWS if self._lot == MOST_ROWS else 1
            while length_hint(self._rest):
                if not self._lease.held:
                    if self._unacknowledged is None:
                        self.ack()
                    await self._wait_for_lease()
                for message in islice(self._rest, rows):
                    yield message
            self._lot = next_lot(self._lot, now() - handed_out)
            try:
                chunk = await self._next_chunk()
            except EndOfStream:
                return
            most = self._lot if self._unacknowledged is None else min(self._lot, self._unacknowledged.room)
            self._rows = chunk.messages(self._row, most, self._passed)
            del chunk
            self._take(len(self._rows))
            self._rest = iter(self._rows)
            handed_out = now()

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The same records as Arrow record batches (columns: `kzconsumer.records.columns.SCHEMA`), as fetched."""
        while True:
            try:
                chunk = await self._next_chunk()
            except EndOfStream:
                return
            batch = chunk.records.slice(self._row).columns()
            self._take(batch.num_rows)
            self._batch = HandedOut(chunk.tracker, self._passed, chunk.until, batch.num_rows)
            chunk.tracker.hand_over(chunk.until)
            self._batches.add(batch, self._batch)
            del chunk
            yield batch
            del batch  # only the application may keep it in memory while this waits for the next one

    def ack(self, taken: Message | pa.RecordBatch | None = None) -> bool:
        """A message or batch of this stream is processed, or what is in hand: a commit from now on includes it.

        In any order: committed is what everything before is acknowledged of, too. To acknowledge twice changes nothing.
        False when it counts for nothing: its partition was lost, or given up, or sought elsewhere since it was handed
        out, and whoever has the partition now is given it again. Raises ValueError for what this stream has not handed
        out, such as a slice of a batch.
        """
        if taken is not None or self._unacknowledged is not None:
            return self._ack_one(self._handed_out(taken))
        if self._chunk is None:
            return True
        if (message := self._in_hand()) is not None:
            self._mark(message.offset + 1)
            self._message = None
        elif self._batch is not None:
            self._mark(self._batch.until)
            self._batch = None
        return not self._chunk.tracker.lost

    async def reject(self, message: Message, reason: str, *, error_class: str = "rejected") -> bool:
        """The message cannot be used: do with it as `[rejected]` says for its class of errors, then acknowledge it.

        Returns when the dead letter is on disk or in its topic, which is before its offset can be committed; while it
        cannot be written this waits, and so does a loop that awaits it. False when its partition was lost meanwhile:
        whoever has it now is given the record again. Raises RecordRejected when the policy is "fail", and ValueError
        as `ack` does.
        """
        handed_out = self._handed_out(message)
        if handed_out is None or self._set_aside is None:
            raise RuntimeError("this stream has nobody to take what is rejected")
        claim = handed_out.claim
        if claim.lost or not await self._set_aside(message, error_class, reason, lambda: claim.lost):
            return False
        return self._ack_one(handed_out)

    def _handed_out(self, taken: Message | pa.RecordBatch | None) -> HandedOut | None:
        """What is to be acknowledged; None when nothing is in hand."""
        if taken is None:
            return message.handed_out() if (message := self._in_hand()) is not None else self._batch
        found = taken.handed_out() if isinstance(taken, Message) else self._batches.find(taken)
        counts = self._unacknowledged
        if found is None or (counts is not None and not found.claim.lost and not counts.knows(found.claim)):
            raise ValueError(f"this stream has not handed out {taken!r:.200}")
        return found

    def _ack_one(self, handed_out: HandedOut | None) -> bool:
        if handed_out is None:
            return True
        claim, first, until, records = handed_out
        claim.hand_over(until)
        if claim.mark(first, until) and self._unacknowledged is not None:
            self._unacknowledged.remove(claim, records)
        return not claim.lost

    def ack_below(self, offset: int) -> None:
        """Of the batch in hand what lies below `offset` is processed; the rest stays in hand."""
        if self._batch is not None:
            self._mark(min(offset, self._batch.until))

    def checkpoint(self) -> None:
        """Tell the claim's tracker how far the application has come; the message in hand is not processed."""
        if (message := self._in_hand()) is not None and self._chunk is not None:
            self._chunk.tracker.hand_over(message.offset + 1)
            if self._unacknowledged is None:
                self._mark(message.offset)

    def drop(self, tracker: OffsetTracker) -> None:
        """The claim is closed: hand out nothing more of it. What is in hand may still be marked."""
        self.queue.drop(tracker)
        if self._chunk is not None and self._chunk.tracker is tracker:
            self.checkpoint()
            self._give_back_rows()
            self._cut = True

    def pause(self, tracker: OffsetTracker) -> None:
        """Hand out nothing more of a claim until `resume`; what is not handed out is kept back."""
        chunk, rest = self._chunk, None
        if chunk is not None and chunk.tracker is tracker and not self._cut:
            self._give_back_rows()
            if self._row < len(chunk.records):
                rest = chunk.rest(self._row, self._passed if self._message is None else self._message.offset + 1)
                self._cut = True
        self.queue.hold(tracker, rest)

    def resume(self, tracker: OffsetTracker) -> None:
        self.queue.let_go(tracker)

    def close(self) -> None:
        """The iteration ends; what was fetched and not handed out is dropped."""
        if self._chunk is not None:
            self.drop(self._chunk.tracker)
        self._patience.cancel()
        self.queue.close()

    def _in_hand(self) -> Message | None:
        """The message handed out last: told from the iterator's place, since keeping it would cost each message."""
        taken = len(self._rows) - length_hint(self._rest)
        return self._rows[taken - 1] if taken else self._message

    def _give_back_rows(self) -> None:
        """What was made into messages and not handed out is to be made anew; what is in hand stays so."""
        self._message = self._in_hand()
        self._take(-length_hint(self._rest))
        self._rows.clear()

    def _take(self, rows: int) -> None:
        """So many rows of the chunk are taken for the application."""
        self._row += rows
        if self._unacknowledged is not None and self._chunk is not None:
            self._unacknowledged.add(self._chunk.tracker, rows)

    def _pass_on(self) -> None:
        """The next is taken: what was in hand is processed by that, or left to the application."""
        if self._unacknowledged is None:
            self.ack()
            return
        handed_out = self._batch if self._message is None else self._message.handed_out()
        if handed_out is not None:
            handed_out.claim.hand_over(handed_out.until)
            self._passed = handed_out.until
        self._message = self._batch = None

    async def _next_chunk(self) -> Chunk:
        """The one that has rows from `_row` on. What was in hand before is in hand no longer."""
        self._give_back_rows()
        self._pass_on()
        await anyio.lowlevel.checkpoint()  # a loop over what is queued must not hold up the heartbeats
        while True:
            chunk = self._chunk
            if chunk is not None and not self._cut and self._row < len(chunk.records):
                if not self._lease.held:
                    await self._wait_for_lease()
                    continue  # the claim may have been closed meanwhile
                if self._unacknowledged is not None and not self._unacknowledged.room:
                    await self._wait_for_room(self._unacknowledged)
                    continue
                return chunk
            if chunk is not None:
                if not self._cut:
                    self._mark(chunk.until)
                self._chunk = chunk = None  # not to be kept in memory by who waits for the next
            chunk = await self.queue.get()
            if chunk.error is not None:
                raise chunk.error
            self._chunk, self._row, self._cut, self._passed = chunk, 0, False, chunk.first

    async def _wait_for_lease(self) -> None:
        """Until it is held, or the stream is closed."""
        with anyio.CancelScope() as self._patience:
            await self._lease.wait()

    async def _wait_for_room(self, unacknowledged: Unacknowledged) -> None:
        """Until something is acknowledged, or the stream is closed."""
        with anyio.CancelScope() as self._patience:
            await unacknowledged.until_room()

    def _mark(self, until: int) -> None:
        assert self._chunk is not None
        tracker = self._chunk.tracker
        if until > self._passed:
            tracker.hand_over(until)
            tracker.mark(self._passed, until)
            self._passed = until


def next_lot(rows: int, seconds: float) -> int:
    """How many rows to make next, when the last `rows` kept the application busy for `seconds`."""
    if seconds <= LOT_SECONDS:
        return min(rows * 2, MOST_ROWS)
    return max(int(rows * LOT_SECONDS / seconds), 1)
