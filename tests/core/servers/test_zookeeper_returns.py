"""A ZooKeeper that is restored from a copy, has more requests than it answers, or whose quota is used up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import anyio
import pytest

from kzconsumer import clock
from kzconsumer.errors import SessionExpiredError
from kzconsumer.zookeeper.watches import together
from kzconsumer_sandbox.servers.kafka_servers import ZooKeeperServer
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until

T = 3.0


class Limited(ZooKeeperServer):
    """Answers few requests at a time, and refuses those that have waited; enforces quotas."""

    def command(self) -> list[str]:
        java, *rest = super().command()
        limits = {
            "enforceQuota": "true",
            "request_throttle_max_requests": 1,
            "request_throttle_stall_time": 20,
            "throttled_op_wait_time": 1,
        }
        return [java, *(f"-Dzookeeper.{name}={value}" for name, value in limits.items()), *rest]


@pytest.fixture(scope="module")
def limited(servers: Servers) -> Iterator[ZooKeeperServer]:
    server = Limited(servers.folder / "limited", servers.java, servers.zookeeper.jars)
    server.start()
    server.wait_ready()
    yield server
    server.kill()


async def test_a_session_of_an_ensemble_that_was_restored_ends_and_another_begins(
    servers: Servers,
) -> None:
    """From a copy of the time when it had no nodes yet: an empty directory."""
    zookeeper = servers.own_zookeeper("restored")
    async with session(zookeeper.connect, T) as zk:
        for number in range(20):
            await zk.create(f"/n{number}")
        zookeeper.kill()
        shutil.rmtree(zookeeper.folder / "data")
        began = clock.now()
        zookeeper.start()
        await until(lambda: zk.expired, 10 * T)
        assert clock.now() - began > T / 2
        with pytest.raises(SessionExpiredError, match="restored from a copy"):
            await zk.get("/n0")
        async with session(zookeeper.connect, T) as another:
            assert await another.children("/") == ["zookeeper"]


async def test_requests_that_an_overloaded_server_refuses_are_executed_once(limited: ZooKeeperServer) -> None:
    async with session(limited.connect) as zk:
        await zk.ensure("/throttled")
        postponed = set()

        async def look() -> None:
            while True:
                postponed.add(zk.postponed)
                await anyio.sleep(0.001)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            for _ in range(20):
                await together(zk.set("/throttled", b"x", -1) for _ in range(50))
                if len(postponed) > 1:
                    break
            tasks.cancel_scope.cancel()
        stat = await zk.exists("/throttled")
        assert stat is not None
        assert stat.version % 50 == 0
        assert any("THROTTLEDOP" in (reason or "") for reason in postponed), "nothing was refused"


async def test_a_quota_that_is_used_up_is_waited_for(limited: ZooKeeperServer) -> None:
    async with session(limited.connect) as zk:
        await zk.ensure("/full")
        for node in ("/zookeeper/quota/full", "/zookeeper/quota/full/zookeeper_limits"):
            await zk.create(node)
        await zk.create("/zookeeper/quota/full/zookeeper_stats", b"count=1,bytes=0")
        await zk.set(
            "/zookeeper/quota/full/zookeeper_limits", b"count=2,bytes=-1,byteHardLimit=-1;countHardLimit=2", -1
        )
        await zk.create("/full/a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(zk.create, "/full/b")
            await until(lambda: "QUOTAEXCEEDED" in (zk.postponed or ""))
            assert await zk.children("/full") == ["a"]
            await zk.delete("/full/a", -1)
        assert await zk.children("/full") == ["b"]
