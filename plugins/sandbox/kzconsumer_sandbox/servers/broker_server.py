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
from kzconsumer_sandbox.servers.jars import KafkaVersion, classpath
from kzconsumer_sandbox.servers.ports import HOST, free_port
from kzconsumer_sandbox.servers.quorum import Quorum
from kzconsumer_sandbox.servers.readiness import ephemeral_nodes, known_brokers, listens
from kzconsumer_sandbox.servers.server_process import START_LIMIT, ServerProcess


class BrokerServer(ServerProcess):
    """`zookeeper` is its connect string with the chroot, which the broker makes if it is missing.

    With a `quorum` it is in KRaft mode; while `migrating` it is in ZooKeeper mode, and knows the quorum already. Both
    may be changed before a restart. Without a port it takes any free one. `listeners` are those besides the plain one:
    name -> security protocol.
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
        quorum: Quorum | None = None,
    ) -> None:
        super().__init__(f"broker {broker} ({version.number})", folder)
        self.id = broker
        self.host = HOST
        self.port = port or free_port()
        self.quorum = quorum
        self.migrating = False
        self.listeners = {name: Listener(protocol, free_port()) for name, protocol in listeners.items()}
        self._version = version
        self._zookeeper = ConnectString.parse(zookeeper)
        self._java = java
        self._jars = jars
        self._heap = heap
        self._config = dict(config)
        self._tuning = tuning

    def upgrade(self, version: KafkaVersion, jars: Path) -> None:
        """From the next start on it is of that version."""
        self._version, self._jars = version, jars

    def command(self) -> list[str]:
        file = self.folder / "server.properties"
        properties = self._properties()
        file.write_text(as_text(properties))
        (self.folder / "log4j.properties").write_text(LOG4J)
        flags = java_flags(self.folder, self._heap, self._tuning)
        java = [str(self._java), *flags, "-cp", classpath(self._jars)]
        if self.quorum is None or self.migrating:
            return [*java, "kafka.Kafka", str(file)]
        return self.quorum.command(java, file, self.folder / "data")

    def _properties(self) -> dict[str, object]:
        quorum, zookeeper = self.quorum, "" if self.quorum and not self.migrating else str(self._zookeeper)
        listeners = dict(self.listeners)
        roles = "broker"
        if quorum is not None and quorum.node == self.id:
            roles = "broker,controller"
            listeners["CONTROLLER"] = Listener("PLAINTEXT", quorum.port)
        properties = broker_properties(
            self._version, self.folder, self.id, self.port, zookeeper, self._config, listeners
        )
        if quorum is None:
            return properties
        protocols = ",".join(
            f"{name}:{protocol}"
            for name, protocol in {
                "PLAINTEXT": "PLAINTEXT",
                "CONTROLLER": "PLAINTEXT",
                **{name: each.protocol for name, each in self.listeners.items()},
            }.items()
        )
        properties["listener.security.protocol.map"] = protocols
        if self.migrating:
            return properties | quorum.voters() | {"zookeeper.metadata.migration.enable": "true"}
        return properties | quorum.properties(self.id, roles)

    def serves(self) -> bool:
        """True when it answers Metadata requests and is registered."""
        known = known_brokers(self.host, self.port) if listens(self.pid, self.port) else None
        return known is not None and (self.id in known or (not self._version.idle_metadata and self.registered()))

    def registered(self) -> bool:
        """True while ZooKeeper has its node: also for some seconds after a kill -9, until the session expires.

        False in KRaft mode.
        """
        if self.quorum is not None and not self.migrating:
            return False
        (host, port), *_ = self._zookeeper.hosts
        return f"{self._zookeeper.chroot}/brokers/ids/{self.id}" in ephemeral_nodes(host, port)

    def wait_startable(self, limit: float = START_LIMIT) -> None:
        """A broker that finds the node of its former self does not start (or, 0.8, waits in its own way)."""
        deadline = time.monotonic() + limit
        while self.registered():
            if time.monotonic() > deadline:
                raise SandboxError(f"{self.name} is still registered after {limit:.0f} s")
            time.sleep(0.05)
