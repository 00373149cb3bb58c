"""One record as application code sees it, and rows of them out of a column batch.

Pure. Called by streams/kafka_stream only.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, cast

import msgspec
import pyarrow as pa

NO_HEADERS: tuple[tuple[str, bytes | None], ...] = ()


class Message(msgspec.Struct, frozen=True, gc=False):
    """A Kafka record (`kafka.message.MessageAndMetadata`, with headers).

    `timestamp` is in milliseconds since 1970 (None when the record has none), `timestamp_type` 0 for the producer's
    clock, 1 for the broker's, -1 for none. `headers` are (key, value) pairs in the order they were produced.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_type: int


def messages(batch: pa.RecordBatch, topic: str, partition: int) -> list[Message]:
    """The rows of a batch of one partition, as messages."""
    headers = cast("pa.ListArray[Any]", batch.column(6))
    rows = (
        (tuple((pair["key"], pair["value"]) for pair in row or ()) for row in headers.to_pylist())
        if len(headers.flatten())
        else repeat(NO_HEADERS)
    )
    return list(
        map(
            Message,
            repeat(topic, batch.num_rows),
            repeat(partition),
            batch.column(2).to_pylist(),
            batch.column(3).to_pylist(),
            batch.column(4).to_pylist(),
            batch.column(5).view(pa.int64()).to_pylist(),
            rows,
            batch.column(7).to_pylist(),
        )
    )
