"""A ZooKeeper and a cluster of brokers as an async context manager, and the migration of such a cluster to KRaft.

A server that fails is not restarted.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType

import anyio.to_thread

from kzconsumer.registry.nodes import decode_cluster_id
from kzconsumer.registry.paths import CLUSTER_ID
from kzconsumer.zookeeper.operations import ConnectString
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers.configuration import QUICK_START, Ports
from kzconsumer_sandbox.servers.jars import NEWEST, KafkaVersion, Progress, find_java, kafka_version, resolve_jars
from kzconsumer_sandbox.servers.kafka_servers import (
    BrokerServer,
    Cluster,
    ControllerServer,
    ZooKeeperServer,
    new_quorum,
)
from kzconsumer_sandbox.servers.server_process import START_LIMIT, ServerProcess


def prepare(version: KafkaVersion, progress: Progress | None = None) -> None:
    """Find Java and fetch the jars that a sandbox of that version needs. Blocks. Raises SandboxError."""
    find_java()
    for jars in dict.fromkeys((NEWEST.jars, version.jars)):
        resolve_jars(jars, progress)


class Sandbox:
    """A cluster without a chroot, on `ports` or any free ones. The servers end with the thread that enters it.

    `heap`, `config` and `tuning` are the brokers', as in Cluster, and so is `kraft`.
    """

    def __init__(
        self,
        folder: Path,
        kafka_version_number: str = NEWEST.number,
        brokers: int = 1,
        *,
        ports: Ports | None = None,
        heap: str = "256m",
        config: Mapping[str, object] | None = None,
        tuning: tuple[str, ...] = QUICK_START,
        kraft: bool = False,
    ) -> None:
        self.folder = folder
        self._version = kafka_version(kafka_version_number)
        self._ports = ports or Ports.free(brokers)
        self._heap = heap
        self._config = dict(config or {})
        self._tuning = tuning
        self._kraft = kraft

    zookeeper: ZooKeeperServer
    cluster: Cluster

    async def __aenter__(self) -> Sandbox:
        """Returns when every broker knows all brokers. Raises SandboxError."""
        await anyio.to_thread.run_sync(prepare, self._version)
        java = find_java()
        jars = resolve_jars(NEWEST.jars)
        self.zookeeper = ZooKeeperServer(self.folder / "zookeeper", java, jars, port=self._ports.zookeeper)
        self.cluster = Cluster(
            self.zookeeper.connect,
            self._version,
            self.folder,
            java,
            resolve_jars(self._version.jars),
            chroot="",
            ports=self._ports.brokers,
            heap=self._heap,
            config=self._config,
            tuning=self._tuning,
            kraft=self._kraft,
        )
        try:
            await start_server(self.zookeeper)
            self.cluster.start()
            await anyio.to_thread.run_sync(self.cluster.wait_ready, abandon_on_cancel=True)
        except BaseException:
            self._kill()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    def _kill(self) -> None:
        self.cluster.kill()
        self.zookeeper.kill()

    @property
    def zookeeper_connect(self) -> str:
        """ZooKeeper's `host:port`."""
        return self.cluster.connect

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def brokers(self) -> dict[int, BrokerServer]:
        return self.cluster.brokers

    async def stop_broker(self, broker: int, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal, and wait until the process has ended."""
        await stop_server(self.brokers[broker], number)

    async def start_broker(self, broker: int) -> None:
        """Restart a stopped broker; after a kill -9 its session has to expire first (6 s)."""
        await start_server(self.brokers[broker])

    async def stop_zookeeper(self, number: signal.Signals = signal.SIGTERM) -> None:
        await stop_server(self.zookeeper, number)

    async def start_zookeeper(self) -> None:
        await start_server(self.zookeeper)

    def __repr__(self) -> str:
        return f"<Sandbox {self._version.number} in {self.folder}>"


async def start_server(server: ServerProcess) -> None:
    """Start it with its port and data, and return when it serves. Raises SandboxError."""
    await anyio.to_thread.run_sync(server.wait_startable, abandon_on_cancel=True)
    server.start()
    await anyio.to_thread.run_sync(server.wait_ready, abandon_on_cancel=True)


async def stop_server(server: ServerProcess, number: signal.Signals = signal.SIGTERM) -> None:
    """Send the signal and return when the process has ended; the last of two brokers may take 10 s."""
    server.send_signal(number)
    await anyio.to_thread.run_sync(server.wait_ended, abandon_on_cancel=True)


# A cluster of 3.9.1 leaves ZooKeeper, in the steps of Kafka's documentation, and goes on to Kafka 4.
#
# https://kafka.apache.org/39/documentation.html#kraft_zk_migration

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
