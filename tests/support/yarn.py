"""A YARN of one node on loopback: Hadoop's mini cluster, with the Hadoop that PySpark has."""

from __future__ import annotations

from pathlib import Path

from kzconsumer_sandbox.servers.jars import find_java
from kzconsumer_sandbox.servers.server_process import ServerProcess
from tests.support.jars import fetched, hadoop_version, spark_jars
from tests.support.programs import JAVAC, need

_PROGRAM = Path(__file__).with_name("MiniYarn.java")


class Yarn(ServerProcess):
    """`configuration` is the directory for HADOOP_CONF_DIR."""

    def __init__(self, folder: Path) -> None:
        super().__init__("yarn", folder)
        self.configuration = folder / "conf"
        self.jars = spark_jars()

    def command(self) -> list[str]:
        need(JAVAC)
        java = find_java().resolve()
        made = fetched(f"hadoop-minicluster-{hadoop_version()}")
        self.configuration.mkdir(exist_ok=True)
        environment = ["/usr/bin/env", f"JAVA_HOME={java.parents[1]}"]  # containers need it
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{made}/*:{self.jars}/*"]
        return [*environment, str(java), *options, str(_PROGRAM), str(self.configuration)]

    def serves(self) -> bool:
        return (self.configuration / "yarn-site.xml").exists()
