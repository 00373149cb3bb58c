"""A YARN of one node on loopback: Hadoop's mini cluster, with the Hadoop that PySpark has."""

from __future__ import annotations

from pathlib import Path

from kzconsumer_sandbox.servers.jars import find_ivy, find_java, resolve_jars
from kzconsumer_sandbox.servers.server_process import ServerProcess
from kzconsumer_sandbox.servers.versions import Artifact, JarSet
from tests.support.programs import JAVAC, need

_PROGRAM = Path(__file__).with_name("MiniYarn.java")
_BESIDE = (
    Artifact("org.junit.jupiter", "junit-jupiter-api", "5.11.4"),
    Artifact("org.junit.platform", "junit-platform-commons", "1.11.4"),
    Artifact("org.opentest4j", "opentest4j", "1.3.0"),
    Artifact("org.bouncycastle", "bcprov-jdk18on", "1.82"),
    Artifact("org.bouncycastle", "bcpkix-jdk18on", "1.82"),
    Artifact("org.bouncycastle", "bcutil-jdk18on", "1.82"),
)


class Yarn(ServerProcess):
    """`configuration` is the directory for HADOOP_CONF_DIR."""

    def __init__(self, folder: Path) -> None:
        super().__init__("yarn", folder)
        self.configuration = folder / "conf"
        self.jars = find_ivy().parent  # all of Spark's

    def command(self) -> list[str]:
        need(JAVAC)
        java = find_java().resolve()
        (hadoop,) = (each.stem.removeprefix("hadoop-client-api-") for each in self.jars.glob("hadoop-client-api-*.jar"))
        cluster = Artifact("org.apache.hadoop", "hadoop-client-minicluster", hadoop)
        made = resolve_jars(JarSet("hadoop-minicluster", (cluster, *_BESIDE), 7, transitive=False), java)
        self.configuration.mkdir(exist_ok=True)
        environment = ["/usr/bin/env", f"JAVA_HOME={java.parents[1]}"]  # containers need it
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{made}/*:{self.jars}/*"]
        return [*environment, str(java), *options, str(_PROGRAM), str(self.configuration)]

    def serves(self) -> bool:
        return (self.configuration / "yarn-site.xml").exists()
