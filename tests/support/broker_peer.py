"""The other end of a connection to a broker: a socket whose bytes a test decides."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol.log_reads import ListOffsetsRequest
from kzconsumer.brokers.transport import Security
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.security.sasl import with_password

VERSIONS = bytes.fromhex("0000 00000002 0002 0000 0001 0012 0000 0003")  # ListOffsets 0 to 1, ApiVersions 0 to 3


T0 = TopicPartition("t", 0)


REQUEST = ListOffsetsRequest({T0: -1})


def listed(offset: int) -> bytes:
    return bytes.fromhex("00000001 0001 74 00000001 00000000 0000 ffffffffffffffff") + offset.to_bytes(8, "big")


class Peer:
    """The other end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number

    async def request(self) -> tuple[int, int]:
        """(api key, correlation id) of the next request."""
        frame = await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))
        return int.from_bytes(frame[:2], "big"), int.from_bytes(frame[4:8], "big")

    def answer(self, correlation: int, body: bytes) -> None:
        self.writer.write((4 + len(body)).to_bytes(4, "big") + correlation.to_bytes(4, "big") + body)

    async def greet(self) -> None:
        api_key, correlation = await self.request()
        assert api_key == 18
        self.answer(correlation, VERSIONS)


@asynccontextmanager
async def listening(
    serve: Callable[[Peer], Awaitable[None]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Broker]:
    """`serve` is called for each connection, which is closed when it returns; an exception in it fails the test."""
    tasks: list[asyncio.Task[None]] = []
    connections = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        connections += 1
        try:
            await serve(Peer(reader, writer, connections))
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Broker(7, "127.0.0.1", port)
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(
                outcome, asyncio.CancelledError | asyncio.IncompleteReadError | ConnectionError
            ):
                raise outcome


async def open_to(broker: Broker, timeout: float = 10.0, security: Security | None = None) -> BrokerConnection:
    return await BrokerConnection.open(broker, client_id="test", timeout=timeout, security=security or Security())


async def greet_and_wait(peer: Peer) -> None:
    await peer.greet()
    await peer.reader.read()


VERSIONS_WITH_SASL = bytes.fromhex("0000 00000003 0002 0000 0001 0011 0000 0000 0012 0000 0003")


def as_user(password: str = "secret") -> Security:
    return Security(sasl=with_password("PLAIN", "me", password.encode()))
