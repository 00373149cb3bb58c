"""What tests do to ZooKeeper sessions: open one under a deadline, wait for a condition, end one as the server would.

Owns nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

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
        while not condition():  # noqa: ASYNC110  (any condition: nothing to be told by)
            await anyio.sleep(0.005)


async def expire(victim: ZooKeeperSession, connect: str) -> None:
    """End a session on the server: a twin takes it over, by id and password, and closes it.

    The server then answers the victim's next handshake as it does after a timeout, without our waiting for one.
    """
    twin = ZooKeeperSession(ConnectString.parse(connect), victim.timeout)
    twin._life.id, twin._life._password = victim._life.id, victim._life._password
    async with twin:
        assert twin.id == victim.id
