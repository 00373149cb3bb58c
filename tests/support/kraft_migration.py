"""The steps in which a cluster of 3.9.1 leaves ZooKeeper, as in Kafka's documentation, and goes on to Kafka 4."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.cluster import Cluster
from kzconsumer_sandbox.servers.jars import resolve_jars
from kzconsumer_sandbox.servers.quorum import ControllerServer, new_quorum
from kzconsumer_sandbox.servers.sandbox import start_server, stop_server
from kzconsumer_sandbox.servers.server_process import START_LIMIT
from kzconsumer_sandbox.servers.versions import NEWEST, kafka_version
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session

COPIED = "Completed migration of metadata from ZooKeeper to KRaft"
CONTROLLER = 3000


class Migration:
    """Of a cluster in ZooKeeper mode; the steps in their order, each of which ends when the servers serve."""

    def __init__(self, servers: Servers, cluster: Cluster, cluster_id: str, folder: Path) -> None:
        self._servers = servers
        self._cluster = cluster
        self._quorum = new_quorum(CONTROLLER, cluster_id)
        zookeeper = {"zookeeper.connect": cluster.connect, "zookeeper.metadata.migration.enable": "true"}
        jars = resolve_jars(NEWEST.jars, servers.java)
        self.controller = ControllerServer(self._quorum, folder, servers.java, jars, zookeeper)

    @property
    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        return [self.copy, self.change_mode, self.finish, self.upgrade]

    async def copy(self) -> None:
        """A controller copies the metadata; from now on it writes to both."""
        await start_server(self.controller)
        await self._restart_brokers(migrating=True)
        with anyio.fail_after(START_LIMIT):
            while COPIED not in self.controller.log.read_text(errors="replace"):
                await anyio.sleep(0.1)

    async def change_mode(self) -> None:
        """The brokers begin KRaft mode, and are no longer registered in ZooKeeper."""
        await self._restart_brokers(migrating=False)

    async def finish(self) -> None:
        """The controller forgets ZooKeeper, and the cluster's nodes are deleted there."""
        await stop_server(self.controller)
        self.controller.migrating.clear()
        await start_server(self.controller)
        async with session(self._cluster.connect) as zookeeper:
            for name in await zookeeper.children("/"):
                if name != "consumers":
                    await _delete(zookeeper, f"/{name}")

    async def upgrade(self) -> None:
        """Kafka 4, which has no ZooKeeper mode."""
        version = kafka_version("4.2.0")
        jars = resolve_jars(version.jars, self._servers.java)
        await stop_server(self.controller)
        self.controller.jars = jars
        await start_server(self.controller)
        for broker in self._cluster.brokers.values():
            broker.upgrade(version, jars)
        await self._restart_brokers(migrating=False)

    async def _restart_brokers(self, *, migrating: bool) -> None:
        for broker in self._cluster.brokers.values():
            await stop_server(broker, signal.SIGTERM)
            broker.quorum, broker.migrating = self._quorum, migrating
            await start_server(broker)


async def _delete(zookeeper: ZooKeeperSession, path: str) -> None:
    for name in await zookeeper.children(path):
        await _delete(zookeeper, f"{path}/{name}")
    await zookeeper.delete(path, -1)
