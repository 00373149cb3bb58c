"""The transaction log of a real server is read completely: the interop runs judge members by it."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator

import anyio
import pytest

from kzconsumer.errors import MultiFailedError
from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.operations import Check, Create, Delete, SetData
from kzconsumer.zookeeper.wire import established
from kzconsumer_sandbox.servers.kafka_servers import ZooKeeperServer
from tests.interop import txn_log
from tests.interop.committed import committed
from tests.interop.txn_log import CloseSession, CreateSession, Txn, read_folder
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session


@pytest.fixture
def server(servers: Servers, unique: str) -> Iterator[ZooKeeperServer]:
    """One of its own, whose log has nothing else."""
    started = servers.own_zookeeper(f"txn-log-{unique}")
    yield started
    started.kill()


async def test_every_change_is_read(server: ZooKeeperServer) -> None:
    before = time.time()
    async with session(server.connect) as zookeeper:
        await zookeeper.create("/a", b"one")
        await zookeeper.create("/a/e", "zwölf".encode(), ephemeral=True)
        await zookeeper.set("/a", b"", 0)
        await zookeeper.multi([Create("/b", b"x"), SetData("/b", b"y", 0), Check("/a", 1), Delete("/a/e", 0)])
        with pytest.raises(MultiFailedError):
            await zookeeper.multi([Create("/c", b""), Check("/a", 7)])
        await zookeeper.delete("/b", -1)
        number = zookeeper.id
    history = _read(server)
    assert [change for each in history for change in each.changes] == [
        CreateSession(6000),
        txn_log.Create("/a", b"one", ephemeral=False),
        txn_log.Create("/a/e", "zwölf".encode(), ephemeral=True),
        txn_log.SetData("/a", b"", 1),
        txn_log.Create("/b", b"x", ephemeral=False),
        txn_log.SetData("/b", b"y", 1),
        txn_log.Delete("/a/e"),
        txn_log.Delete("/b"),
        CloseSession(),
    ]
    assert {each.session for each in history} == {number}
    assert all(before - 0.001 <= each.time / 1000 <= time.time() for each in history)
    assert history[-1].cxid > 0


async def test_an_expired_session_was_closed_by_the_server(server: ZooKeeperServer) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    greeting = wire.handshake(0, bytes(16), 1.0, 0)
    writer.write(struct.pack("!i", len(greeting)) + greeting)
    (size,) = struct.unpack("!i", await reader.readexactly(4))
    number = established(await reader.readexactly(size)).session_id
    writer.transport.abort()
    ends: list[Txn] = []
    with anyio.fail_after(20):
        while not ends:
            await anyio.sleep(0.05)
            ends = [each for each in _read(server) if each.session == number and CloseSession() in each.changes]
    assert ends[0].cxid == 0


def _read(server: ZooKeeperServer) -> list[Txn]:
    """Of a server that still runs: what it has answered is in its log."""
    return committed([read_folder(server.folder / "data" / "version-2")])
