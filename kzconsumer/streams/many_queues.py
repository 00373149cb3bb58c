"""Takes the chunks of several streams, which take turns by bytes: for a sink, which has those of all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import anyio

from kzconsumer.streams.chunk import Chunk
from kzconsumer.streams.chunk_queue import ChunkQueue, EndOfStream
from kzconsumer.streams.turns import Turns


class ManyQueues:
    """The only taker of these queues."""

    def __init__(self, queues: Sequence[ChunkQueue]) -> None:
        self._queues = queues
        self._turns = Turns[ChunkQueue]()
        self._arrival = anyio.Event()
        for queue in queues:
            queue.listen(partial(self._arrived, queue))
            self._arrived(queue)

    async def get(self) -> Chunk:
        """The next chunk of an open claim. Raises EndOfStream once all are closed. Cancelled, it takes nothing."""
        while True:
            while (queue := self._turns.next()) is not None:
                chunk = queue.get_nowait()
                size = max(chunk.size, len(chunk.records)) if chunk is not None else 0
                self._turns.took(queue, size, more=bool(queue))
                if chunk is not None:
                    return chunk
            if all(queue.closed for queue in self._queues):
                raise EndOfStream
            self._arrival = anyio.Event()
            await self._arrival.wait()

    def _arrived(self, queue: ChunkQueue) -> None:
        if queue:
            self._turns.come(queue)
        self._arrival.set()
