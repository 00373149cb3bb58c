"""A ZooKeeper and a cluster of brokers as an async context manager. A server that fails is not restarted."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import anyio.to_thread

from kzconsumer_sandbox.servers.broker_server import BrokerServer
from kzconsumer_sandbox.servers.cluster import Cluster
from kzconsumer_sandbox.servers.configuration import QUICK_START
from kzconsumer_sandbox.servers.jars import NEWEST, KafkaVersion, Progress, find_java, kafka_version, resolve_jars
from kzconsumer_sandbox.servers.ports import Ports
from kzconsumer_sandbox.servers.server_process import ServerProcess
from kzconsumer_sandbox.servers.zookeeper_server import ZooKeeperServer


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
