"""One session over broken connections: what survives, what is lost, what expires. A real ZooKeeper, a faulty proxy.

T is 3 s: a sync every 0.5 s, valid for 1.5 s, silence noticed after 1 s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import anyio
import pytest
from structlog.testing import capture_logs

from kzconsumer import clock
from kzconsumer.errors import ConnectionLostError, NoNodeError, SessionExpiredError
from kzconsumer.zookeeper.operations import ConnectString, Create
from kzconsumer.zookeeper.server_choice import FormerSession
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.session_life import SessionState
from kzconsumer_sandbox.servers.kafka_servers import ZooKeeperServer
from tests.support.proxy import FaultProxy
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import expire, session, until

T = 3.0
SLACK = 1.5
"""Seconds a busy machine may add."""

Break = Callable[[FaultProxy], None]
BREAKS: list[Break] = [FaultProxy.finish, FaultProxy.reset]


@pytest.fixture
def root(unique: str) -> str:
    return f"/{unique}"


def to(zookeeper: ZooKeeperServer) -> FaultProxy:
    return FaultProxy(zookeeper.host, zookeeper.port)


def is_(zk: ZooKeeperSession, state: SessionState) -> Callable[[], bool]:
    return lambda: zk.state is state


def seconds_since(start: float) -> float:
    return time.monotonic() - start


@pytest.mark.parametrize("break_", BREAKS)
async def test_a_broken_connection_is_replaced_at_once(zookeeper: ZooKeeperServer, root: str, break_: Break) -> None:
    async with to(zookeeper) as proxy, session(proxy.connect, T) as zk:
        states: list[SessionState] = []
        zk.listeners.append(states.append)
        await zk.ensure(root)
        await zk.create(f"{root}/e", b"", ephemeral=True)
        identity = zk.id
        for count in range(1, 4):
            start = time.monotonic()
            break_(proxy)
            await until(lambda: states == [SessionState.SUSPENDED, SessionState.CONNECTED] * count)  # noqa: B023
            assert (await zk.get(f"{root}/e")).stat.ephemeral_owner == identity == zk.id
            assert seconds_since(start) < T / 6 + SLACK
        assert zk.trusted()


async def test_silence_is_noticed_after_a_third_of_the_timeout(zookeeper: ZooKeeperServer, root: str) -> None:
    async with to(zookeeper) as proxy, session(proxy.connect, T) as zk:
        await zk.ensure(root)
        await until(lambda: zk.safe_until > clock.now() + T / 2 - 0.1)
        proxy.silent = True
        start = time.monotonic()
        call = asyncio.ensure_future(zk.set(root, b"lost", -1))
        with pytest.raises(ConnectionLostError, match=r"no probe answered for 1\.0 s"):
            await call
        assert T / 6 < seconds_since(start) < T / 3 + SLACK
        proxy.silent = False
        assert (await zk.get(root)).data == b""
        assert not zk.expired


@pytest.mark.parametrize("break_", BREAKS)
async def test_a_request_in_flight_is_lost_and_never_sent_again(
    zookeeper: ZooKeeperServer, root: str, break_: Break
) -> None:
    async with to(zookeeper) as proxy, session(proxy.connect, T) as zk, session(zookeeper.connect) as witness:
        await zk.ensure(root)
        proxy.mute = True
        calls = [asyncio.ensure_future(zk.set(root, str(number).encode(), -1)) for number in range(10)]
        with anyio.fail_after(T / 4):
            while (await witness.get(root)).stat.version < 10:
                pass
        proxy.mute = False
        break_(proxy)
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, ConnectionLostError)
        await zk.sync()
        node = await zk.get(root)
        assert (node.data, node.stat.version) == (b"9", 10)  # executed once each, whatever was reported to us


async def test_calls_wait_for_the_connection_and_keep_their_order(zookeeper: ZooKeeperServer, root: str) -> None:
    async with to(zookeeper) as proxy, session(proxy.connect, T) as zk:
        await zk.ensure(root)
        await proxy.refuse()
        await until(is_(zk, SessionState.SUSPENDED))
        given_up = asyncio.ensure_future(zk.create(f"{root}/given-up"))
        calls = [asyncio.ensure_future(zk.set(root, str(number).encode(), number)) for number in range(20)]
        with anyio.move_on_after(0.2):
            await given_up
        assert given_up.cancelled()
        assert not any(call.done() for call in calls)
        await proxy.listen()
        assert [stat.version for stat in await asyncio.gather(*calls)] == list(range(1, 21))
        assert await zk.exists(f"{root}/given-up") is None


@pytest.mark.parametrize("missed", [False, True], ids=["after", "meanwhile"])
async def test_watches_survive_reconnects(zookeeper: ZooKeeperServer, root: str, missed: bool) -> None:
    async with to(zookeeper) as proxy, session(proxy.connect, T) as zk, session(zookeeper.connect) as other:
        states: list[SessionState] = []
        zk.listeners.append(states.append)
        await zk.ensure(root)
        for name in ("changed", "deleted", "quiet"):
            await zk.create(f"{root}/{name}")
        _, changed = await zk.watch_data(f"{root}/changed")
        _, deleted = await zk.watch_exists(f"{root}/deleted")
        _, created = await zk.watch_exists(f"{root}/created")
        _, children = await zk.watch_children(root)
        quiet = [(await zk.watch_data(f"{root}/quiet"))[1], (await zk.watch_exists(f"{root}/nothing"))[1]]
        quiet.append((await zk.watch_children(f"{root}/quiet"))[1])

        async def change() -> None:
            await other.set(f"{root}/changed", b"x", -1)
            await other.delete(f"{root}/deleted", -1)
            await other.create(f"{root}/created")

        if missed:
            await proxy.refuse()
            await change()
            await proxy.listen()
        else:
            proxy.finish()
            await until(lambda: states == [SessionState.SUSPENDED, SessionState.CONNECTED])
            await zk.sync()
            assert not any(watch.fired for watch in (changed, deleted, created, children))
            await change()
        with anyio.fail_after(5):
            for watch in (changed, deleted, created, children):
                await watch.wait()
        await zk.sync()
        assert not any(watch.fired for watch in quiet)


async def test_many_watches_are_armed_again_in_several_requests(zookeeper: ZooKeeperServer, root: str) -> None:
    async with (
        # Six thousand watches keep this process busy for seconds.
        to(zookeeper) as proxy,
        session(proxy.connect, 30.0) as zk,
        session(zookeeper.connect, 30.0) as other,
    ):
        await zk.ensure(root)
        paths = [f"{root}/{'long' * 40}-{number}" for number in range(6000)]  # 1.2 MB of paths: no single request
        watches = [watch for _, watch in await asyncio.gather(*(zk.watch_exists(path) for path in paths))]
        await proxy.refuse()
        await other.multi([Create(path, b"") for path in paths[::100]])
        await proxy.listen()
        await until(lambda: all(watch.fired for watch in watches[::100]))
        await zk.sync()
        assert sum(watch.fired for watch in watches) == 60
        await other.create(paths[1])
        with anyio.fail_after(5):
            await watches[1].wait()


async def test_a_connection_lost_while_arming_hides_no_event(zookeeper: ZooKeeperServer, root: str) -> None:
    async with to(zookeeper) as proxy, session(proxy.connect, 6.0) as zk, session(zookeeper.connect) as other:
        await zk.ensure(root)
        paths = [f"{root}/{'long' * 40}-{number}" for number in range(2000)]  # several SetWatches
        await zk.multi([Create(path, b"") for path in paths])
        watches = [watch for _, watch in await asyncio.gather(*(zk.watch_data(path) for path in paths))]
        await proxy.refuse()
        await other.set(paths[-1], b"changed", 0)
        proxy.cut_reply_after = 41 + 20  # the handshake, and the first SetWatches with a newer zxid
        await proxy.listen()
        with anyio.fail_after(5):
            await watches[-1].wait()
        assert proxy.accepted == 3
        assert sum(watch.fired for watch in watches) == 1


async def test_a_session_that_ended_on_the_server_is_over_for_every_caller(
    zookeeper: ZooKeeperServer, root: str
) -> None:
    async with to(zookeeper) as proxy, session(proxy.connect, T) as zk, session(zookeeper.connect) as witness:
        states: list[SessionState] = []
        zk.listeners.append(states.append)
        await zk.ensure(root)
        await zk.create(f"{root}/e", b"", ephemeral=True)
        _, gone = await witness.watch_exists(f"{root}/e")
        _, watch = await zk.watch_data(root)
        called: list[str] = []
        watch.add_callback(lambda: called.append("watch"))
        await proxy.refuse()
        await until(is_(zk, SessionState.SUSPENDED))
        waiting = [
            asyncio.ensure_future(call)
            for call in (zk.create(f"{root}/later"), zk.get(root), watch.wait(), zk.wait_expired())
        ]
        await expire(zk, zookeeper.connect)
        with anyio.fail_after(5):
            await gone.wait()
        await proxy.listen()
        with anyio.fail_after(T):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [SessionExpiredError] * 3 + [type(None)]
        assert states == [SessionState.SUSPENDED, SessionState.EXPIRED]
        assert zk.expired
        assert not zk.trusted()
        assert called == []
        for call in (zk.get(root), zk.watch_children(root), zk.create(f"{root}/x"), zk.wait_trusted(), zk.sync()):
            with pytest.raises(SessionExpiredError):
                await call
        await zk.wait_expired()
        assert await witness.children(root) == []  # no waiting request was executed in a later session


async def test_silence_beyond_the_timeout_expires_the_session_after_its_lease(
    zookeeper: ZooKeeperServer, root: str
) -> None:
    async with to(zookeeper) as proxy, session(proxy.connect, T) as zk, session(zookeeper.connect) as witness:
        await zk.ensure(root)
        await zk.create(f"{root}/e", b"", ephemeral=True)
        _, gone = await witness.watch_exists(f"{root}/e")
        start = clock.now()
        proxy.silent = True
        with anyio.fail_after(3 * T):
            await gone.wait()
        assert not zk.trusted()
        assert zk.safe_until < start + T / 2 + 0.1 < clock.now()
        assert not zk.expired  # we have not been notified yet
        proxy.silent = False
        with anyio.fail_after(T):
            await zk.wait_expired()


async def test_only_answers_renew_the_lease(zookeeper: ZooKeeperServer) -> None:
    async with to(zookeeper) as proxy, session(proxy.connect, T) as zk:
        first = zk.safe_until
        assert clock.now() < first <= clock.now() + T / 2
        await until(lambda: zk.safe_until > first + T / 2)  # the control: without a fault it grows
        proxy.mute = True  # the server receives from us and renews the session; we receive nothing
        muted = clock.now()
        await until(lambda: not zk.trusted())
        before = zk.safe_until
        assert before <= muted + T / 2, "what was sent later had no answer"
        assert abs(clock.now() - before) < 0.5
        proxy.mute = False
        with anyio.fail_after(T):
            await zk.wait_trusted()
        assert zk.safe_until > before


async def test_the_lease_is_renewed_under_load(zookeeper: ZooKeeperServer, root: str) -> None:
    async with session(zookeeper.connect, T) as zk:
        await zk.ensure(root)
        deadline = clock.now() + T
        while clock.now() < deadline:
            await asyncio.gather(*(zk.set(root, bytes(10_000), -1) for _ in range(50)))
            assert zk.trusted()
            assert zk.safe_until > clock.now() + T / 6


async def test_after_a_blocked_loop_the_lease_is_in_doubt_until_a_new_sync(zookeeper: ZooKeeperServer) -> None:
    async with session(zookeeper.connect, T) as zk:
        await until(lambda: zk.safe_until > clock.now() + T / 2 - 0.1)
        before = zk.safe_until
        time.sleep(T / 3)  # noqa: ASYNC251  (the fault)
        assert clock.now() < before  # by time alone it would still hold
        assert not zk.trusted()
        with capture_logs() as logs, anyio.fail_after(T):
            await zk.wait_trusted()
        assert [entry["event"] for entry in logs] == ["session doubtful"]
        assert zk.state is SessionState.CONNECTED


async def test_close_is_bounded_without_a_server(zookeeper: ZooKeeperServer) -> None:
    async with to(zookeeper) as proxy, session(proxy.connect, T) as zk:
        proxy.silent = True
        start = time.monotonic()
        await zk.close()
        assert seconds_since(start) < T / 3 + SLACK
        assert zk.state is SessionState.CLOSED


async def test_close_ends_the_session_over_a_new_connection(zookeeper: ZooKeeperServer, root: str) -> None:
    async with to(zookeeper) as proxy, session(zookeeper.connect) as witness, session(proxy.connect, 20.0) as zk:
        states: list[SessionState] = []
        zk.listeners.append(states.append)
        await zk.ensure(root)
        await zk.create(f"{root}/e", b"", ephemeral=True)
        proxy.finish()
        await zk.close()
        assert SessionState.EXPIRED not in states
        with pytest.raises(NoNodeError):
            await witness.get(f"{root}/e")


async def test_a_cancelled_exit_still_closes_the_session(zookeeper: ZooKeeperServer, root: str) -> None:
    async with session(zookeeper.connect) as witness:
        await witness.ensure(root)
        with anyio.CancelScope() as scope:
            async with ZooKeeperSession(ConnectString.parse(zookeeper.connect), 20.0) as zk:
                await zk.create(f"{root}/e", b"", ephemeral=True)
                _, gone = await witness.watch_exists(f"{root}/e")
                scope.cancel()
                await anyio.sleep_forever()
        with anyio.fail_after(5):
            await gone.wait()


async def test_a_cancelled_close_leaves_no_task(zookeeper: ZooKeeperServer) -> None:
    async with to(zookeeper) as proxy, session(proxy.connect, T) as zk:
        proxy.silent = True
        with anyio.move_on_after(0.05) as scope:
            await zk.close()
        assert scope.cancelled_caught
        assert zk.state is SessionState.CLOSED
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "zookeeper session"]


async def test_a_session_survives_a_restart_of_the_server(servers: Servers) -> None:
    server = servers.own_zookeeper("restarted")
    async with session(server.connect, 20.0) as zk:
        await zk.create("/e", b"", ephemeral=True)
        _, watch = await zk.watch_data("/e")
        await anyio.to_thread.run_sync(server.kill)
        # What is sent before the loss is noticed fails, as its outcome is not known.
        await until(is_(zk, SessionState.SUSPENDED))
        server.start()
        with anyio.fail_after(20):
            assert (await zk.get("/e")).stat.ephemeral_owner == zk.id
        assert not watch.fired
        await zk.set("/e", b"x", 0)
        await watch.wait()
    server.kill()


def given_up(zk: ZooKeeperSession) -> FormerSession:
    """As after a server's wrong "expired", a timeout after the last answer."""
    zk.end(SessionState.EXPIRED, "expired")
    former = zk.former
    assert former is not None
    former.kept_until -= zk.timeout
    return former


async def test_an_abandoned_session_is_closed_with_only_its_own_nodes(zookeeper: ZooKeeperServer, root: str) -> None:
    async with session(zookeeper.connect, 20) as old, session(zookeeper.connect) as zk, session(zookeeper.connect) as b:
        await zk.ensure(root)
        for path in ("owner", "registration"):
            await old.create(f"{root}/{path}", ephemeral=True)
        for owner, name in ((b, "theirs"), (zk, "ours")):
            await owner.create(f"{root}/{name}", ephemeral=True)
        former = given_up(old)
        began = time.monotonic()
        await zk.end_former(former)
        await zk.sync()
        assert await zk.children(root) == ["ours", "theirs"]
        assert seconds_since(began) < 10  # its timeout is 20 s


async def test_nodes_created_by_another_session_meanwhile_are_kept(zookeeper: ZooKeeperServer, root: str) -> None:
    """Same name and version; created either when the old ones were deleted or when they had expired."""
    async with session(zookeeper.connect, 20) as old, session(zookeeper.connect) as zk, session(zookeeper.connect) as b:
        await zk.ensure(root)
        await old.create(f"{root}/e", ephemeral=True)
        _, gone = await b.watch_exists(f"{root}/e")
        gone.add_callback(lambda: made.append(asyncio.ensure_future(b.create(f"{root}/e", b"theirs", ephemeral=True))))
        made: list[asyncio.Future[None]] = []
        former = given_up(old)
        await zk.end_former(former)
        await until(lambda: made and made[0].done())
        await made[0]
        for _ in range(3):
            await zk.end_former(former)
            await zk.sync()
            assert (await zk.get(f"{root}/e")).stat.ephemeral_owner == b.id
        assert b.state is SessionState.CONNECTED
