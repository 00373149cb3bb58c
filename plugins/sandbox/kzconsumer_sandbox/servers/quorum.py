"""The controllers of a cluster in KRaft mode: one node, alone or together with a broker."""

from __future__ import annotations

import base64
import shlex
import socket
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kzconsumer_sandbox.servers.configuration import LOG4J, QUICK_START, as_text, java_flags
from kzconsumer_sandbox.servers.jars import classpath
from kzconsumer_sandbox.servers.ports import HOST, free_port
from kzconsumer_sandbox.servers.server_process import ServerProcess


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
