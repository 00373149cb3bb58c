"""The Kafka versions of the sandbox, with pinned Maven coordinates.

ZooKeeper (3.8.4) is always from the jars of the newest version: it serves all broker versions, each in its own chroot.
"""

from __future__ import annotations

import msgspec

from kzconsumer_sandbox.errors import SandboxError


class Artifact(msgspec.Struct, frozen=True, order=True):
    """One module in Maven's public repository; with a classifier, that jar of it."""

    organisation: str
    name: str
    revision: str
    classifier: str = ""

    def __str__(self) -> str:
        classifier = self.classifier and f":{self.classifier}"
        return f"{self.organisation}:{self.name}:{self.revision}{classifier}"

    @classmethod
    def parse(cls, text: str) -> Artifact:
        """Reads `organisation:name:revision`. Raises ValueError."""
        parts = text.split(":")
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{text!r} is not <organisation>:<name>:<revision>")
        return cls(*parts)


class JarSet(msgspec.Struct, frozen=True):
    """Artifacts in one directory. `modules`: how many modules Ivy visits, for the progress.

    `transitive`: with the dependencies of the artifacts.
    """

    name: str
    artifacts: tuple[Artifact, ...]
    modules: int
    transitive: bool = True


class KafkaVersion(msgspec.Struct, frozen=True):
    """One broker version and its peculiarities.

    `listeners`: configured by `listeners` (0.9 and later) instead of `host.name` and `port`.
    `idle_metadata`: its Metadata response has brokers before the first topic exists (0.9 and later).
    `transactions`: has transactions and the group's first-rebalance delay (0.11 and later).
    `zookeeper`: can keep the cluster's state in ZooKeeper (up to 3.9). `kraft`: can do without. With both it can leave
    ZooKeeper.
    """

    jars: JarSet
    listeners: bool = True
    idle_metadata: bool = True
    transactions: bool = True
    zookeeper: bool = True
    kraft: bool = False

    @property
    def number(self) -> str:
        return self.jars.name

    @property
    def chroot(self) -> str:
        """The default chroot of a cluster of this version: `/k0822` for 0.8.2.2."""
        return "/k" + self.number.replace(".", "")


def _kafka(number: str, scala: str, modules: int, *extra: str) -> JarSet:
    core = Artifact("org.apache.kafka", f"kafka_{scala}", number)
    return JarSet(number, (core, *map(Artifact.parse, extra)), modules)


# 1.1 and later have the slf4j interface without an implementation; a broker that cannot log exits without a message.
_LOGGING = "org.slf4j:slf4j-simple:1.7.36"
# 0.10.2 creates its cluster id with javax.xml.bind, which Java 11 and later do not have.
_XML_BINDING = "javax.xml.bind:jaxb-api:2.3.1"

VERSIONS = {
    version.number: version
    for version in (
        KafkaVersion(_kafka("0.8.2.2", "2.11", 19), listeners=False, idle_metadata=False, transactions=False),
        KafkaVersion(_kafka("0.9.0.1", "2.11", 15), transactions=False),
        KafkaVersion(_kafka("0.10.2.2", "2.11", 15, _XML_BINDING), transactions=False),
        KafkaVersion(_kafka("1.1.1", "2.11", 16, _LOGGING)),
        KafkaVersion(_kafka("2.8.2", "2.13", 38, _LOGGING)),
        KafkaVersion(_kafka("3.9.1", "2.13", 56, _LOGGING), kraft=True),
        KafkaVersion(_kafka("4.2.0", "2.13", 60, _LOGGING), zookeeper=False, kraft=True),
    )
}
NEWEST = VERSIONS["3.9.1"]


def kafka_version(number: str) -> KafkaVersion:
    """Raises SandboxError, with the known versions, for an unknown one."""
    try:
        return VERSIONS[number]
    except KeyError:
        raise SandboxError(f"no Kafka {number!r} in the sandbox; the versions are {', '.join(VERSIONS)}") from None
