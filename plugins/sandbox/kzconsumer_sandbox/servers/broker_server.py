"""One Kafka broker on loopback; it keeps id, port and data over restarts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from kzconsumer.zookeeper.connect_string import ConnectString
from kzconsumer_sandbox.errors import SandboxError
from kzconsumer_sandbox.servers.configuration import (
    LOG4J,
    QUICK_START,
    Listener,
    as_text,
    broker_properties,
    java_flags,
)
from kzconsumer_sandbox.servers.jars import classpath
from kzconsumer_sandbox.servers.ports import HOST, free_port
from kzconsumer_sandbox.servers.readiness import ephemeral_nodes, known_brokers
from kzconsumer_sandbox.servers.server_process import START_LIMIT, ServerProcess
from kzconsumer_sandbox.servers.versions import KafkaVersion


class BrokerServer(ServerProcess):
    """`zookeeper` is its connect string with the chroot, which the broker makes if it is missing.

    Without a port it takes any free one. `listeners` are those besides the plain one: name -> security protocol.
    """

    def __init__(
        self,
        broker: int,
        version: KafkaVersion,
        zookeeper: str,
        folder: Path,
        java: Path,
        jars: Path,
        *,
        port: int = 0,
        heap: str,
        config: Mapping[str, object],
        listeners: Mapping[str, str],
        tuning: tuple[str, ...] = QUICK_START,
    ) -> None:
        super().__init__(f"broker {broker} ({version.number})", folder)
        self.id = broker
        self.host = HOST
        self.port = port or free_port()
        self.listeners = {name: Listener(protocol, free_port()) for name, protocol in listeners.items()}
        self._version = version
        self._zookeeper = ConnectString.parse(zookeeper)
        self._java = java
        self._jars = jars
        self._heap = heap
        self._config = dict(config)
        self._tuning = tuning

    def command(self) -> list[str]:
        file = self.folder / "server.properties"
        properties = broker_properties(
            self._version, self.folder, self.id, self.port, str(self._zookeeper), self._config, self.listeners
        )
        file.write_text(as_text(properties))
        (self.folder / "log4j.properties").write_text(LOG4J)
        flags = java_flags(self.folder, self._heap, self._tuning)
        return [str(self._java), *flags, "-cp", classpath(self._jars), "kafka.Kafka", str(file)]

    def serves(self) -> bool:
        """True when it answers Metadata requests and is registered in ZooKeeper."""
        known = known_brokers(self.host, self.port)
        return known is not None and (self.id in known or (not self._version.idle_metadata and self.registered()))

    def registered(self) -> bool:
        """True while ZooKeeper has its node: also for some seconds after a kill -9, until the session expires."""
        (host, port), *_ = self._zookeeper.hosts
        return f"{self._zookeeper.chroot}/brokers/ids/{self.id}" in ephemeral_nodes(host, port)

    def wait_startable(self, limit: float = START_LIMIT) -> None:
        """A broker that finds the node of its former self does not start (or, 0.8, waits in its own way)."""
        deadline = time.monotonic() + limit
        while self.registered():
            if time.monotonic() > deadline:
                raise SandboxError(f"{self.name} is still registered after {limit:.0f} s")
            time.sleep(0.05)
