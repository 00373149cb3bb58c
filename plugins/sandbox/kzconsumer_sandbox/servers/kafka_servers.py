"""The servers of a cluster on loopback: ZooKeeper, brokers, KRaft's controllers; each keeps its port and data."""

from __future__ import annotations

import base64
import shlex
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kzconsumer.zookeeper.operations import ConnectString
from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers.configuration import (
    HOST,
    LOG4J,
    QUICK_START,
    ListenerSetting,
    as_text,
    broker_properties,
    free_port,
    java_flags,
    zookeeper_properties,
)
from kzconsumer_sandbox.servers.jars import KafkaVersion, classpath
from kzconsumer_sandbox.servers.readiness import ephemeral_nodes, known_brokers, listens, zookeeper_serves
from kzconsumer_sandbox.servers.server_process import START_LIMIT, Patience, ServerProcess

# A stand-alone ZooKeeper 3.8.4 on loopback; it keeps port and data over restarts.


class ZooKeeperServer(ServerProcess):
    """`jars` is the folder of the newest version's jars; without a port it takes any free one."""

    def __init__(self, folder: Path, java: Path, jars: Path, *, port: int = 0, heap: str = "128m") -> None:
        super().__init__("zookeeper", folder)
        self.host = HOST
        self.port = port or free_port()
        self._java = java
        self.jars = jars
        self._heap = heap

    @property
    def connect(self) -> str:
        """`host:port`, without a chroot."""
        return f"{self.host}:{self.port}"

    def command(self) -> list[str]:
        file = self.folder / "zoo.cfg"
        file.write_text(as_text(zookeeper_properties(self.folder / "data", self.port)))
        (self.folder / "log4j.properties").write_text(LOG4J)
        return [
            str(self._java),
            *java_flags(self.folder, self._heap),
            "-Dzookeeper.admin.enableServer=false",
            "-Dzookeeper.forceSync=no",  # data in the page cache survives a kill -9, which is enough
            "-Dzookeeper.preAllocSize=1024",
            "-cp",
            classpath(self.jars),
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(file),
        ]

    def serves(self) -> bool:
        return listens(self.pid, self.port) and zookeeper_serves(self.host, self.port)


# The controllers of a cluster in KRaft mode: one node, alone or together with a broker.


def new_cluster_id() -> str:
    """Text as Kafka makes it: a UUID in base64, not with a dash first, which its tools would take for an option."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    return new_cluster_id() if text.startswith("-") else text


class Quorum(msgspec.Struct, frozen=True):
    """Which node is the controller, and where it listens for brokers."""

    cluster_id: str
    node: int
    port: int

    def properties(self, node: int, roles: str) -> dict[str, object]:
        """What `server.properties` of one node says instead of `broker.id` and `zookeeper.connect`."""
        return {"process.roles": roles, "node.id": node, **self.voters()}

    def voters(self) -> dict[str, object]:
        return {
            "controller.quorum.voters": f"{self.node}@{HOST}:{self.port}",
            "controller.listener.names": "CONTROLLER",
        }

    def command(self, java: Sequence[str], properties: Path, data: Path) -> list[str]:
        """Runs the server. An empty data folder is formatted first, with the version's own features, by Kafka's tool.

        `java` is the command without the main class.
        """
        server = [*java, "kafka.Kafka", str(properties)]
        if (data / "meta.properties").exists():
            return server
        tool = [*java, "kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(properties)]
        return ["/bin/sh", "-c", f"{shlex.join(tool)} && exec {shlex.join(server)}"]


class ControllerServer(ServerProcess):
    """A controller in a process of its own. `migrating` are further settings while it copies from ZooKeeper."""

    def __init__(self, quorum: Quorum, folder: Path, java: Path, jars: Path, migrating: Mapping[str, object]) -> None:
        super().__init__(f"controller {quorum.node}", folder)
        self._quorum = quorum
        self._java = java
        self.jars = jars
        self.migrating = dict(migrating)

    def command(self) -> list[str]:
        data = self.folder / "data"
        properties = {
            **self._quorum.properties(self._quorum.node, "controller"),
            "listeners": f"CONTROLLER://{HOST}:{self._quorum.port}",
            "log.dirs": data,
            **self.migrating,
        }
        file = self.folder / "server.properties"
        file.write_text(as_text(properties))
        (self.folder / "log4j.properties").write_text(LOG4J)
        flags = java_flags(self.folder, "192m", QUICK_START)
        return self._quorum.command([str(self._java), *flags, "-cp", classpath(self.jars)], file, data)

    def serves(self) -> bool:
        try:
            socket.create_connection((HOST, self._quorum.port), 2.0).close()
        except OSError:
            return False
        return True


def new_quorum(node: int, cluster_id: str = "") -> Quorum:
    """`cluster_id`: of the cluster that migrates; empty: a new cluster."""
    return Quorum(cluster_id or new_cluster_id(), node, free_port())


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
        self.listeners = {name: ListenerSetting(protocol, free_port()) for name, protocol in listeners.items()}
        self._version = version
        self._zookeeper = ConnectString.parse(zookeeper)
        self._java = java
        self.jars = jars
        self._heap = heap
        self.config = dict(config)
        self._tuning = tuning

    def upgrade(self, version: KafkaVersion, jars: Path) -> None:
        """From the next start on it is of that version."""
        self._version, self.jars = version, jars

    def command(self) -> list[str]:
        file = self.folder / "server.properties"
        properties = self._properties()
        file.write_text(as_text(properties))
        (self.folder / "log4j.properties").write_text(LOG4J)
        flags = java_flags(self.folder, self._heap, self._tuning)
        java = [str(self._java), *flags, "-cp", classpath(self.jars)]
        if self.quorum is None or self.migrating:
            return [*java, "kafka.Kafka", str(file)]
        return self.quorum.command(java, file, self.folder / "data")

    def _properties(self) -> dict[str, object]:
        quorum, zookeeper = self.quorum, "" if self.quorum and not self.migrating else str(self._zookeeper)
        listeners = dict(self.listeners)
        roles = "broker"
        if quorum is not None and quorum.node == self.id:
            roles = "broker,controller"
            listeners["CONTROLLER"] = ListenerSetting("PLAINTEXT", quorum.port)
        properties = broker_properties(
            self._version, self.folder, self.id, self.port, zookeeper, self.config, listeners
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


# Brokers of one Kafka version under one chroot of a ZooKeeper. Synchronous; Sandbox is for async code.


class Cluster:
    """Brokers with ids 1, 2, ... `zookeeper` is `host:port`; `chroot` is empty or begins with a slash.

    With `ports` there is a broker on each of them; else `brokers` of them, on any free ones.

    `heap` is each broker's, as Java writes it. `config` is added to every server.properties. `listeners` are
    those of every broker besides the plain one, name -> security protocol. `tuning` are Java flags.

    With `kraft`, as always from Kafka 4 on, broker 1 is the controller, too, and ZooKeeper is for consumer groups only.
    """

    def __init__(
        self,
        zookeeper: str,
        version: KafkaVersion,
        folder: Path,
        java: Path,
        jars: Path,
        *,
        chroot: str | None = None,
        brokers: int = 1,
        ports: Sequence[int] = (),
        heap: str = "256m",
        config: Mapping[str, object] | None = None,
        listeners: Mapping[str, str] | None = None,
        tuning: tuple[str, ...] = QUICK_START,
        kraft: bool = False,
    ) -> None:
        self.version = version.number
        self.chroot = version.chroot if chroot is None else chroot
        self.connect = zookeeper + self.chroot
        self.kraft = kraft or not version.zookeeper
        quorum = new_quorum(1) if self.kraft else None
        self.brokers = {
            broker: BrokerServer(
                broker,
                version,
                self.connect,
                folder / f"broker-{broker}",
                java,
                jars,
                port=port,
                heap=heap,
                config=config or {},
                listeners=listeners or {},
                tuning=tuning,
                quorum=quorum,
            )
            for broker, port in enumerate(ports or (0,) * brokers, 1)
        }

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker, for clients that ask brokers."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self.brokers.values())

    def start(self) -> None:
        """Start all processes; returns at once. For the calling thread, see ServerProcess."""
        for broker in self.brokers.values():
            broker.start()

    def wait_ready(self, limit: float = START_LIMIT) -> None:
        """Block until every broker serves and knows all brokers. Raises SandboxError."""
        patience = Patience(limit)
        for broker in self.brokers.values():
            broker.wait_patiently(patience)
        while not all(self._knows_all(broker) for broker in self.brokers.values()):
            if patience.exhausted():
                raise SandboxError(f"the brokers do not know each other after {patience}: {self!r}")
            time.sleep(0.05)

    def _knows_all(self, broker: BrokerServer) -> bool:
        known = known_brokers(broker.host, broker.port)
        return known == set(self.brokers) or (known == set() and broker.registered())

    def kill(self) -> None:
        """Kill all brokers; a graceful stop is not needed."""
        for broker in self.brokers.values():
            broker.kill()

    def __repr__(self) -> str:
        return f"<Cluster {self.version} at {self.connect}: {', '.join(map(repr, self.brokers.values()))}>"
