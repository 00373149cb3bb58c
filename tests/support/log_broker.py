"""A broker in this process that answers Fetch with record bytes made by a test.

For bytes and response shapes that a real broker cannot be made to send on demand. It supports ApiVersions 0, Fetch 4
and ListOffsets 2 or 8, over a socket, so that everything from the connection on is the product's.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kzconsumer.brokers.protocol.versions import FETCH, LIST_OFFSETS
from kzconsumer.model import Broker

Log = Callable[[int, int], bytes]
"""(partition, offset) -> the record bytes that a response has of it; none for the end of the log."""

_IDLE = 0.05  # seconds before an empty answer


@asynccontextmanager
async def log_broker(
    log: Log,
    answering: Callable[[int], object] = int,
    end: Callable[[int], int] = lambda partition: 1 << 40,
    error: int = 0,
    asking: Callable[[int], object] = int,
    stable: Callable[[int], int] | None = None,
    local: int | None = None,
    waiting: Callable[[int], object] = int,
) -> AsyncIterator[Broker]:
    """A broker that leads every requested partition; `answering` is called with the size of each response.

    `end` gives the end of a partition's log, `stable` its last stable offset if that is another, `error` is the code in
    every response, `asking` is called with the most bytes of a partition that a request allows. `local`: where the part
    of each log begins that is on the broker's disks; None: the broker does not know it, as those before 3.4. `waiting`
    is called with the milliseconds for which a request lets the broker hold the answer back.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                api_key, _, correlation, client = struct.unpack_from(">hhih", request)
                if api_key == FETCH:
                    parts = []
                    waiting(struct.unpack_from(">i", request, 14 + client)[0])
                    for partition, offset, most in _asked(request[10 + client :]):
                        asking(most)
                        parts.append((partition, log(partition, offset)))
                    if not any(records for _, records in parts):
                        await asyncio.sleep(_IDLE)
                    body = _fetched(parts, end, stable or end, error)
                    answering(len(body))
                elif api_key == LIST_OFFSETS:
                    assert local is not None
                    body = b"\0" + _listed(request[11 + client :], local)  # after the header's tagged fields
                else:
                    newest = 2 if local is None else 8
                    body = struct.pack(">hihhhhhh", 0, 2, FETCH, 4, 4, LIST_OFFSETS, newest, newest)
                writer.write(struct.pack(">ii", 4 + len(body), correlation) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # asyncio.start_server logs a cancelled handler as an error
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield Broker(1, "127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _asked(body: bytes) -> list[tuple[int, int, int]]:
    """(partition, offset, most bytes) in the order of the request, which names a single topic."""
    (topic,) = struct.unpack_from(">h", body, 21)
    (count,) = struct.unpack_from(">i", body, 23 + topic)
    return list(struct.iter_unpack(">iqi", body[27 + topic : 27 + topic + 16 * count]))


def _listed(body: bytes, offset: int) -> bytes:
    """The answer of version 8 for the one partition that the request names."""
    assert body[5] == 2  # an array of one topic
    name = body[6 : 6 + body[6]]  # with its size
    (partition,) = struct.unpack_from(">i", body, 6 + len(name) + 1)
    return struct.pack(">iB", 0, 2) + name + struct.pack(">BihqqiBBB", 2, partition, 0, -1, offset, 0, 0, 0, 0)


def _fetched(
    parts: list[tuple[int, bytes]], end: Callable[[int], int], stable: Callable[[int], int], error: int
) -> bytes:
    topic = b"orders"
    found = [struct.pack(">iih", 0, 1, len(topic)) + topic + struct.pack(">i", len(parts))]
    for partition, records in parts:
        found += (
            struct.pack(">ihqqii", partition, error, end(partition), stable(partition), -1, len(records)),
            records,
        )
    return b"".join(found)
