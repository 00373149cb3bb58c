"""A cluster of 3.9.1 leaves ZooKeeper, in the steps of Kafka's documentation, and goes on to Kafka 4.

https://kafka.apache.org/39/documentation.html#kraft_zk_migration
"""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio.to_thread

from kzconsumer.registry.nodes import decode_cluster_id
from kzconsumer.registry.paths import CLUSTER_ID
from kzconsumer.zookeeper.session import ConnectString, ZooKeeperSession
from kzconsumer_sandbox.errors import SandboxError
from kzconsumer_sandbox.servers.cluster import Cluster
from kzconsumer_sandbox.servers.jars import NEWEST, kafka_version, resolve_jars
from kzconsumer_sandbox.servers.quorum import ControllerServer, new_quorum
from kzconsumer_sandbox.servers.sandbox import start_server, stop_server
from kzconsumer_sandbox.servers.server_process import START_LIMIT

COPIED = "Completed migration of metadata from ZooKeeper to KRaft"
CONTROLLER = 3000
SESSION_TIMEOUT = 6.0


class Migration:
    """Of a cluster in ZooKeeper mode; the steps in their order, each of which ends when the servers serve.

    `controller` runs from the first step on. All raise SandboxError.
    """

    def __init__(self, cluster: Cluster, folder: Path, java: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._java = java
        self.controller: ControllerServer | None = None

    @property
    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        return [self.copy, self.change_mode, self.finish, self.upgrade]

    async def copy(self) -> None:
        """A controller copies the metadata; from now on it writes to both."""
        async with self._session() as zookeeper:
            cluster_id = decode_cluster_id((await zookeeper.get(CLUSTER_ID)).data)
        self._quorum = new_quorum(CONTROLLER, cluster_id)
        zookeeper_too = {"zookeeper.connect": self._cluster.connect, "zookeeper.metadata.migration.enable": "true"}
        jars = resolve_jars(NEWEST.jars)
        self.controller = ControllerServer(self._quorum, self._folder, self._java, jars, zookeeper_too)
        await start_server(self.controller)
        await self._restart_brokers(migrating=True)
        await anyio.to_thread.run_sync(_wait_copied, self.controller, abandon_on_cancel=True)

    async def change_mode(self) -> None:
        """The brokers begin KRaft mode, and are no longer registered in ZooKeeper."""
        await self._restart_brokers(migrating=False)

    async def finish(self) -> None:
        """The controller forgets ZooKeeper, and the cluster's nodes are deleted there."""
        await self._restart_controller()
        async with self._session() as zookeeper:
            for name in await zookeeper.children("/"):
                if name not in ("consumers", "zookeeper"):
                    await _delete(zookeeper, f"/{name}")

    async def upgrade(self) -> None:
        """Kafka 4, which has no ZooKeeper mode."""
        version = kafka_version("4.2.0")
        jars = resolve_jars(version.jars)
        await self._restart_controller(jars)
        self._cluster.version = version.number
        for broker in self._cluster.brokers.values():
            broker.upgrade(version, jars)
        await self._restart_brokers(migrating=False)

    def kill(self) -> None:
        """End the controller; brokers belong to the cluster."""
        if self.controller is not None:
            self.controller.kill()

    async def _restart_controller(self, jars: Path | None = None) -> None:
        assert self.controller is not None
        await stop_server(self.controller)
        self.controller.migrating.clear()
        self.controller.jars = jars or self.controller.jars
        await start_server(self.controller)

    async def _restart_brokers(self, *, migrating: bool) -> None:
        for broker in self._cluster.brokers.values():
            await stop_server(broker, signal.SIGTERM)
            broker.quorum, broker.migrating = self._quorum, migrating
            await start_server(broker)

    def _session(self) -> ZooKeeperSession:
        return ZooKeeperSession(ConnectString.parse(self._cluster.connect), SESSION_TIMEOUT)


def _wait_copied(controller: ControllerServer) -> None:
    deadline = time.monotonic() + START_LIMIT
    while COPIED not in controller.log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise SandboxError(f"the metadata was not copied in {START_LIMIT:.0f} s, see {controller.log}")
        time.sleep(0.1)


async def _delete(zookeeper: ZooKeeperSession, path: str) -> None:
    for name in await zookeeper.children(path):
        await _delete(zookeeper, f"{path}/{name}")
    await zookeeper.delete(path, -1)
