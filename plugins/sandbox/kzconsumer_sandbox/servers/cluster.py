"""Brokers of one Kafka version under one chroot of a ZooKeeper. Synchronous; Sandbox is for async code."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kzconsumer_sandbox.errors import SandboxError
from kzconsumer_sandbox.servers.broker_server import BrokerServer
from kzconsumer_sandbox.servers.configuration import QUICK_START
from kzconsumer_sandbox.servers.jars import KafkaVersion
from kzconsumer_sandbox.servers.quorum import new_quorum
from kzconsumer_sandbox.servers.readiness import known_brokers
from kzconsumer_sandbox.servers.server_process import START_LIMIT


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
        deadline = time.monotonic() + limit
        for broker in self.brokers.values():
            broker.wait_ready(max(deadline - time.monotonic(), 0.0))
        while not all(self._knows_all(broker) for broker in self.brokers.values()):
            if time.monotonic() > deadline:
                raise SandboxError(f"the brokers do not know each other after {limit:.0f} s: {self!r}")
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
