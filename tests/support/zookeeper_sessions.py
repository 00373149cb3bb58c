"""What tests do to ZooKeeper sessions: open one under a deadline, wait for a condition, end one as the server would.

Owns nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.session import ConnectString, ZooKeeperSession


@asynccontextmanager
async def session(connect: str, timeout: float = 6.0) -> AsyncIterator[ZooKeeperSession]:
    """A connected session; closed at the end."""
    opened = ZooKeeperSession(ConnectString.parse(connect), timeout)
    with anyio.fail_after(20):
        await opened.__aenter__()
    try:
        yield opened
    finally:
        await opened.close()


async def until(condition: Callable[[], object], limit: float = 10.0) -> None:
    """Wait for the condition; TimeoutError after `limit` seconds."""
    with anyio.fail_after(limit):
        while not condition():
            await anyio.sleep(0.005)


async def expire(victim: ZooKeeperSession, connect: str) -> None:
    """End a session on the server, without waiting for its timeout. The victim learns it from its next handshake.

    A second connection takes the session over, by id and password, and closes it; again until the server knows the
    session no more, because the victim, which loses its connection over this, may take it back in between.
    """
    close = wire.close_session(lambda: None).body
    greeting = _frame(wire.handshake(victim.id, victim._life._password, victim.timeout, 0))
    known = True
    with anyio.fail_after(10):
        while known:
            reader, writer = await asyncio.open_connection(*ConnectString.parse(connect).hosts[0])
            with contextlib.suppress(OSError, EOFError, TimeoutError), anyio.fail_after(1):
                writer.write(greeting + _frame(struct.pack("!i", 1) + close))
                (size,) = struct.unpack("!i", await reader.readexactly(4))
                known = wire.established(await reader.readexactly(size)).session_id != 0
                await reader.read()
            writer.transport.abort()


def _frame(content: bytes) -> bytes:
    return struct.pack("!i", len(content)) + content
