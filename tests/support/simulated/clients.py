"""A test's own ZooKeeper sessions on an ensemble in memory, for the rooms that need no more of a member than that."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kzconsumer.registry.paths import CONSUMERS
from kzconsumer.zookeeper.operations import ConnectString
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.simulated.ensemble import LAG, Ensemble
from tests.support.simulated.lost_replies import Loss
from tests.support.simulated.network import CHROOT, SimulatedNetwork
from tests.support.simulated.virtual_time import World, clock_of

T = TypeVar("T")

Script = Callable[[ZooKeeperSession], Coroutine[Any, Any, T]]


class Clients:
    """One process with as many sessions as the test opens, and the ensemble that it talks to."""

    def __init__(self, seed: int = 1, lag: tuple[float, float] = LAG) -> None:
        """`lag`: seconds between which a server is behind the decided transactions."""
        self.world = World(seed)
        self.ensemble = Ensemble(self.world, lag=lag, chroot=CHROOT)
        self.network = SimulatedNetwork(self.ensemble)
        self.process = self.world.process("client")

    def play(self, script: Script[T], limit: float = 60.0) -> T:
        """What the script returns, which has to end within `limit` seconds of the world's."""

        async def run() -> T:
            async with self.session() as session:
                await session.ensure(CONSUMERS)
                return await script(session)

        with clock_of(self.world):
            task = self.process.create_task(run())
            ended = self.world.pass_time(limit, task.done)
            if not ended:
                task.cancel()
                self.world.pass_time(limit, task.done)
            assert ended, f"not finished after {limit} s"
            assert not self.process.errors
            assert all(line.is_closing() for line in self.network.lines_of(self.process)), "a connection is left open"
            self.world.end(self.process)
        return task.result()

    def session(self) -> ZooKeeperSession:
        return ZooKeeperSession(ConnectString.parse(f"zk0:2181,zk1:2181{CHROOT}"), 6.0)

    def lose_the_next_write(self, *, executed: bool) -> None:
        """Its connection breaks, and with it the reply, or already the request."""
        self.network.losing[self.process] = Loss(executed)
