"""A simulated cluster on loopback sockets and in real time, for programs that are processes of their own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import cast

from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer_sandbox.servers.configuration import HOST
from tests.support.simulated.broker import SimulatedBroker
from tests.support.simulated.ensemble import Ensemble
from tests.support.simulated.network import Accepted, Host
from tests.support.simulated.partition_logs import PartitionLogs
from tests.support.simulated.virtual_time import World


class ServedCluster:
    """One ZooKeeper server and one broker, whose logs have what was put there. Serves while it is entered."""

    def __init__(self) -> None:
        self._sockets = [socket.create_server((HOST, 0)) for _ in range(2)]
        self.connect, self.bootstrap = (f"{HOST}:{each.getsockname()[1]}" for each in self._sockets)
        """Addresses of ZooKeeper and the broker."""
        self._servers: list[asyncio.Server] = []

    async def __aenter__(self) -> ServedCluster:
        world = _RealTime(asyncio.get_running_loop())
        self._ensemble = Ensemble(world, servers=1, lag=(0, 0))
        self._logs = PartitionLogs(self._ensemble, 1, 0)
        self._logs.stop()
        self._logs.register(up=False)
        self._logs.addresses[0] = self._sockets[1].getsockname()[:2]
        self._logs.register(up=True)
        hosts = self._ensemble.servers[0], SimulatedBroker(world, self._logs, 0)
        for at, host in zip(self._sockets, hosts, strict=True):
            accept = cast("Callable[[], _Line]", lambda host=host: _Line(world, host))
            self._servers.append(await asyncio.get_running_loop().create_server(accept, sock=at))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for server in self._servers:
            server.close()

    async def put(
        self, partition: TopicPartition, incarnation: int, first: int, until: int, batches: Sequence[tuple[int, bytes]]
    ) -> None:
        """The partition's log has exactly these batches, each after its first offset, and its topic the incarnation."""
        topic, number = partition
        path = paths.topic(topic)
        trees = self._ensemble.tree, self._ensemble.servers[0].tree
        if (node := trees[0].nodes.get(path)) is not None and node.czxid != incarnation:
            self._logs.delete(topic)
        if (missing := number + 1 - len(self._logs.of(topic))) > 0:
            self._logs.grow(topic, missing)
            await asyncio.sleep(0)  # the server's own tree follows
            for tree in trees:
                tree.nodes[path].czxid = incarnation
        self._logs.replace(partition, first, until, batches)


class _RealTime(World):
    """Its clock is the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(0)
        self._loop = loop
        self.now = loop.time()

    def at(self, when: float, happens: Callable[[], None]) -> None:
        if when <= self.now:
            self._loop.call_soon(happens)
        else:
            self._loop.call_at(when, self._pass, when, happens)

    def _pass(self, when: float, happens: Callable[[], None]) -> None:
        self.look()
        self.now = max(self.now, when)  # a timer may be early by the clock's resolution
        happens()

    def look(self) -> None:
        self.now = max(self.now, self._loop.time())


class _Line(asyncio.Protocol):
    """The server's side of one connection, and its peer."""

    def __init__(self, world: _RealTime, host: Host) -> None:
        self._world = world
        self._host = host
        self._accepted: Accepted
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._world.look()
        self._accepted = self._host.accept(self)

    def data_received(self, data: bytes) -> None:
        self._world.look()
        if self._accepted.open:
            self._accepted.received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._world.look()
        if self._accepted.open:
            self._accepted.lost()

    def deliver(self, data: bytes) -> None:
        self._transport.write(data)

    def finish(self) -> None:
        self._transport.close()
