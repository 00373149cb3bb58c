"""A session comes back from everything: servers that are overloaded, full, read-only, restored from an older copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import NotNowError, SessionExpiredError
from kzconsumer.model import TopicPartition
from kzconsumer.zookeeper.operations import ConnectString, Create, SetData
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.session_life import SessionState
from kzconsumer.zookeeper.watches import repeated
from tests.support.simulated.clients import Clients
from tests.support.simulated.ensemble import Connection
from tests.support.simulated.group import simulated_group
from tests.support.simulated.member import Member
from tests.support.simulated.network import CHROOT, SLOW
from tests.support.simulated.scene import SESSION_TIMEOUT
from tests.support.simulated.zookeeper_frames import Handshake

T = 6.0


@pytest.fixture
def logs() -> Iterator[list[dict[str, object]]]:
    with capture_logs() as found:
        yield found  # type: ignore[misc]


def events(logs: list[dict[str, object]], event: str) -> list[dict[str, object]]:
    return [each for each in logs if each["event"] == event]


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_what_an_overloaded_server_refuses_is_executed_later_and_once(
    share: float, logs: list[dict[str, object]]
) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        await session.create("/node", b"0")
        clients.ensemble.throttled = share
        for number in range(10):
            await session.set("/node", b"%d" % number, number)
            assert (await session.get("/node")).stat.version == number + 1
        await anyio.sleep(3 * T)
        assert session.state is SessionState.CONNECTED
        watch = (await session.watch_data("/node"))[1]
        clients.ensemble.throttled = 1.0
        clients.network.cut(clients.process, arrives=True)
        await anyio.sleep(1)
        clients.ensemble.throttled = share
        await anyio.sleep(20)
        clients.ensemble.operate(SetData("/node", b"other", -1))
        await watch.wait()  # it was restored although the server was too busy to do so at once
        clients.ensemble.throttled = 0.0

    clients.play(script, 200.0)
    (reported,) = {(each["reason"], each["log_level"]) for each in events(logs, "request postponed by ZooKeeper")}
    assert "THROTTLEDOP" in str(reported[0])
    assert not events(logs, "connection lost")[1:]  # but for the one that was cut


def test_a_quota_is_waited_for_and_its_reason_shown(logs: list[dict[str, object]]) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        clients.ensemble.quota = "/consumers"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.create, "/consumers/a")
            tasks.start_soon(session.multi, [Create("/b", b""), Create("/consumers/b", b"")])
            await anyio.sleep(20)
            assert session.postponed is not None
            assert "QUOTAEXCEEDED" in session.postponed
            assert await session.children("/consumers") == []
            clients.ensemble.quota = None
        assert await session.children("/consumers") == ["a", "b"]
        assert session.postponed is None
        clients.ensemble.quota = "/consumers"
        with anyio.move_on_after(3):
            await session.create("/consumers/c")
        clients.ensemble.quota = None

    clients.play(script)
    assert len(events(logs, "request postponed by ZooKeeper")) == 2  # each time it begins


def test_a_command_does_not_wait_for_a_quota() -> None:
    clients = Clients()
    clients.ensemble.make("/consumers")

    async def script(session: ZooKeeperSession) -> None:
        clients.ensemble.quota = "/consumers"
        async with ZooKeeperSession(ConnectString.parse(f"zk0:2181{CHROOT}"), T, brief=True) as brief:
            with pytest.raises(NotNowError, match=r"/consumers/a: a quota of ZooKeeper .* \(QUOTAEXCEEDED, -125\)"):
                await brief.create("/consumers/a")

    clients.play(script)


def test_a_session_that_has_seen_what_a_restored_ensemble_has_not_ends_when_its_time_is_over(
    logs: list[dict[str, object]],
) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        copy = clients.ensemble.tree.zxid
        for number in range(200):
            await session.create(f"/n{number}")
        began = clients.world.now
        clients.ensemble.restore(copy)
        with anyio.fail_after(4 * T):
            await session.wait_expired()
        assert clients.world.now - began > session.timeout - 1, "it could have been another session's by then"
        with pytest.raises(SessionExpiredError, match="restored from a copy"):
            await session.get("/n0")
        async with clients.session() as another:
            assert await another.exists("/n0") is None

    clients.play(script)
    (lost,) = events(logs, "ZooKeeper has lost transactions")
    assert int(str(lost["has"]), 16) < int(str(lost["seen"]), 16)


@pytest.mark.parametrize("elected", [True, False], ids=["a leader was elected", "a server alone"])
@pytest.mark.parametrize("ago", [0.3, 2.0, 8.0])
def test_a_group_goes_on_without_the_last_transactions(ago: float, elected: bool) -> None:
    """Members that keep their sessions may have claims that ZooKeeper has not, or have released some that it has."""
    with simulated_group(1, looks="3s") as group:
        group.logs.grow("t", 3)
        first = group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(10.0)
        second = group.join("b", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(6.0, lambda: len(second.owned) == 1)
        group.restore_zookeeper(ago, elected=elected)
        group.come_to_rest(45.0, 8.0)
        assert len(first.owned | second.owned) == 3


@pytest.mark.parametrize("elected", [False, True])
def test_brokers_that_a_restored_zookeeper_has_are_found_by_a_member_that_had_found_none(elected: bool) -> None:
    """It has not rebalanced yet, so it does not look; and no event reports them."""
    with simulated_group(1) as group:

        def logged(event: str) -> bool:
            return any(each["event"] == event for each in group.events)

        group.logs.grow("t", 2)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(10, lambda: logged("connected"))
        group.network.latency[member.process] = SLOW
        assert group.world.pass_time(10, lambda: group.paths.member("g_a") in group.ensemble.tree.nodes)
        there = group.world.now
        group.take_brokers(60.0)
        assert group.world.pass_time(10, lambda: logged("no broker registered"))
        group.restore_zookeeper(group.world.now - there + 0.001, elected=elected)
        del group.network.latency[member.process]  # a handshake within its time limit would be luck
        assert group.world.pass_time(30, lambda: len(member.owned) == 2)
        assert member.generation == 1, "in the same session"
        group.come_to_rest(30, 3)


def test_a_change_by_another_program_makes_no_shorter_what_a_restored_zookeeper_excuses() -> None:
    """A member that has been silent since before hands out records for a moment, until it sees whose they are now."""
    with simulated_group(2, assignor="sticky", lag=(0.0005, 0.01)) as group:
        group.logs.grow("t", 2)
        first, second = (group.join(name, {"t": 1}, 0.0, in_batches=True) for name in ("m1", "m2"))
        group.world.pass_time(SESSION_TIMEOUT)
        group.silence(first, 6.0)
        group.world.pass_time(0.25)
        group.silence(second, 12.0)
        group.world.pass_time(0.2)
        third = group.join("m3", {"t": 3}, 0.0, in_batches=False, explicit=True)
        group.world.pass_time(6.75)
        group.silence(third, 6.0)
        group.world.pass_time(0.1)
        group.restore_zookeeper(5.0, elected=True)
        group.world.pass_time(1.5)
        for partition in range(2):
            group.set_offset(TopicPartition("t", partition), 0)
        group.world.pass_time(7.0)
        group.check()


@pytest.mark.parametrize("fault", ["none", "cut", "silent"])
def test_nothing_can_be_asked_of_a_session_that_is_being_closed(fault: str) -> None:
    """Also if that takes long: who closes it relies on nothing being written by it from then on."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        other = clients.session()
        async with other:
            if fault == "cut":
                clients.network.cut(clients.process, arrives=False)
            clients.network.set_silent(clients.process, fault == "silent")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other.close)
                await anyio.lowlevel.checkpoint()
                for _ in range(2):
                    with pytest.raises(SessionExpiredError, match="the session is being closed"):
                        await other.create("/late")
                clients.network.set_silent(clients.process, False)
        with pytest.raises(SessionExpiredError, match="closed"):
            await other.create("/late")
        assert await session.exists("/late") is None

    clients.play(script)


def test_a_session_is_kept_while_servers_have_no_quorum_or_are_read_only() -> None:
    """They may come back, and keep it: its nodes, and those of all members, are as they were."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        await session.create("/mine", ephemeral=True)
        (kept,) = clients.ensemble.sessions.values()
        for server in clients.ensemble.servers:
            server.read_only = True
            server.set_cut_off(True)
        for line in list(clients.network.lines):
            line.cut(arrives=False)
        for _ in range(10):
            await anyio.sleep(T)
            clients.ensemble.touch(kept)  # no leader ends it
        assert session.state is SessionState.SUSPENDED
        for server in clients.ensemble.servers:
            server.set_cut_off(False)
        assert await session.exists("/mine")

    clients.play(script, 120.0)


def test_a_session_is_kept_by_a_server_that_is_behind_for_long() -> None:
    """The only one that it reaches has not seen what the session has, and the quorum knows the session."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        await session.create("/mine", ephemeral=True)
        (kept,) = clients.ensemble.sessions.values()
        (line,) = clients.network.lines
        assert isinstance(line.connection, Connection)
        for server in clients.ensemble.servers:
            if server is not line.connection.server:
                server.lag = (2 * T, 2 * T)
        reached = line.connection.server
        for number in range(5):
            await session.create(f"/n{number}")
        reached.set_cut_off(True)
        reached.read_only = True
        line.cut(arrives=False)
        for _ in range(4):
            await anyio.sleep(T / 2)
            clients.ensemble.touch(kept)
        for server in clients.ensemble.servers:
            server.lag = (0.001, 0.01)
        assert await repeated(partial(session.exists, "/mine"))
        reached.set_cut_off(False)

    clients.play(script, 120.0)


def test_a_session_is_kept_if_a_server_that_refuses_it_has_all_that_it_has_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was behind, and is not any more: new sessions are no proof that this one is over."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        await session.create("/mine", ephemeral=True)
        (kept,) = clients.ensemble.sessions.values()
        greet = Connection.greet

        def refuse(connection: Connection, hello: Handshake) -> None:
            connection.close() if hello.session else greet(connection, hello)

        with monkeypatch.context() as patch:
            patch.setattr(Connection, "greet", refuse)
            clients.network.cut(clients.process, arrives=True)
            for _ in range(4):
                await anyio.sleep(T / 2)
                clients.ensemble.touch(kept)
        assert await repeated(partial(session.exists, "/mine"))
        others = [each for each in clients.ensemble.sessions.values() if each is not kept]
        assert others, "no server was asked for a new session"
        assert not any(each.alive for each in others)

    clients.play(script, 120.0)


def test_a_forked_child_has_no_session() -> None:
    """It could connect with its parent's id and password, by which servers would disconnect the parent."""
    clients, children = Clients(), list[int]()

    async def script(session: ZooKeeperSession) -> None:
        if (child := os.fork()) == 0:
            code = 1
            try:
                session.check()
            except SessionExpiredError:
                code = 0
            finally:
                os._exit(code)
        children.append(child)
        session.check()

    clients.play(script)
    assert os.waitpid(children[0], 0)[1] == 0


def test_each_reason_is_logged_once_when_it_changes(logs: list[dict[str, object]]) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        for silent in (False, True, False, True):
            for server in clients.ensemble.servers:
                server.read_only = not silent
                server.set_cut_off(True)
            for line in list(clients.network.lines):
                line.cut(arrives=False)
            await anyio.sleep(2 * T)
        for server in clients.ensemble.servers:
            server.set_cut_off(False)

    clients.play(script, 120.0)
    reported = events(logs, "no ZooKeeper server answers")
    assert len(reported) == 2
    assert "maxClientCnxns" in str(reported), "a session that was let in is refused for this, too"


@pytest.mark.parametrize("ago", [0.5, 30.0])
def test_a_group_consumes_again_after_zookeeper_was_restored(ago: float) -> None:
    """The copy has the members' sessions and claims, or is from before the group."""
    with simulated_group(1) as group:
        group.logs.grow("t", 4)
        group.world.pass_time(1)
        copies = [group.ensemble.tree.zxid]
        members = [group.join(name, {"t": 1}, 0.0, in_batches=False) for name in "ab"]
        for _ in range(60):
            group.world.pass_time(0.5)
            copies.append(group.ensemble.tree.zxid)
        assert all(member.held for member in members)
        group.promises.watching = False  # offsets go back, and records come again
        began = group.world.now
        group.ensemble.restore(copies[-1 - int(ago * 2)])
        group.world.pass_time(SESSION_TIMEOUT / 2)
        assert group.world.pass_time(2 * SESSION_TIMEOUT + 2, lambda: sum(len(m.held) for m in members) == 4)
        assert group.world.now - began < 2 * SESSION_TIMEOUT + 3
        ends = {p: group.logs.end(p) for p in group.logs.partitions}
        assert group.world.pass_time(20, lambda: all(read(members).get(p, 0) >= end for p, end in ends.items()))


def read(members: list[Member]) -> dict[TopicPartition, int]:
    return {at.topic_partition: at.consumed for each in members if each.connector for at in each.connector.positions()}


@pytest.mark.parametrize("how", ["throttled", "quota"])
def test_members_do_not_exit_when_requests_are_postponed(how: str) -> None:
    """From the start, and while they consume."""
    with simulated_group(1) as group:
        group.logs.grow("t", 4)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        for _ in range(2):
            if how == "quota":
                group.ensemble.quota = "/consumers"
            else:
                group.ensemble.throttled = 0.7
            group.world.pass_time(30)
            group.check()
            assert member.task is not None
            assert not member.task.done()
            group.ensemble.quota, group.ensemble.throttled = None, 0.0
            assert group.world.pass_time(20, lambda: len(member.held) == 4)
        group.come_to_rest(30, 3)
