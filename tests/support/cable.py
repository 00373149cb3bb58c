"""A TCP connection through a network that can be cut: meanwhile nothing gets through, and nothing is lost.

The ensemble puts one between every two of its servers. Unlike FaultProxy it breaks no connection: data in flight
arrives when the cable is mended, as TCP retransmits it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

import anyio

PATIENCE = 1.0
"""Seconds; a follower spends half of it on its tries."""


class Cable:
    """`async with Cable(host, port) as cable:`; a connection to `cable.port` reaches `host:port`."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._far_end = host, port
        self._whole = anyio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    def __repr__(self) -> str:
        return f"<Cable {self.port} -> {self._far_end} {'whole' if self._whole.is_set() else 'cut'}>"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1")
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.mend()
        for writer in self._open:
            writer.transport.abort()
        with anyio.fail_after(10):
            while self._open:
                await anyio.sleep(0.01)

    def cut(self) -> None:
        """From now on bytes, FINs and new connections wait, in both directions."""
        self._whole = anyio.Event()

    def mend(self) -> None:
        self._whole.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        far_writer: asyncio.StreamWriter | None = None
        try:
            await self._whole.wait()
            far_reader, far_writer = await self._dial()
            self._open.add(far_writer)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._carry, reader, far_writer)
                tasks.start_soon(self._carry, far_reader, writer)
        except OSError:
            pass  # the far end does not listen
        finally:
            for end in (writer, far_writer):
                if end is not None:
                    end.transport.abort()
                    self._open.discard(end)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new follower retries if the port does not listen yet; as we accepted its connection, we must retry."""
        deadline = anyio.current_time() + PATIENCE
        while True:
            try:
                return await asyncio.open_connection(*self._far_end)
            except OSError:
                if anyio.current_time() > deadline:
                    raise
                await anyio.sleep(0.02)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        await self._whole.wait()
        writer.close()
