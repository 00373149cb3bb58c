"""Reads that set a watch, on a real ZooKeeper: known content is not requested again, and is never out of date."""

from __future__ import annotations

import pytest

from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import REREAD_AT_ONCE, Watches, together
from kzconsumer_sandbox.servers.kafka_servers import ZooKeeperServer
from tests.support.zookeeper_sessions import received_by_session, session, until


async def received(zookeeper: ZooKeeperServer, asking: ZooKeeperSession) -> int:
    return (await received_by_session(zookeeper.host, zookeeper.port))[asking.id]


async def test_a_node_is_read_once_and_again_after_a_change(zookeeper: ZooKeeperServer, unique: str) -> None:
    node = f"/{unique}"
    reasons: list[str] = []
    async with session(zookeeper.connect, 60) as mine, session(zookeeper.connect, 60) as other:
        watches = Watches(mine, reasons.append)
        await other.ensure(f"{node}/a")
        for change in range(3):
            read = await watches.data(node, "content")
            assert read is not None
            assert read.data == (b"%d" % change if change else b"")
            assert await watches.children(node, "list") == ["a", *(f"b{n}" for n in range(change))]
            before = await received(zookeeper, mine)
            for _ in range(10):
                assert await watches.data(node, "content") == read
                await watches.children(node, "list")
            assert await received(zookeeper, mine) == before
            await other.set(node, b"%d" % (change + 1), -1)
            await other.create(f"{node}/b{change}")
            await until(lambda change=change: len(reasons) == 2 * (change + 1))  # type: ignore[misc]
    assert sorted(reasons) == ["content", "content", "content", "list", "list", "list"]


async def test_a_missing_node_is_known_to_be_missing_until_it_is_created(
    zookeeper: ZooKeeperServer, unique: str
) -> None:
    reasons: list[str] = []
    async with session(zookeeper.connect, 60) as mine, session(zookeeper.connect, 60) as other:
        watches = Watches(mine, reasons.append)
        assert await watches.blocking(f"/{unique}", "made") is None
        assert not watches.still_there(f"/{unique}")
        await other.create(f"/{unique}")
        await until(lambda: reasons == ["made"])
        assert not watches.still_there(f"/{unique}")
        assert await watches.blocking(f"/{unique}", "changed") is not None
        assert watches.still_there(f"/{unique}")
        watches.reread()
        assert not watches.still_there(f"/{unique}")
        assert await watches.blocking(f"/{unique}", "changed") is not None
        await other.delete(f"/{unique}", -1)
        await until(lambda: reasons == ["made", "changed"])
        assert not watches.still_there(f"/{unique}")


@pytest.mark.parametrize("kind", ["data", "blocking", "children", "exists"])
async def test_on_demand_everything_is_read_again_and_no_watch_is_armed_twice(
    zookeeper: ZooKeeperServer, unique: str, kind: str
) -> None:
    reasons: list[str] = []
    async with session(zookeeper.connect, 60) as mine, session(zookeeper.connect, 60) as other:
        await other.create(f"/{unique}", b"1")
        watches = Watches(mine, reasons.append)
        read = getattr(watches, kind)
        first = await read(f"/{unique}", "changed")
        watches.reread()
        before = await received(zookeeper, mine)
        assert await read(f"/{unique}", "changed") == first
        assert await received(zookeeper, mine) == before + 1
        assert await read(f"/{unique}", "changed") == first
        assert await received(zookeeper, mine) == before + 1
        await (other.create(f"/{unique}/a") if kind == "children" else other.set(f"/{unique}", b"2", -1))
        await until(lambda: reasons)
        assert await read(f"/{unique}", "changed") != first
        assert reasons == ["changed"]


async def test_several_nodes_are_read_once_and_some_of_them_again_on_demand(
    zookeeper: ZooKeeperServer, unique: str
) -> None:
    paths = [f"/{unique}/{number}" for number in range(2 * REREAD_AT_ONCE + 5)]
    reasons = {path: f"{path} changed" for path in paths}
    fired: list[str] = []
    async with session(zookeeper.connect, 60) as mine, session(zookeeper.connect, 60) as other:
        await other.ensure(f"/{unique}")
        await together([other.create(path, path.encode()) for path in paths[:-1]])
        watches = Watches(mine, fired.append)
        asked, before = [], await received(zookeeper, mine)
        for _ in range(6):
            read = await watches.each_data(reasons)
            assert [node and node.data for node in read] == [*(path.encode() for path in paths[:-1]), None]
            now = await received(zookeeper, mine)
            asked.append(now - before)
            before = now
            watches.reread()
        # The missing node is watched by a second request. All are read again in three times, the oldest ones first.
        assert asked == [len(paths) + 1, *[REREAD_AT_ONCE] * 5]
        await watches.each_data(reasons)
        await other.set(paths[7], b"new", -1)
        await until(lambda: fired == [f"{paths[7]} changed"])
        read = await watches.each_data(reasons)
        assert read[7] is not None
        assert read[7].data == b"new"
