"""A member that cannot reach a broker that others reach leaves the work to them, and returns when it can.

Its broker listener is behind a proxy that goes silent; the others' is not. `test_group_looks` has the other cases.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from structlog.testing import capture_logs

from kzconsumer.group import fitness
from kzconsumer_sandbox.servers.configuration import HOST, free_port
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import only_nightly
from tests.support.members import Reader, reader, settings
from tests.support.proxy import FaultProxy
from tests.support.servers import Servers
from tests.support.steady_flow import flowing
from tests.support.zookeeper_sessions import until

PARTITIONS = 4
THROUGH = "THROUGH"


@pytest.fixture(scope="module")
def proxied(servers: Servers) -> Iterator[tuple[Cluster, int]]:
    """A broker that directs clients of one of its listeners to another port: the proxy's, once a test runs one."""
    cluster = servers.cluster("unfit", listeners={THROUGH: "PLAINTEXT"})
    (broker,) = cluster.brokers.values()
    port = free_port()
    broker.send_signal(signal.SIGTERM)  # after a SIGKILL its node in ZooKeeper would be in the way for some seconds
    broker.wait_ended()
    broker.config["advertised.listeners"] = f"PLAINTEXT://{HOST}:{broker.port},{THROUGH}://{HOST}:{port}"
    broker.wait_startable()
    broker.start()
    cluster.wait_ready()
    yield cluster, port
    cluster.kill()


@asynccontextmanager
async def two_members(cluster: Cluster, port: int, group: str) -> AsyncIterator[tuple[Reader, Reader, FaultProxy]]:
    """One behind the proxy and one not, each with half of the partitions."""
    (broker,) = cluster.brokers.values()
    zookeeper = {"connect": cluster.connect, "session_timeout": "3s"}
    tables = {
        "zookeeper": zookeeper,
        "group": {"id": group, "reconcile_interval": "300ms"},
        "fetch": {"request_timeout": "1s"},
    }
    await create_topic(cluster.connect, group, PARTITIONS)
    async with AsyncExitStack() as stack:
        proxy = FaultProxy(broker.host, broker.listeners[THROUGH].port, listen=port)
        await stack.enter_async_context(proxy)
        await stack.enter_async_context(flowing(cluster, group, PARTITIONS))
        behind = settings(cluster.connect, group, **tables, brokers={"listener": THROUGH})
        through = await stack.enter_async_context(reader(behind, {group: 1}))
        direct = await stack.enter_async_context(reader(settings(cluster.connect, group, **tables), {group: 1}))
        await until(lambda: len(through.owned) == len(direct.owned) == PARTITIONS // 2)
        await until(lambda: len(through.messages) > 50 and len(direct.messages) > 50)
        yield through, direct, proxy


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitness, "UNFIT_AFTER", 1.0)  # twice the session timeout counts: 6 s
    monkeypatch.setattr(fitness, "FIRST_HOLD_DOWN", 1.0)


@only_nightly  # tests/core/plain/test_group_looks.py, with brokers in memory
async def test_it_leaves_and_rejoins(proxied: tuple[Cluster, int], unique: str, impatient: None) -> None:
    with capture_logs() as logs:
        async with two_members(*proxied, unique) as (through, direct, proxy):
            proxy.silent = True
            await until(lambda: len(direct.owned) == PARTITIONS, 40)
            assert not through.owned
            seen = len(direct.messages)
            await until(lambda: len(direct.messages) > seen + 100)
            await until(
                lambda: [
                    entry for entry in logs if entry["event"] == "no broker is reachable, staying out of the group"
                ],
                20,
            )
            proxy.silent = False
            await until(lambda: len(through.owned) == len(direct.owned) == PARTITIONS // 2, 40)
            seen = len(through.messages)
            await until(lambda: len(through.messages) > seen + 50)
    (left,) = (entry for entry in logs if entry["event"] == "left the group to members that can work")
    assert left["reason"] == "no broker answers, while other members go on"
    delivered = [(message.partition, message.offset) for message in through.messages + direct.messages]
    assert len(set(delivered)) == len(delivered)
