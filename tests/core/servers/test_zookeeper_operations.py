"""The session's operations on a real ZooKeeper: nodes, versions, transactions, watches, chroot, order."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from kzconsumer.errors import (
    BadVersionError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    ZooKeeperError,
)
from kzconsumer.zookeeper.operations import Check, ConnectString, Create, Delete, SetData
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watch_table import WatchKind
from kzconsumer_sandbox.servers.kafka_servers import ZooKeeperServer
from tests.support.zookeeper_sessions import session, until


@pytest.fixture
def connect(zookeeper: ZooKeeperServer, unique: str) -> str:
    """A chroot of the test's own, not created yet."""
    return f"{zookeeper.connect}/{unique}"


async def test_nodes_and_their_versions(connect: str) -> None:
    async with session(connect) as zk:
        await zk.ensure("/a/b")
        await zk.ensure("/a/b")
        await zk.create("/a/b/c", b"one")
        node = await zk.get("/a/b/c")
        assert (node.data, node.stat.version, node.stat.ephemeral_owner) == (b"one", 0, 0)
        stat = await zk.set("/a/b/c", b"two", 0)
        assert (stat.version, stat.czxid) == (1, node.stat.czxid)
        assert stat.mzxid > stat.czxid
        assert (await zk.set("/a/b/c", b"", -1)).version == 2
        assert await zk.find("/a/b/c") == await zk.get("/a/b/c")
        assert (await zk.get("/a/b/c")).data == b""
        assert (await zk.get("/a/b")).data == b""
        for name in ("e", "d"):
            await zk.create(f"/a/b/{name}")
        assert await zk.children("/a/b") == ["c", "d", "e"]
        parent = await zk.exists("/a/b")
        assert parent is not None
        assert (parent.num_children, parent.cversion) == (3, 3)
        await zk.delete("/a/b/c", 2)
        assert await zk.find("/a/b/c") is None
        assert await zk.exists("/a/b/c") is None


async def test_refusals_have_names(connect: str) -> None:
    async with session(connect) as zk:
        await zk.ensure("/a/b")
        with pytest.raises(NodeExistsError, match=r"^/a: "):
            await zk.create("/a")
        for call in (zk.get("/x"), zk.children("/x"), zk.set("/x", b"", -1), zk.delete("/x", -1), zk.create("/x/y")):
            with pytest.raises(NoNodeError, match=r"^/x"):
                await call
        with pytest.raises(BadVersionError, match=r"^/a: "):
            await zk.set("/a", b"", 7)
        with pytest.raises(BadVersionError):
            await zk.delete("/a/b", 1)
        with pytest.raises(NotEmptyError, match=r"^/a: "):
            await zk.delete("/a", 0)
        await zk.create("/e", ephemeral=True)
        with pytest.raises(ZooKeeperError, match=r"^/e/f: an ephemeral node has no children"):
            await zk.create("/e/f")
        for path in ("a", "", "/a/", "/../a"):
            with pytest.raises(ZooKeeperError):
                await zk.get(path)


async def test_a_request_that_is_too_large_is_refused_without_losing_the_connection(connect: str) -> None:
    async with session(connect) as zk:
        await zk.ensure("/a")
        with pytest.raises(ZooKeeperError, match=r"^/a: a request of 10000\d\d bytes"):
            await zk.set("/a", bytes(1_000_000), -1)
        with pytest.raises(ZooKeeperError, match=r"^/a: a request of"):
            await zk.multi([SetData("/a", bytes(600_000), -1)] * 2)
        await zk.set("/a", bytes(999_000), -1)
        assert len((await zk.get("/a")).data) == 999_000


async def test_paths_are_relative_to_the_chroot(zookeeper: ZooKeeperServer, unique: str) -> None:
    async with session(zookeeper.connect) as plain, session(f"{zookeeper.connect}/{unique}/in") as rooted:
        with pytest.raises(NoNodeError):
            await rooted.create("/a")
        await rooted.ensure("/")
        await rooted.create("/a", b"x")
        await rooted.multi([Create("/b", b"y"), SetData("/a", b"z", 0)])
        assert (await plain.get(f"/{unique}/in/a")).data == b"z"
        assert await plain.children(f"/{unique}/in") == await rooted.children("/") == ["a", "b"]
        _, watch = await rooted.watch_data("/a")
        await rooted.sync("/a")
        await plain.delete(f"/{unique}/in/a", -1)
        with anyio.fail_after(5):
            await watch.wait()


async def test_ephemeral_nodes_are_ours_and_end_with_the_session(connect: str) -> None:
    async with session(connect) as witness:
        await witness.ensure("/")
        async with session(connect) as zk:
            await zk.create("/e", b"", ephemeral=True)
            stat, watch = await witness.watch_exists("/e")
            assert stat is not None
            assert stat.ephemeral_owner == zk.id
        with anyio.fail_after(1):  # the timeout is 6 s: the close did it
            await watch.wait()
        assert await witness.exists("/e") is None


async def test_after_close_every_call_is_refused(connect: str) -> None:
    async with session(connect) as zk:
        await zk.ensure("/a")
        _, watch = await zk.watch_data("/a")
        states: list[str] = []
        zk.listeners.append(lambda state: states.append(state.value))
        await asyncio.gather(zk.close(), zk.close())
        await zk.close()
        assert states == ["closed"]
        assert not zk.expired
        assert not zk.trusted()
        assert zk.safe_until == 0.0
        for call in (zk.get("/a"), zk.watch_exists("/b"), zk.multi([Check("/a", 0)]), zk.wait_trusted(), watch.wait()):
            with pytest.raises(SessionExpiredError):
                await call
        with anyio.move_on_after(0.05) as scope:
            await zk.wait_expired()
        assert scope.cancelled_caught


async def test_closing_a_session_that_was_never_opened(connect: str) -> None:
    zk = ZooKeeperSession(ConnectString.parse(connect), 6.0)
    await zk.close()
    with pytest.raises(SessionExpiredError):
        await zk.get("/")


async def test_a_transaction_is_all_or_nothing(connect: str) -> None:
    async with session(connect) as zk:
        await zk.ensure("/a")
        await zk.ensure("/b")
        results = await zk.multi(
            [Check("/a", 0), SetData("/a", b"1", 0), Create("/c", b"2"), SetData("/b", b"3", 0), Delete("/c", 0)]
        )
        assert [stat and stat.version for stat in results] == [None, 1, None, 1, None]
        assert await zk.multi([]) == []
        await zk.multi([Create("/e", b"", ephemeral=True)])
        assert (await zk.get("/e")).stat.ephemeral_owner == zk.id


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Check("/a", 5), BadVersionError),
        (Check("/x", 0), NoNodeError),
        (Create("/a", b""), NodeExistsError),
        (Create("/x/y", b""), NoNodeError),
        (SetData("/a", b"", 5), BadVersionError),
        (SetData("/x", b"", 0), NoNodeError),
        (Delete("/a", 5), BadVersionError),
        (Delete("/", -1), NotEmptyError),
    ],
    ids=str,
)
@pytest.mark.parametrize("index", [0, 2])
async def test_a_refused_transaction_names_the_operation(
    connect: str, operation: Check | Create | SetData | Delete, error: type[ZooKeeperError], index: int
) -> None:
    async with session(connect) as zk:
        await zk.ensure("/a")
        await zk.ensure("/b")
        operations: list[Check | Create | SetData | Delete] = [
            SetData("/b", b"no", 0),
            Check("/b", 1),
            Create("/n", b""),
        ]
        operations.insert(index, operation)
        with pytest.raises(MultiFailedError) as failure:
            await zk.multi(operations)
        assert failure.value.index == index
        assert type(failure.value.error) is error
        assert failure.value.path == failure.value.error.path == operation.path
        assert (await zk.get("/b")).stat.version == 0
        assert await zk.exists("/n") is None


async def test_watches_trigger_once_and_reads_return_the_state(connect: str) -> None:
    async with session(connect) as zk, session(connect) as other:
        await zk.ensure("/a")
        events: list[str] = []

        node, data = await zk.watch_data("/a")
        names, children = await zk.watch_children("/a")
        absent, created = await zk.watch_data("/n")
        missing, appears = await zk.watch_exists("/m")
        there, changes = await zk.watch_exists("/a")
        assert node is not None
        assert there == node.stat
        assert (names, absent, missing) == ([], None, None)
        with pytest.raises(NoNodeError):
            await zk.watch_children("/n")
        watches = {"data": data, "children": children, "created": created, "appears": appears, "changes": changes}
        for name, watch in watches.items():
            watch.add_callback(lambda name=name: events.append(name))  # type: ignore[misc]
        assert not any(watch.fired for watch in watches.values())

        await other.set("/a", b"1", -1)
        await other.set("/a", b"2", -1)
        await until(lambda: len(events) == 2)
        await other.create("/a/k")
        await other.create("/n")
        await other.create("/m")
        with anyio.fail_after(5):
            await children.wait()
            await created.wait()
            await appears.wait()
        assert sorted(events) == sorted(watches)


async def test_an_event_precedes_any_reply_that_shows_the_change(connect: str) -> None:
    async with session(connect) as zk, session(connect) as other:
        await zk.ensure("/a")
        for value in range(200):
            _, watch = await zk.watch_data("/a")
            write = asyncio.ensure_future(other.set("/a", str(value).encode(), -1))
            while (await zk.get("/a")).data != str(value).encode():
                pass
            assert watch.fired
            await write


async def test_a_cancelled_watch_and_a_cancelled_call_leave_nothing(connect: str) -> None:
    async with session(connect) as zk:
        await zk.ensure("/a")
        _, watch = await zk.watch_data("/a")
        watch.cancel()
        for _ in range(5):
            call = asyncio.ensure_future(zk.watch_data("/a"))
            await asyncio.sleep(0)
            call.cancel()
        _, kept = await zk.watch_children("/a")
        (armed,) = zk.watches.chunks(1000)
        assert {kind: len(paths) for kind, paths in armed.items() if paths} == {WatchKind.CHILD: 1}
        await zk.delete("/a", -1)
        await kept.wait()
        assert not watch.fired


async def test_repr_is_one_line(connect: str) -> None:
    async with session(connect) as zk:
        text = repr(zk)
        assert text == f"<ZooKeeperSession {zk.id & (2**64 - 1):#x} connected at {connect}>"
