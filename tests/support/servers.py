"""The servers of one test run: one ZooKeeper, and clusters under chroots of it, each started when first needed.

The fixtures in conftest provide it. Logs stay in the run's temporary directory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path

import anyio.to_thread

from kzconsumer_sandbox.servers.configuration import LOG4J, QUICK_START
from kzconsumer_sandbox.servers.jars import NEWEST, classpath, find_java, kafka_version, resolve_jars
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from tests.support.class_archive import UNVERIFIED, ClassArchive
from tests.support.ensemble import Ensemble, ensemble
from tests.support.extent import extent
from tests.support.jars import fetched
from tests.support.kafka_tools import KafkaTools
from tests.support.py4j_gateway import SERVER, with_py4j
from tests.support.server_training import train_broker

_SELDOM = extent(("2.8.2",), ())
"""Versions whose brokers start less often by day than pays an archive: to write it costs what seven starts save."""


class Servers:
    """Everything started here ends with `kill`, or with the test process; what only some files use ends after them
    (`end_of_files`): a broker that does nothing takes a hundredth of a processor.

    `archives` is where archives of classes are kept, with which brokers and tools start in half the time; None: they
    start without.
    """

    def __init__(self, folder: Path, archives: Path | None = None) -> None:
        self.folder = folder
        self._archives = archives
        self._archived: dict[str, ClassArchive] = {}
        self._running: list[Cluster | ZooKeeperServer] = []
        self._for_all: list[Cluster | ZooKeeperServer] = []
        self._shared: dict[str, Cluster] = {}
        self._shares = 0
        self._tools: dict[str, KafkaTools] = {}
        self._ensemble: Ensemble | None = None
        self._mortal: ZooKeeperServer | None = None
        self._exits = ExitStack()

    @cached_property
    def java(self) -> Path:
        return find_java()

    @cached_property
    def zookeeper(self) -> ZooKeeperServer:
        server = self.own_zookeeper("zookeeper")
        self._for_all.append(server)
        return server

    def own_zookeeper(self, name: str, *, heap: str = "128m") -> ZooKeeperServer:
        """Another ZooKeeper, which may be stopped and broken. The heap is enough for a few ten thousand nodes."""
        server = ZooKeeperServer(self.folder / name, self.java, resolve_jars(NEWEST.jars), heap=heap)
        self._running.append(server)
        server.start()
        server.wait_ready()
        return server

    def mortal(self) -> ZooKeeperServer:
        """A ZooKeeper that the tests of a chain of files may stop."""
        if self._mortal is None:
            self._shares += 1
            self._mortal = self.own_zookeeper(f"mortal-{self._shares}")
        return self._mortal

    def ensemble(self) -> Ensemble:
        """Three ZooKeepers, which tests that use them may stop and cut off."""
        if self._ensemble is None:
            folder = Path(tempfile.mkdtemp(prefix="ensemble-", dir=self.folder))
            self._ensemble = self._exits.enter_context(ensemble(folder, self.java, resolve_jars(NEWEST.jars)))
        return self._ensemble

    def cluster_of(self, version: str) -> Cluster:
        """The cluster of that version which all tests share; no test stops its broker."""
        cluster = self.shared(f"shared-{version}", lambda name: self.cluster(name, version))
        if version == NEWEST.number and cluster not in self._for_all:
            self._for_all.append(cluster)
        return cluster

    def shared(self, name: str, start: Callable[[str], Cluster]) -> Cluster:
        """The cluster that goes by that name among tests. It is started, under a new name, if none runs."""
        if name not in self._shared:
            self._shares += 1
            self._shared[name] = start(f"{name}-{self._shares}")
        return self._shared[name]

    def end_of_files(self) -> None:
        """Ends what the next file may not need: all but the ZooKeeper, the cluster of the newest version, and tools,
        which cost nothing at rest.
        """
        self._end(self._for_all)

    def cluster(
        self,
        name: str,
        version: str = NEWEST.number,
        *,
        brokers: int = 1,
        zookeeper: ZooKeeperServer | Ensemble | None = None,
        heap: str = "192m",
        config: Mapping[str, object] | None = None,
        listeners: Mapping[str, str] | None = None,
        tuning: tuple[str, ...] = QUICK_START,
        kraft: bool = False,
    ) -> Cluster:
        """A cluster of one's own under the chroot `/<name>`, ready to use."""
        kind = kafka_version(version)
        if kind.zookeeper and (archive := self._archive(version)):
            tuning = (*tuning, *archive.made(partial(self._train, version)))
        else:
            tuning = (*tuning, *UNVERIFIED)
        cluster = Cluster(
            (zookeeper or self.zookeeper).connect,
            kind,
            self.folder / name,
            self.java,
            resolve_jars(kind.jars),
            chroot=f"/{name}",
            brokers=brokers,
            heap=heap,
            config=config,
            listeners=listeners,
            tuning=tuning,
            kraft=kraft,
        )
        self._running.append(cluster)
        cluster.start()
        cluster.wait_ready()
        return cluster

    def java_command(self, version: str, main_class: str, *args: str) -> list[str]:
        """The command that runs a tool of that Kafka version; those with the original consumer end with 1.1.1."""
        kind = kafka_version(version)
        jars = classpath(resolve_jars(kind.jars))
        if not kind.zookeeper:  # the tools of Kafka 4 are not among the broker's jars
            jars += f":{classpath(fetched(f'kafka-tools-{version}'))}"
        log4j = self.folder / "tools-log4j.properties"
        log4j.write_text(LOG4J.replace("INFO", "WARN"))
        quiet = [f"-Dlog4j.configuration=file:{log4j}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        archive = self._archive(version)
        loading = archive.loading() if archive else None  # a test that waits for a tool cannot wait for an archive, too
        flags = ["-Xmx192m", *QUICK_START, *(loading or ()), "-XX:-UsePerfData", *quiet]
        return [str(self.java), *flags, "-cp", jars, main_class, *args]

    async def tool(self, version: str, tool: str, *arguments: str) -> str:
        """What a tool of that version writes. Tools of a version run one after the other."""
        if version not in self._tools:  # started here: a process ends with the thread that has started it
            command = with_py4j(self.java_command(version, *SERVER))
            self._tools[version] = KafkaTools(command, self.folder / f"tools-{version}")
        return await anyio.to_thread.run_sync(self._tools[version].run, tool, *arguments)

    def _archive(self, version: str) -> ClassArchive | None:
        if version in _SELDOM:
            return None
        if self._archives is not None and version not in self._archived:
            jars = resolve_jars(kafka_version(version).jars)
            self._archived[version] = ClassArchive(self._archives, version, self.java, jars)
        return self._archived.get(version)

    def _train(self, version: str, archive: Path) -> None:
        kind = kafka_version(version)
        jars = resolve_jars(kind.jars)
        train_broker(self.zookeeper.connect, kind, self.folder / f"training-{version}", self.java, jars, archive)

    def kill(self) -> None:
        for tools in self._tools.values():
            tools.kill()
        self._tools.clear()
        self._end(())

    def _end(self, kept: Collection[Cluster | ZooKeeperServer]) -> None:
        for server in self._running:
            if server not in kept:
                server.kill()
        self._running = [server for server in self._running if server in kept]
        self._shared = {name: cluster for name, cluster in self._shared.items() if cluster in kept}
        self._exits.close()
        self._ensemble = self._mortal = None
