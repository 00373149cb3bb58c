"""A stand-alone ZooKeeper 3.8.4 on loopback; it keeps port and data over restarts."""

from __future__ import annotations

from pathlib import Path

from kzconsumer_sandbox.servers.configuration import LOG4J, as_text, java_flags, zookeeper_properties
from kzconsumer_sandbox.servers.jars import classpath
from kzconsumer_sandbox.servers.ports import HOST, free_port
from kzconsumer_sandbox.servers.readiness import listens, zookeeper_serves
from kzconsumer_sandbox.servers.server_process import ServerProcess


class ZooKeeperServer(ServerProcess):
    """`jars` is the folder of the newest version's jars; without a port it takes any free one."""

    def __init__(self, folder: Path, java: Path, jars: Path, *, port: int = 0, heap: str = "128m") -> None:
        super().__init__("zookeeper", folder)
        self.host = HOST
        self.port = port or free_port()
        self._java = java
        self._jars = jars
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
            classpath(self._jars),
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(file),
        ]

    def serves(self) -> bool:
        return listens(self.pid, self.port) and zookeeper_serves(self.host, self.port)
