"""Operations of tests on ZooKeeper sessions: open one under a deadline, wait, end one as the server would, count
requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from kzconsumer.errors import ConnectionLostError
from kzconsumer.zookeeper.credentials import Access
from kzconsumer.zookeeper.operations import ConnectString
from kzconsumer.zookeeper.session import ZooKeeperSession


@asynccontextmanager
async def session(connect: str, timeout: float = 6.0) -> AsyncIterator[ZooKeeperSession]:
    """A connected session; closed at the end."""
    opened = ZooKeeperSession(ConnectString.parse(connect), timeout)
    with anyio.fail_after(60):  # servers that have just been started need that long on a busy machine
        await opened.__aenter__()
    try:
        yield opened
    finally:
        await opened.close()


async def make_chroot(connect: str) -> None:
    """That of `connect`, which brokers without ZooKeeper do not create."""
    hosts, _, chroot = connect.partition("/")
    async with session(hosts) as above:
        await above.ensure(f"/{chroot}")


async def until(condition: Callable[[], object], limit: float = 10.0) -> None:
    """Wait for the condition; TimeoutError after `limit` seconds. Polling takes a fifth of a processor at most."""
    with anyio.fail_after(limit):
        while True:
            began = time.monotonic()
            if condition():
                return
            await anyio.sleep(max(0.005, 4 * (time.monotonic() - began)))


async def expire(victim: ZooKeeperSession, connect: str) -> None:
    """End a session on the server, without waiting for its timeout. The victim learns it at its next handshake.

    A second connection takes the session over, by id and password, and closes it; repeatedly, until the server no
    longer knows the session, because the victim, which loses its connection by this, may take it back in between.
    """
    former = victim.former
    assert former is not None
    former.kept_until = 0.0
    known = True
    with anyio.fail_after(10):
        while known:
            with contextlib.suppress(ConnectionLostError, TimeoutError):
                known = await former.end(ConnectString.parse(connect).hosts[0], Access())


async def received_by_session(host: str, port: int) -> dict[int, int]:
    """Session -> packets the server received from it on its current connection, as its command `cons` reports."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"cons")
    text = (await reader.read(-1)).decode()
    writer.close()
    found = re.findall(r"recved=(\d+),.*?sid=0x([0-9a-f]+)", text)
    return {struct.unpack("!q", int(sid, 16).to_bytes(8))[0]: int(number) for number, sid in found}


async def readable(session: ZooKeeperSession, path: str) -> None:
    """The node can be read, if necessary on the next connection."""
    while True:
        try:
            await session.get(path)
        except ConnectionLostError:
            continue
        return
