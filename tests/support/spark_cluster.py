"""A standalone Spark cluster on loopback, from PySpark's own jars: one master, its workers, executors as requested.

The executors end with the servers. `executors` returns their processes, for tests that kill one.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kzconsumer_sandbox.servers.configuration import HOST, free_port
from kzconsumer_sandbox.servers.server_process import ServerProcess
from kzconsumer_spark.daemon.worker_process import java_environment

_CORES = 2


class _Server(ServerProcess):
    """`serving` is a text in its log that shows that it serves."""

    def __init__(self, name: str, folder: Path, arguments: list[str], serving: str) -> None:
        super().__init__(name, folder)
        self._arguments = arguments
        self._serving = serving

    def command(self) -> list[str]:
        found = importlib.util.find_spec("pyspark")
        assert found is not None
        assert found.submodule_search_locations
        home = Path(found.submodule_search_locations[0])
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(self.folder),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        if java := java_environment(os.environ).get("JAVA_HOME"):
            environment["JAVA_HOME"] = java
        if flags := os.environ.get("SPARK_SUBMIT_OPTS"):  # the executors get it, too
            environment["JDK_JAVA_OPTIONS"] = flags
        output = [f"{name}={value}" for name, value in environment.items()]
        return ["/usr/bin/env", *output, str(home / "bin" / "spark-class"), *self._arguments]

    def serves(self) -> bool:
        return self._serving in self.log.read_text(errors="replace")


class SparkCluster:
    """Running servers; `master` is the URL."""

    def __init__(self, folder: Path, workers: int = 1) -> None:
        port = free_port()
        self.master = f"spark://{HOST}:{port}"
        package, here = "org.apache.spark.deploy", ["--host", HOST, "--webui-port", "0"]
        own = [f"{package}.master.Master", *here, "--port", str(port)]
        work = [f"{package}.worker.Worker", *here, "--cores", str(_CORES), "--memory", "2g", "--work-dir"]
        self._master = _Server("spark-master", folder / "master", own, "I have been elected leader")
        self._workers = [
            _Server(place.name, place, [*work, str(place), self.master], "Successfully registered with master")
            for place in (folder / f"worker-{number}" for number in range(workers))
        ]

    def start(self) -> None:
        for server in (self._master, *self._workers):
            server.start()
            server.wait_ready()

    def kill(self) -> None:
        executors = self.executors
        for server in (*self._workers, self._master):
            server.kill()
        for pid in executors:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def executors(self) -> list[int]:
        """Their process ids: what the workers have started and still run."""
        return [pid for worker in self._workers if worker.alive for pid in children(worker.pid)]

    @property
    def pids(self) -> tuple[int, ...]:
        """The master's and the workers'."""
        return tuple(server.pid for server in (self._master, *self._workers))


@contextmanager
def spark_cluster(folder: Path, workers: int = 1) -> Iterator[SparkCluster]:
    cluster = SparkCluster(folder, workers)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


def children(parent: int) -> list[int]:
    """Process ids."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, of = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(of) == parent and state not in "ZX":
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found
