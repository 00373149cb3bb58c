"""How a session begins: which server, how long that may take, what is said of the others. A real ZooKeeper, a proxy."""

from __future__ import annotations

import asyncio
import time

import anyio
import pytest
from structlog.testing import capture_logs

from kzconsumer.zookeeper.operations import ConnectString
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.session_life import SessionState
from kzconsumer_sandbox.servers.configuration import free_port
from kzconsumer_sandbox.servers.jars import NEWEST, resolve_jars
from kzconsumer_sandbox.servers.kafka_servers import ZooKeeperServer
from kzconsumer_sandbox.servers.readiness import four_letters
from tests.core.servers.test_zookeeper_session import SLACK, T, seconds_since, to
from tests.support.ensemble import EnsembleServer
from tests.support.processes import wait_until
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session


async def test_the_first_connection_times_out(zookeeper: ZooKeeperServer) -> None:
    zk = ZooKeeperSession(ConnectString.parse(f"127.0.0.1:{free_port()}"), T)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.3):
            await zk.__aenter__()
    assert seconds_since(start) < 0.3 + SLACK
    assert zk.state is SessionState.CLOSED
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "zookeeper session"]


@pytest.mark.parametrize("fault", ["silent", "refused", "no name"])
async def test_an_unreachable_host_does_not_prevent_a_connection_to_another(
    zookeeper: ZooKeeperServer, fault: str
) -> None:
    async with to(zookeeper) as proxy:
        proxy.silent = True
        bad = {"silent": proxy.connect, "refused": f"127.0.0.1:{free_port()}", "no name": "no..name:1"}[fault]
        for _ in range(4):
            start = time.monotonic()
            async with session(f"{bad},{zookeeper.connect}", T) as zk:
                assert seconds_since(start) < max(T / 3 / 2, 0.5) + SLACK
                await zk.exists("/")


async def test_a_server_without_quorum_is_reported_and_not_taken_for_a_tls_port(servers: Servers, unique: str) -> None:
    """One server of three: it listens, and closes every connection that requests a session."""
    jars = resolve_jars(NEWEST.jars)
    alone, *others = (EnsembleServer(number, servers.folder / unique, servers.java, jars) for number in (1, 2, 3))
    alone.reached = {other: other.quorum_port for other in others}
    alone.start()
    try:
        assert wait_until(lambda: bool(four_letters(alone.host, alone.port, b"srvr")), 30)
        zk = ZooKeeperSession(ConnectString.parse(alone.connect), T)
        with capture_logs() as lines, anyio.move_on_after(1.0):
            await zk.__aenter__()
        await zk.close()
    finally:
        alone.kill()
    output = next(line for line in lines if line["event"] == "no ZooKeeper server answers")
    assert output["reasons"] == [f"{alone.connect}: closed by the server: it has no quorum, so it rejects clients"]
