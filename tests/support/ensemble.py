"""Three ZooKeeper servers that elect a leader, each of which can be cut off from the other two.

Owns the processes and, in a thread of its own, the cables between the servers: a blocked event loop of a test must not
look like a broken network to them. Followers reach a leader through cables; elections are not cut.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from anyio.from_thread import BlockingPortal, start_blocking_portal

from kzconsumer_sandbox.servers.configuration import HOST, as_text, free_port
from kzconsumer_sandbox.servers.kafka_servers import ZooKeeperServer
from kzconsumer_sandbox.servers.readiness import four_letters
from tests.support.cable import Cable
from tests.support.processes import wait_until

SYNC_LIMIT = 24
"""Ticks of 0.5 s: how long a follower without its leader, or a leader without followers, keeps serving."""


class EnsembleServer(ZooKeeperServer):
    """One of them. `reached` has the port through which it reaches each of the others."""

    def __init__(self, number: int, folder: Path, java: Path, jars: Path) -> None:
        super().__init__(folder / f"server-{number}", java, jars, heap="96m")
        self.number = number
        self.quorum_port, self.election_port = free_port(), free_port()
        self.reached: dict[EnsembleServer, int] = {}

    def command(self) -> list[str]:
        *java, _, file = super().command()
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(self.number))
        # Each server has a list of its own: the lists are not compared while reconfiguration is off, as it is.
        ports = {self: self.quorum_port, **self.reached}
        servers = {f"server.{each.number}": f"{HOST}:{port}:{each.election_port}" for each, port in ports.items()}
        with Path(file).open("a") as config:
            config.write(as_text({"initLimit": 10, "syncLimit": SYNC_LIMIT, **servers}))
        return [*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file]

    @property
    def role(self) -> str:
        """`leader` or `follower`; empty while it has no quorum."""
        mode = re.search(r"^Mode: (\w+)", four_letters(self.host, self.port, b"srvr"), re.MULTILINE)
        return mode[1] if mode else ""


class Ensemble:
    """Made by `ensemble`. Server numbers are 1 to 3; they elect their leader themselves."""

    def __init__(
        self, servers: list[EnsembleServer], cables: list[tuple[set[EnsembleServer], Cable]], portal: BlockingPortal
    ) -> None:
        self.servers = servers
        self._cables = cables
        self._portal = portal

    def __repr__(self) -> str:
        return f"<Ensemble {', '.join(f'{each.number}: {each.role or each}' for each in self.servers)}>"

    @property
    def connect(self) -> str:
        return connect_string(self.servers)

    @property
    def leader(self) -> EnsembleServer:
        (leader,) = (server for server in self.servers if server.role == "leader")
        return leader

    @property
    def followers(self) -> list[EnsembleServer]:
        return [server for server in self.servers if server.role == "follower"]

    def cut(self, server: EnsembleServer) -> None:
        """Nothing gets through between this server and the others; clients still reach it."""
        self._portal.call(self._set, server, Cable.cut)

    def mend(self, server: EnsembleServer) -> None:
        self._portal.call(self._set, server, Cable.mend)

    async def _set(self, server: EnsembleServer, change: Callable[[Cable], None]) -> None:
        for ends, cable in self._cables:
            if server in ends:
                change(cable)

    def wait_ready(self, limit: float = 120.0) -> None:
        """Block until all three serve, one as the leader. Raises AssertionError with the logs' ends."""
        roles = ["follower", "follower", "leader"]
        if not wait_until(lambda: sorted(server.role for server in self.servers) == roles, limit):
            logs = "\n".join(f"{server!r}\n{server.last_lines(15)}" for server in self.servers)
            raise AssertionError(f"no ensemble after {limit:.0f} s\n{logs}")


def connect_string(servers: Iterable[EnsembleServer]) -> str:
    return ",".join(server.connect for server in servers)


@contextmanager
def ensemble(folder: Path, java: Path, jars: Path) -> Iterator[Ensemble]:
    """Three running servers; killed at the end. To be entered in the main thread, with which the servers end."""
    servers = [EnsembleServer(number, folder, java, jars) for number in (1, 2, 3)]
    with start_blocking_portal() as portal, ExitStack() as exits:
        cables = []
        for here, there in itertools.permutations(servers, 2):
            cable = exits.enter_context(portal.wrap_async_context_manager(Cable(there.host, there.quorum_port)))
            here.reached[there] = cable.port
            cables.append(({here, there}, cable))
        running = Ensemble(servers, cables, portal)
        for server in servers:
            exits.callback(server.kill)
            server.start()
        running.wait_ready()
        yield running
