"""The lease attacked on three servers: while a client trusts its session, nobody may have expired it.

The promise is `safe_until`; the truth is what a session on the other two servers sees of the client's ephemeral node.
T is 3 s and a tick 0.5 s: the leader expires a session within T .. T + tick and a bit after it heard of it last.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from kzconsumer import clock
from kzconsumer.sandbox.jars import resolve_jars
from kzconsumer.sandbox.versions import NEWEST
from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.link import Link
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.ensemble import Ensemble, connect_string, ensemble
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until

T = 3.0


@pytest.fixture(scope="module")
def running(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with ensemble(tmp_path_factory.mktemp("ensemble"), servers.java, resolve_jars(NEWEST.jars, servers.java)) as three:
        yield three


@pytest.fixture
def three(running: Ensemble) -> Iterator[Ensemble]:
    """The ensemble, whole before and after."""
    running.wait_ready()
    yield running
    for server in running.servers:
        running.mend(server)
    running.wait_ready()


class Promise:
    """An ephemeral node of the session under attack, what its lease promised, and when the node was seen gone."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.safe_until = 0.0
        """The latest time at which the session said, or would say, that it holds."""
        self.gone: float | None = None

    @property
    def margin(self) -> float:
        """Seconds from the end of the promise to the end of the node; negative where the promise was wrong."""
        assert self.gone is not None
        return self.gone - self.safe_until

    async def sample(self, zk: ZooKeeperSession) -> None:
        while True:
            self.safe_until = max(self.safe_until, zk.safe_until)
            await anyio.sleep(0.005)

    async def watch(self, witness: ZooKeeperSession) -> None:
        stat, gone = await witness.watch_exists(self.path)
        assert stat is not None
        await gone.wait()
        self.gone = clock.now()


class PingedSession:
    """What a client has that pings, as most do: a lease of T from the sending of every answered ping."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._sent = clock.now()
        self.pings = 0
        self.safe_until = 0.0

    def answered(self, reply: wire.Reply) -> None:
        self.pings += 1
        self.safe_until = self._sent + T

    def lost(self, reason: str) -> None:
        pass

    async def ping(self) -> None:
        while not self._link.lost.done():
            self._sent = clock.now()
            self._link.send(struct.pack("!i", 11), self, -2)
            await anyio.sleep(T / 3)


@asynccontextmanager
async def pinged(host: str, port: int, path: str) -> AsyncIterator[PingedSession]:
    greeting = wire.handshake(0, bytes(16), T, 0)
    link, answer = await Link.open(
        host, port, greeting, timeout=T, on_event=lambda body: None, on_zxid=lambda zxid: None
    )
    assert answer.timeout == T
    try:
        client = PingedSession(link)
        link.send(wire.create(path, path, b"", ephemeral=True).body, client)
        await until(lambda: client.pings)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.ping)
            yield client
            tasks.cancel_scope.cancel()
    finally:
        link.abort("end")


@asynccontextmanager
async def sessions(connect: str, number: int) -> AsyncIterator[list[ZooKeeperSession]]:
    """Sessions whose heartbeats are spread over the time from one `sync` to the next."""
    async with AsyncExitStack() as exits:
        opened = []
        for _ in range(number):
            opened.append(await exits.enter_async_context(session(connect, T)))
            await anyio.sleep(T / 6 / number)
        yield opened


async def test_a_client_of_a_cut_off_follower_stops_before_its_nodes_go(three: Ensemble, unique: str) -> None:
    """A dozen sessions, each at another moment of its heartbeat when the cut comes; and one that goes by pings."""
    far, near = three.followers
    number = 12
    async with (
        session(connect_string([three.leader, near]), 20) as witness,
        anyio.create_task_group() as tasks,
        sessions(far.connect, number) as zks,
        pinged(far.host, far.port, f"/{unique}-pinged") as control,
    ):
        promises = [Promise(f"/{unique}-{n}") for n in range(number)]
        pings = Promise(f"/{unique}-pinged")
        for zk, promise in zip(zks, promises, strict=True):
            await zk.create(promise.path, ephemeral=True)
            tasks.start_soon(promise.sample, zk)
        await witness.sync()
        for promise in [*promises, pings]:
            tasks.start_soon(promise.watch, witness)
        await until(lambda: all(zk.safe_until > clock.now() + T / 4 for zk in zks))
        three.cut(far)
        cut = clock.now()
        await until(lambda: all(promise.gone for promise in [*promises, pings]), 3 * T)
        answered = control.pings
        await until(lambda: control.pings > answered)  # the follower knows nothing yet
        pings.safe_until = control.safe_until
        tasks.cancel_scope.cancel()
        import sys; print([round(p.margin,3) for p in promises], [round(p.gone-cut,3) for p in promises], [round(p.safe_until-cut,3) for p in promises], pings.margin, file=sys.stderr)
    assert min(promise.margin for promise in promises) > 0
    assert pings.margin < 0


async def attack_isolated_leader(three, unique, restart):
    import sys
    old = three.leader
    rest = three.followers
    zk_cm = session(old.connect, T)
    async with zk_cm as zk, anyio.create_task_group() as tasks:
        promise = Promise(f"/{unique}")
        await zk.create(promise.path, ephemeral=True)
        tasks.start_soon(promise.sample, zk)
        three.cut(old)
        cut = clock.now()
        if restart:
            for s in rest: s.kill()
            for s in rest: s.start()
        def elected():
            return any(s.role == "leader" for s in rest)
        while not await anyio.to_thread.run_sync(elected):
            await anyio.sleep(.02)
        print("new leader after", clock.now()-cut, file=sys.stderr)
        async with session(connect_string(rest), 20) as witness:
            await promise.watch(witness)
            print("restart", restart, "gone", promise.gone-cut, "safe", promise.safe_until-cut, "trusted now", zk.trusted(), zk.safe_until-cut, file=sys.stderr)
            await anyio.sleep(3)
            print("restart", restart, "gone", promise.gone-cut, "safe", promise.safe_until-cut, "trusted now", zk.trusted(), zk.safe_until-cut, file=sys.stderr)
            three.mend(old)
            tasks.cancel_scope.cancel()

@pytest.mark.parametrize("restart", [False, True])
async def test_isolated_leader(three, unique, restart):
    await attack_isolated_leader(three, unique, restart)
