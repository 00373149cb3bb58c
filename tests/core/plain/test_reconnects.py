"""What a session takes from a reconnect: no older state than it has seen, and no evidence for its lease. And how often
it reconnects.
"""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import SessionExpiredError, ZooKeeperError
from kzconsumer.zookeeper.operations import Create, Delete, SetData, Stat
from kzconsumer.zookeeper.server_choice import PAUSE
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.session_life import SessionState
from kzconsumer.zookeeper.watch_table import Watch
from kzconsumer.zookeeper.watches import repeated
from tests.support.extent import seeds
from tests.support.simulated.clients import Clients
from tests.support.simulated.ensemble import Connection, Peer
from tests.support.simulated.network import Accepted

BEHIND = 3.0
"""Seconds."""


@pytest.mark.parametrize("wrote", [True, False], ids=["written", "read"])
def test_a_session_does_not_go_back_in_time_when_it_reconnects(wrote: bool) -> None:
    clients = Clients()
    clients.ensemble.make("/node", b"before")

    async def script(session: ZooKeeperSession) -> None:
        (line,) = clients.network.lines
        connection = line.connection
        assert isinstance(connection, Connection)
        for server in clients.ensemble.servers:
            if server is not connection.server:
                server.lag = (BEHIND, BEHIND)
        change = SetData("/node", b"after", -1)
        if wrote:
            await session.multi([change])
        else:
            clients.ensemble.operate(change)
            await session.sync()
            assert (await session.get("/node")).data == b"after"
        clients.network.cut(clients.process, arrives=True)
        began = clients.world.now
        assert (await repeated(partial(session.get, "/node"))).data == b"after"
        assert clients.world.now - began < BEHIND / 2, "the server it had before has it"

    clients.play(script)


def test_a_reconnect_alone_does_not_renew_the_lease() -> None:
    """A leader without quorum takes back sessions that it knows, which the others may be about to expire."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        await anyio.sleep(session.timeout)
        trusted: list[float] = []

        def look(state: SessionState) -> None:
            if state is SessionState.CONNECTED:
                trusted.append(session.safe_until)

        session.listeners.append(look)
        before = session.safe_until
        clients.network.cut(clients.process, arrives=True)
        assert session.safe_until == before
        await anyio.sleep(0.5)
        assert trusted == [before]
        assert session.safe_until > before, "a probe was answered since"

    clients.play(script)


def test_a_server_that_answers_and_then_disconnects_is_retried_slowly() -> None:
    """As one does at a request above its jute.maxbuffer, which is sent again on each connection."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        ends, connected = clients.world.now + 10, 0
        while clients.world.now < ends:
            await repeated(session.sync)
            await anyio.sleep(0.05)  # the probe is answered as well
            clients.network.cut(clients.process, arrives=True)
            connected += 1
        assert 8 < connected < 20
        await repeated(session.sync)
        await anyio.sleep(2 * session.timeout / 6 + PAUSE[1])
        clients.network.cut(clients.process, arrives=True)
        began = clients.world.now
        await repeated(session.sync)
        assert clients.world.now - began < PAUSE[1] / 4, "a connection that has lasted is replaced at once"

    clients.play(script)


def test_a_node_that_is_made_while_it_is_looked_for_is_read_and_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the question for its content and that for its existence, any number of times."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        watch_exists, left = ZooKeeperSession.watch_exists, [2]

        async def racing(self: ZooKeeperSession, path: str) -> tuple[Stat | None, Watch]:
            clients.ensemble.operate(Create(path, b"made"))
            await self.sync()
            found = await watch_exists(self, path)
            if left[0]:
                left[0] -= 1
                clients.ensemble.operate(Delete(path, -1))
                await self.sync()
            return found

        monkeypatch.setattr(ZooKeeperSession, "watch_exists", racing)
        node, watch = await session.watch_data("/node")
        assert node is not None
        assert node.data == b"made"
        assert not watch.fired
        clients.ensemble.operate(SetData("/node", b"changed", -1))
        await session.sync()
        assert watch.fired

    clients.play(script)


def test_what_cannot_be_asked_of_a_server_is_refused_before() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        sent = clients.network.sent[clients.process]
        assert await session.multi([]) == []
        for path in ("no-slash", "/a//b", "/a/../b", "/a\0"):
            with pytest.raises(ZooKeeperError):
                await session.exists(path)
        assert clients.network.sent[clients.process] == sent
        with pytest.raises(RuntimeError, match="entered once"):
            await session.__aenter__()
        other = clients.session()
        await other.close()
        with pytest.raises(SessionExpiredError, match="closed"):
            await other.sync()

    clients.play(script)


def test_a_watch_is_not_armed_for_who_has_given_up_waiting_for_it() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        with anyio.move_on_after(0):
            await session.watch_children("/")
        await session.sync()
        assert not [path for chunk in session.watches.chunks(1000) for paths in chunk.values() for path in paths]

    clients.play(script)


def test_what_a_server_has_answered_holds_while_there_is_no_connection() -> None:
    """For half of the timeout since the last answered probe was sent: records are handed out until then, not longer."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        await anyio.sleep(session.timeout)
        for server in clients.ensemble.servers:
            server.read_only = True
            server.set_cut_off(True)
        clients.network.cut(clients.process, arrives=False)
        until = session.safe_until
        assert until - clients.world.now > session.timeout / 4
        while clients.world.now < until - 0.01:
            assert session.safe_until == until
            assert session.trusted()
            await anyio.sleep(0.01)
        await anyio.sleep(0.02)
        assert not session.trusted()
        for server in clients.ensemble.servers:
            server.set_cut_off(False)

    clients.play(script)


class Refuses:
    """A host on which no server runs."""

    def accept(self, peer: Peer) -> Accepted:
        raise ConnectionRefusedError


@pytest.mark.parametrize("seed", seeds(6, 100))
@pytest.mark.parametrize("way", ["hangs up", "refuses", "is silent"])
def test_a_server_that_takes_no_session_is_followed_by_the_next_at_once(way: str, seed: int) -> None:
    """Whichever is asked first: a round over the servers ends with one that serves, long before a session expires."""
    clients = Clients(seed)
    began = clients.world.now
    server = clients.ensemble.servers[0]
    if way == "refuses":
        clients.network.hosts["zk0"] = Refuses()
    else:
        server.read_only = way == "hangs up"
        server.set_cut_off(True)

    async def script(session: ZooKeeperSession) -> None:
        await session.exists("/")
        assert clients.world.now - began < session.timeout / 3

    with capture_logs() as logs:
        clients.play(script)
    assert "no ZooKeeper server answers" not in [each["event"] for each in logs]


def test_a_session_whose_end_is_cancelled_ends_on_this_side() -> None:
    """No server answers: the connection is given up, and what waits for an answer fails."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        async def asked() -> None:
            with pytest.raises(SessionExpiredError):
                await session.exists("/")

        clients.network.set_silent(clients.process, True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked)
            with anyio.move_on_after(0.5):
                async with clients.session():
                    pass
            with anyio.move_on_after(0.5):
                await session.close()
            assert session.state is SessionState.CLOSED

    clients.play(script)
