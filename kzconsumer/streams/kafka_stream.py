"""A stream of one topic's records, for one thread: `async for message in stream`, or `stream.batches()`.

A message or batch is *processed* when it is acknowledged: by taking the next one, or, with explicit acknowledgement, by
`ack()` alone, in any order. All iterators of a stream share one position, as in Kafka.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from kzconsumer.streams.cursor import StreamCursor
from kzconsumer.streams.message import Message

if TYPE_CHECKING:
    import pyarrow as pa

SetAside: TypeAlias = Callable[[Message, str, str, Callable[[], bool]], Awaitable[bool]]
"""Handles a rejected message: its class of errors, the reason, whether its partition is lost. False if it was lost."""


class KafkaStream:
    """The records of all partitions that one thread owns, in order within a partition.

    A cancelled `anext()` takes nothing, and the iteration may go on.
    """

    def __init__(self, topic: str | None, thread: int, cursor: StreamCursor, set_aside: SetAside | None = None) -> None:
        """`topic` is None for a stream of a topic filter, which has records of all its topics.

        Without `set_aside` nothing can be rejected.
        """
        self.topic = topic
        self.thread = thread
        self._cursor = cursor
        self._set_aside = set_aside

    def __repr__(self) -> str:
        return f"<KafkaStream {self.topic or '*'}/{self.thread} {self._cursor}>"

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._cursor.messages()

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The same records as Arrow record batches (columns: `kzconsumer.records.columns.SCHEMA`), as fetched."""
        return self._cursor.batches()

    def ack(self, taken: Message | pa.RecordBatch | None = None) -> bool:
        """Mark a message or batch of this stream as processed, without argument the last one: commits include it.

        Order does not matter: an offset is committed once everything before it is acknowledged, too. Acknowledging
        twice changes nothing. False if it has no effect: the partition was lost, released or sought elsewhere since,
        and its present owner gets the record again. Raises ValueError for what this stream has not handed out, such as
        a slice of a batch.
        """
        return self._cursor.ack(taken)

    def ack_below(self, offset: int) -> None:
        """Mark the part of the batch in hand below `offset` as processed; the rest stays in hand."""
        self._cursor.ack_below(offset)

    async def reject(self, message: Message, reason: str, *, error_class: str = "rejected") -> bool:
        """Handle a message that cannot be used as `[rejected]` says for its class of errors, then acknowledge it.

        Returns once the dead letter is on disk or in its topic, and waits while it cannot be written. False if the
        partition was lost meanwhile: its present owner gets the record again. Raises RecordRejectedError if the policy
        is "fail", and ValueError as `ack` does.
        """
        handed_out = self._cursor.handed_out(message)
        if handed_out is None or self._set_aside is None:
            raise RuntimeError("this stream cannot reject messages")
        claim = handed_out.claim
        if claim.lost or not await self._set_aside(message, error_class, reason, lambda: claim.lost):
            return False
        return self._cursor.ack_one(handed_out)
