"""A stream over chunks that a test puts into its queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import pyarrow as pa
import pytest

from kzconsumer.consumer import KafkaStream
from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.streams.chunk_queue import ChunkQueue
from kzconsumer.streams.cursor import StreamCursor, Unacknowledged
from kzconsumer.zookeeper.session import Lease
from tests.support.chunks import TOPIC, LeaseInHand, put

LIMIT = 2.0


T = TypeVar("T")


class HeldStream(KafkaStream):
    """A stream with its cursor, as the member holds it."""

    def __init__(self, *chunks: Chunk, cursor: StreamCursor) -> None:
        super().__init__(TOPIC, 0, cursor)
        self.cursor = cursor
        put(cursor.queue, *chunks)


def stream_of(*chunks: Chunk, lease: Lease | None = None, explicit: bool = False) -> HeldStream:
    counted = Unacknowledged(1000) if explicit else None
    return HeldStream(*chunks, cursor=StreamCursor(ChunkQueue(1 << 20), lease or LeaseInHand(), counted))


async def take(iterator: AsyncIterator[T], number: int) -> list[T]:
    async with asyncio.timeout(LIMIT):
        return [await anext(iterator) for _ in range(number)]


async def take_offsets(stream: HeldStream, number: int) -> list[int]:
    """The offsets of the next messages; the last one stays in hand."""
    return [message.offset for message in await take(aiter(stream), number)]


def rows(batch: pa.RecordBatch) -> list[int]:
    return [offset for offset in batch.column("offset").to_pylist() if offset is not None]


def done(progress: Progress, stream: HeldStream) -> int:
    """What a commit would store now."""
    stream.cursor.checkpoint()
    assert progress.processed <= progress.consumed
    return progress.processed


async def assert_close_ends_a_wait(stream: HeldStream) -> None:
    """For a message; the iteration ends."""
    waiting = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0)
    stream.cursor.close()
    with pytest.raises(StopAsyncIteration):
        async with asyncio.timeout(LIMIT):
            await waiting
