"""Finds the records that a sink rejects in its batch, and has `[rejected]` decide about them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np

from kzconsumer.errors import RecordRejected, SinkFailed
from kzconsumer.model import TopicPartition
from kzconsumer.records.forms import ColumnRecords
from kzconsumer.rejected.rejects import RejectedRecord
from kzconsumer.sinks.interface import Batch, RangeData, RecordsRejected, Rejected
from kzconsumer.streams.message import Message, messages

HandleRejected: TypeAlias = Callable[[Sequence[RejectedRecord], Callable[[], bool]], Awaitable[bool]]

# Made into messages, and written as dead letters, at a time.
_PIECE = 500


async def handle_rejected(
    handle: HandleRejected, batch: Batch, rejected: RecordsRejected, lost: Callable[[], bool]
) -> None:
    """Returns when each is handled as `[rejected]` says, or lost. Raises SinkFailed if its policy is "fail"."""
    found = _found(batch, rejected.records)
    try:
        while piece := list(islice(found, _PIECE)):
            if not await handle(piece, lost):
                return
    except (RecordRejected, ValueError) as error:
        raise SinkFailed(str(error)) from error


def _found(batch: Batch, records: Sequence[Rejected]) -> Iterator[RejectedRecord]:
    parts = {part.topic_partition: part for part in batch.ranges}
    for record in records:
        at = TopicPartition(record.topic, record.partition)
        message = _message(parts[at], record.offset) if at in parts else None
        if message is None:
            raise ValueError(f"the sink rejects {at} at offset {record.offset}, which its batch does not have")
        yield RejectedRecord(message, record.error_class, record.reason)


def _message(part: RangeData, offset: int) -> Message | None:
    for batch in part.batches:
        offsets = batch.column("offset").to_numpy()
        row = int(np.searchsorted(offsets, offset))
        if row < len(offsets) and offsets[row] == offset:
            return messages(ColumnRecords(batch).slice(row, row + 1).rows(), part.topic_partition)[0]
    return None
