"""A TCP proxy with the faults of networks: FIN, RST, silence, a truncated frame, bytes one by one.

Tests put it between a client and a real server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Self

import anyio


class FaultProxy:
    """`async with FaultProxy(host, port) as proxy:`, then connect to `proxy.connect`. Passes bytes by default.

    `silent`: what either side sends is lost, on every connection, including new ones, and so is its FIN. `mute`: only
    what the server sends is lost. A direction that has lost bytes stays silent when the proxy passes again.
    """

    def __init__(self, host: str, port: int, *, listen: int = 0) -> None:
        self.silent = False
        self.mute = False
        self.trickle = False
        """The server's bytes are written one by one."""
        self.cut_reply_after: int | None = None
        """So many more bytes from the server, then FIN."""
        self.lose_answer_to: bytes | None = None
        """The next request with these bytes reaches the server; its answer is lost, and the connection with it."""
        self.accepted = 0
        self.port = listen
        self._upstream = host, port
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __repr__(self) -> str:
        return (
            f"<FaultProxy {self.connect} -> {self._upstream} connections={len(self._pairs)} accepted={self.accepted}>"
        )

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._pairs)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.refuse()

    async def listen(self) -> None:
        """Accept connections, on the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Stop listening and reset what is open: as if no process were there."""
        if self._server:
            self._server.close()
            self._server = None
        self.reset()
        with anyio.fail_after(10):
            await self._idle.wait()

    def finish(self) -> None:
        """FIN to both sides of every connection."""
        for pair in self._pairs:
            pair.close(reset=False)

    def reset(self) -> None:
        """RST to both sides of every connection."""
        for pair in self._pairs:
            pair.close(reset=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        except BaseException:
            writer.transport.abort()
            raise
        pair = _Pair(writer, up_writer)
        self._pairs.add(pair)
        self._idle.clear()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump, pair, reader, up_writer, False)
                tasks.start_soon(self._pump, pair, up_reader, writer, True)
        finally:
            pair.close(reset=False)
            self._pairs.discard(pair)
            if not self._pairs:
                self._idle.set()

    async def _pump(
        self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, from_server: bool
    ) -> None:
        with contextlib.suppress(OSError):
            async for data in _chunks(reader):
                if self.silent or (self.mute and from_server):
                    pair.broken[from_server] = True
                if pair.broken[from_server]:
                    continue
                if from_server and pair.loses_answer:
                    break
                if from_server:
                    await self._answer(pair, writer, data)
                else:
                    if self.lose_answer_to is not None and self.lose_answer_to in data:
                        self.lose_answer_to = None
                        pair.loses_answer = True
                    writer.write(data)
                    await writer.drain()
        if not (from_server and (self.silent or pair.broken[True])):
            pair.close(reset=False)

    async def _answer(self, pair: _Pair, writer: asyncio.StreamWriter, data: bytes) -> None:
        cut = self.cut_reply_after
        if cut is not None:
            data = data[:cut]
            self.cut_reply_after = cut - len(data)
        for part in [bytes([byte]) for byte in data] if self.trickle else [data]:
            writer.write(part)
            await writer.drain()
            if self.trickle:
                await anyio.sleep(0.001)
        if self.cut_reply_after == 0:
            self.cut_reply_after = None
            pair.close(reset=False)


class _Pair:
    """The two sockets of one connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._writers = client, server
        self.broken = {True: False, False: False}  # from the server, from the client
        self.loses_answer = False

    def close(self, *, reset: bool) -> None:
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            if reset and sock is not None and sock.fileno() >= 0:
                # Linger for 0 s: close() discards unsent data and sends RST.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            else:
                writer.close()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(65536):
        yield data
