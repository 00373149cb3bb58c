"""The network between processes and servers: bytes arrive late and in order, or not at all.

`SimulatedNetwork` owns the connections and their faults. Faults are those of TCP: a connection that breaks
with requests or replies on the way or in the middle of a response, a process that nothing reaches and that reaches
nobody, slow lines, large answers on thin lines, a firewall that forgets connections.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tests.support.simulated.ensemble import Connection, Ensemble, Peer
from tests.support.simulated.lost_replies import Loss, write_of
from tests.support.simulated.virtual_time import Process

P = TypeVar("P", bound=asyncio.BaseProtocol)

CHROOT: Final = "/kafka"
"""What a group's clients have of the ensemble."""
CONNECT: Final = f"zk0:2181,zk1:2181,zk2:2181{CHROOT}"
"""The connect string of such a client."""

MOST_ATTEMPTS = 20
"""To connect to one host, that a process may make within a second: each of its parts waits before it tries again."""
QUICK = (0.0003, 0.003)
SLOW = (0.01, 0.6)
THIN = 16 * 1024
"""Bytes that come at once where bandwidth is limited."""
TORN_FROM = 300
"""Bytes of the smallest broker response that is torn: one with records."""


class Accepted(Protocol):
    """The server's part of a connection."""

    open: bool

    def received(self, data: bytes) -> None: ...

    def lost(self) -> None: ...


class Host(Protocol):
    def accept(self, peer: Peer) -> Accepted:
        """Raises ConnectionRefusedError."""
        ...


class Parcel(NamedTuple):
    sent: float
    arrives: float
    data: bytes
    last: bool = False
    """The connection ends with it."""


class SimulatedNetwork:
    """Hosts are `zk0`, `zk1`, ...: the ensemble's servers; and those that are added."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.world = ensemble.world
        self.hosts: dict[str, Host] = {f"zk{number}": server for number, server in enumerate(ensemble.servers)}
        self.lines: list[Line] = []
        self.joins = False
        """What is sent at one moment arrives at one moment: fewer schedules, and much less to simulate."""
        self.latency: dict[Process, tuple[float, float]] = {}
        self.silent: set[Process] = set()
        self.forgets = math.inf
        """Seconds without a byte after which a firewall drops a connection to a broker from its table. Neither side
        gets a reset, and what it sends from then on is lost."""
        self.bandwidth = math.inf
        """Bytes a second that each connection brings from a broker."""
        self.brokerless: set[Process] = set()
        """These reach no broker."""
        self.losing: dict[Process, Loss] = {}
        """A write to ZooKeeper that is going to fail: its reply is lost, with the connection, or it is refused."""
        self.tearing: dict[Process, float] = {}
        """The part of the next broker response with records after which the connection breaks."""
        self._attempts: dict[tuple[Process, str], deque[float]] = {}
        self.processes: dict[int, Process] = {}
        """Session id -> its process."""
        self.sent: Counter[Process] = Counter()
        """How often each process has written, to ZooKeeper and brokers."""
        self.answered: dict[Process, float] = {}
        """When it has last received anything from ZooKeeper."""
        self.world.network = self

    async def connect(
        self, process: Process, factory: Callable[[], P], host: str, port: int
    ) -> tuple[asyncio.Transport, P]:
        attempts = self._attempts.setdefault((process, host), deque([-math.inf], MOST_ATTEMPTS))
        assert attempts[0] < self.world.now - 1.0 or len(attempts) < MOST_ATTEMPTS, f"{process} knocks at {host}"
        attempts.append(self.world.now)
        while process in self.silent:
            await asyncio.sleep(0.1)
        await asyncio.sleep(self.delay(process))
        client = factory()
        if process in self.brokerless and not host.startswith("zk"):
            raise ConnectionRefusedError(f"{host}: connection refused")
        line = Line(self, process, client, self.hosts[host])
        self.lines.append(line)
        client.connection_made(line)
        return line, client

    def delay(self, process: Process) -> float:
        return self.world.random.uniform(*self.latency.get(process, QUICK))

    def lines_of(self, process: Process) -> list[Line]:
        return [line for line in self.lines if line.process is process]

    def cut(self, process: Process, arrives: bool) -> None:
        """Break its connections; what it sent and what is in flight to a server still arrives, or not."""
        for line in self.lines_of(process):
            line.cut(arrives)

    def cut_brokers(self, process: Process) -> None:
        """Break its connections to brokers, and refuse others until it is taken from `brokerless`."""
        self.brokerless.add(process)
        for line in self.lines_of(process):
            if not line.to_zookeeper:
                line.cut(arrives=False)

    def forget_faults(self) -> None:
        """Those that wait for something to happen, and slow lines; who is silent stays so."""
        self.losing.clear()
        self.tearing.clear()
        self.latency.clear()
        self.brokerless.clear()

    def set_silent(self, process: Process, silent: bool) -> None:
        """Nothing arrives, nothing is refused; data in flight continues afterwards."""
        if silent:
            self.silent.add(process)
            return
        self.silent.discard(process)
        for line in self.lines_of(process):
            line.resume()

    @contextmanager
    def silence(self, process: Process) -> Iterator[None]:
        self.set_silent(process, True)
        yield
        self.set_silent(process, False)


class _NoSocket:
    """Nothing that the client may read from by itself."""

    def fileno(self) -> int:
        return -1


class Line(asyncio.Transport):
    """One connection: the client's transport, and the server's peer."""

    def __init__(self, network: SimulatedNetwork, process: Process, client: asyncio.BaseProtocol, host: Host) -> None:
        super().__init__({"socket": _NoSocket()})
        self.network = network
        self.process = process
        self.client = client
        self.connection = host.accept(self)
        self.to_zookeeper = isinstance(self.connection, Connection)
        self._to_server: deque[Parcel] = deque()
        self._to_client: deque[Parcel] = deque()
        self._client_closed = False
        self._used = network.world.now
        self._forgotten = False

    def __repr__(self) -> str:
        return f"<Line of {self.process}>"

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._client_closed:
            self.network.sent[self.process] += 1
            self._send(self._to_server, bytes(data), self._server_reads)

    def is_closing(self) -> bool:
        return self._client_closed

    def abort(self) -> None:
        if not self._client_closed:
            self._client_closed = True
            self._send(self._to_server, b"", self._server_reads, last=True)
            self.forget()

    def forget(self) -> None:
        """Give up the client, as asyncio's transports do once they are closed: a transport is remembered with it."""
        self.client = asyncio.Protocol()

    def close(self) -> None:
        self.abort()

    def deliver(self, data: bytes) -> None:
        if not self.to_zookeeper and self.process in self.network.tearing and len(data) >= TORN_FROM:
            kept = data[: int(len(data) * self.network.tearing.pop(self.process))]
            self._send(self._to_client, kept, self._client_reads, last=True)
            self._server_loses()
        else:
            self._send(self._to_client, data, self._client_reads)

    def finish(self) -> None:
        self._send(self._to_client, b"", self._client_reads, last=True)

    def cut(self, arrives: bool) -> None:
        if arrives:
            self._send(self._to_server, b"", self._server_reads, last=True)
        else:
            self._to_server.clear()
            self._server_loses()
        self._to_client.clear()
        self._client_loses()

    def resume(self) -> None:
        self._server_reads()
        self._client_reads()

    def _send(self, way: deque[Parcel], data: bytes, read: Callable[[], None], *, last: bool = False) -> None:
        world = self.network.world
        self._forgotten |= not self.to_zookeeper and world.now - self._used > self.network.forgets
        self._used = world.now
        if self._forgotten:
            return
        if self.network.joins and not last and way and way[-1].sent == world.now and not way[-1].last:
            way[-1] = way[-1]._replace(data=way[-1].data + data)
            return
        arrives = max(world.now + self.network.delay(self.process), way[-1].arrives if way else 0.0)
        if way is self._to_client and not self.to_zookeeper and self.network.bandwidth < math.inf:
            arrives += min(len(data), THIN) / self.network.bandwidth
            data, rest = data[:THIN], data[THIN:]
        else:
            rest = b""
        way.append(Parcel(world.now, arrives, data, last))
        world.at(arrives, read)
        if rest:
            self._send(way, rest, read)

    def _server_reads(self) -> None:
        for _, _, data, last in self._arrived(self._to_server):
            if last:
                self._server_loses()
            elif isinstance(connection := self.connection, Connection):
                if not self._fails(connection, data):
                    connection.received(data)
                    if (session := connection.session) is not None:
                        self.network.processes[session.id] = self.process
            else:
                self.connection.received(data)

    def _fails(self, connection: Connection, data: bytes) -> bool:
        loss = self.network.losing.get(self.process)
        if loss is None or connection.session is None:
            return False
        if not loss.strikes(write_of(data, connection.server.ensemble.chroot)):
            return False
        del self.network.losing[self.process]
        if loss.refusal:
            connection.refuse(data, loss.refusal)
            return True
        if loss.executed:
            connection.received(data)
        self.cut(arrives=False)
        return True

    def _client_reads(self) -> None:
        for _, _, data, last in self._arrived(self._to_client):
            if data and not self._client_closed:
                self.process.call_soon(self._read, data, last)
            elif last:
                self.process.call_soon(self._client_loses)  # after what was sent before it

    def _read(self, data: bytes, last: bool) -> None:
        if self.to_zookeeper:
            self.network.answered[self.process] = self.network.world.now
        if not self._client_closed:
            _take(self.client, data)
        if last:  # at once, as when a reset connection is found while reading: what was read is not yet looked at
            self._ended(self.client.connection_lost)

    def _arrived(self, way: deque[Parcel]) -> list[Parcel]:
        if self.process in self.network.silent:
            return []
        found = []
        while way and way[0].arrives <= self.network.world.now:
            found.append(way.popleft())
        return found

    def _server_loses(self) -> None:
        if self.connection.open:
            self.connection.lost()

    def _client_loses(self) -> None:
        self._ended(lambda _: self.process.call_soon(self.client.connection_lost, None))

    def _ended(self, tell: Callable[[None], Any]) -> None:
        if self in self.network.lines:
            self.network.lines.remove(self)
        if not self._client_closed:
            self._client_closed = True
            tell(None)
        self.forget()


def _take(client: asyncio.BaseProtocol, data: bytes) -> None:
    """Have the client read it, as its transport would."""
    if isinstance(client, asyncio.Protocol):
        client.data_received(data)
        return
    assert isinstance(client, asyncio.BufferedProtocol)
    left = memoryview(data)
    while left:
        buffer = memoryview(client.get_buffer(-1))
        count = min(len(buffer), len(left))
        buffer[:count] = left[:count]
        client.buffer_updated(count)
        left = left[count:]
