"""The network between processes and servers: bytes arrive late and in order, or not at all.

`SimulatedNetwork` owns the connections and their faults. Faults are those of TCP: a connection that breaks with
requests or replies in flight, a process without any network, slow lines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from kzconsumer.zookeeper.operations import Check
from tests.support.simulated import zookeeper_frames as frames
from tests.support.simulated.ensemble import Connection, Ensemble
from tests.support.simulated.virtual_time import Process

P = TypeVar("P", bound=asyncio.Protocol)

QUICK = (0.0003, 0.003)
SLOW = (0.01, 0.6)


class SimulatedNetwork:
    """Hosts are `zk0`, `zk1`, ...: the ensemble's servers."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.world = ensemble.world
        self.lines: list[Line] = []
        self.latency: dict[Process, tuple[float, float]] = {}
        self.silent: set[Process] = set()
        self.losing: dict[Process, bool] = {}
        """The next write's reply of these is lost with the connection, the write executed or not."""
        self.processes: dict[int, Process] = {}
        """Session id -> its process."""
        self.world.network = self

    async def connect(
        self, process: Process, factory: Callable[[], P], host: str, port: int
    ) -> tuple[asyncio.Transport, P]:
        while process in self.silent:
            await asyncio.sleep(0.1)
        await asyncio.sleep(self.delay(process))
        client = factory()
        line = Line(self, process, client, int(host.removeprefix("zk")))
        self.lines.append(line)
        client.connection_made(line)
        return line, client

    def delay(self, process: Process) -> float:
        return self.world.random.uniform(*self.latency.get(process, QUICK))

    def cut(self, process: Process, arrives: bool) -> None:
        """Break its connections; what it sent and what is in flight to a server still arrives, or not."""
        for line in [line for line in self.lines if line.process is process]:
            line.cut(arrives)

    def set_silent(self, process: Process, silent: bool) -> None:
        """Nothing arrives, nothing is refused; data in flight continues afterwards."""
        if silent:
            self.silent.add(process)
            return
        self.silent.discard(process)
        for line in [line for line in self.lines if line.process is process]:
            line.resume()


class Line(asyncio.Transport):
    """One connection: the client's transport, and the server's peer."""

    def __init__(self, network: SimulatedNetwork, process: Process, client: asyncio.Protocol, server: int) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.client = client
        self.connection: Connection = network.ensemble.servers[server].accept(self)
        self._to_server: deque[tuple[float, bytes | None]] = deque()
        self._to_client: deque[tuple[float, bytes | None]] = deque()
        self._client_closed = False

    def __repr__(self) -> str:
        return f"<Line of {self.process}>"

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._client_closed:
            self._send(self._to_server, bytes(data), self._server_reads)

    def is_closing(self) -> bool:
        return self._client_closed

    def abort(self) -> None:
        if not self._client_closed:
            self._client_closed = True
            self._send(self._to_server, None, self._server_reads)

    def close(self) -> None:
        self.abort()

    def deliver(self, data: bytes) -> None:
        self._send(self._to_client, data, self._client_reads)

    def finish(self) -> None:
        self._send(self._to_client, None, self._client_reads)

    def cut(self, arrives: bool) -> None:
        if arrives:
            self._send(self._to_server, None, self._server_reads)
        else:
            self._to_server.clear()
            self._server_loses()
        self._to_client.clear()
        self._client_loses()

    def resume(self) -> None:
        self._server_reads()
        self._client_reads()

    def _send(self, way: deque[tuple[float, bytes | None]], data: bytes | None, read: Callable[[], None]) -> None:
        world = self.network.world
        arrives = max(world.now + self.network.delay(self.process), way[-1][0] if way else 0.0)
        way.append((arrives, data))
        world.at(arrives, read)

    def _server_reads(self) -> None:
        for data in self._arrived(self._to_server):
            if data is None:
                self._server_loses()
            elif not self._loses_reply(data):
                self.connection.received(data)
                if (session := self.connection.session) is not None:
                    self.network.processes[session.id] = self.process

    def _loses_reply(self, data: bytes) -> bool:
        executed = self.network.losing.get(self.process)
        if executed is None or self.connection.session is None:
            return False
        asked = frames.request(data[4:])
        if asked.kind not in frames.WRITES or all(isinstance(operation, Check) for operation in asked.operations):
            return False
        del self.network.losing[self.process]
        if executed:
            self.connection.received(data)
        self.cut(arrives=False)
        return True

    def _client_reads(self) -> None:
        for data in self._arrived(self._to_client):
            if data is None:
                self.process.call_soon(self._client_loses)  # after what was sent before it
            elif not self._client_closed:
                self.process.call_soon(self._read, data)

    def _read(self, data: bytes) -> None:
        if not self._client_closed:
            self.client.data_received(data)

    def _arrived(self, way: deque[tuple[float, bytes | None]]) -> list[bytes | None]:
        if self.process in self.network.silent:
            return []
        found = []
        while way and way[0][0] <= self.network.world.now:
            found.append(way.popleft()[1])
        return found

    def _server_loses(self) -> None:
        if self.connection.open:
            self.connection.lost()

    def _client_loses(self) -> None:
        if self in self.network.lines:
            self.network.lines.remove(self)
        if not self._client_closed:
            self._client_closed = True
            self.process.call_soon(self.client.connection_lost, None)
