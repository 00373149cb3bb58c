"""Reads that set a watch, on a real ZooKeeper: known content is not requested again, and is never out of date."""

from __future__ import annotations

import pytest

from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches
from kzconsumer_sandbox.servers.zookeeper_server import ZooKeeperServer
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
        assert await watches.exists(f"/{unique}", "made") is None
        assert not watches.still_there(f"/{unique}")
        await other.create(f"/{unique}")
        await until(lambda: reasons == ["made"])
        assert not watches.still_there(f"/{unique}")
        assert await watches.exists(f"/{unique}", "changed") is not None
        assert watches.still_there(f"/{unique}")
        watches.reread()
        assert not watches.still_there(f"/{unique}")
        assert await watches.exists(f"/{unique}", "changed") is not None
        await other.delete(f"/{unique}", -1)
        await until(lambda: reasons == ["made", "changed"])
        assert not watches.still_there(f"/{unique}")


@pytest.mark.parametrize("kind", ["data", "children", "exists"])
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
