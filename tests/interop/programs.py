"""How each kind of member is run, and how its output becomes deliveries."""

from __future__ import annotations

import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from kzconsumer_sandbox.servers.jars import cache_folder
from tests.interop import our_program
from tests.interop.evidence import Delivery, Kind
from tests.interop.repeats import COMMIT_INTERVAL, SESSION
from tests.support.original import NEWEST_ORIGINAL, Record, logging_command
from tests.support.servers import Servers

FETCH_BYTES = 8192
"""Of original and kafka-node members: `judge.RESPONSE` follows from it."""
KAFKA_NODE = "kafka-node@2.6.1"


class Program(ABC):
    """One kind of member of a group, which reads one topic."""

    kind: Kind
    keeps_id = False
    """Whether a member has the same consumer id when it is started again."""
    environment: Mapping[str, str] = {}

    def __init__(self, connect: str, group: str, topic: str) -> None:
        self.connect, self.group, self.topic = connect, group, topic

    @abstractmethod
    def command(self, name: str, folder: Path) -> list[str]:
        """The process of `<group>_<name>`."""

    def delivery(self, at: float, line: bytes) -> Delivery:
        """A line that was read at that time, of programs that print the time when they deliver."""
        when, partition, offset = line.split()
        return Delivery(float(when), int(partition), int(offset))


class Ours(Program):
    """The library, with one stream."""

    kind = Kind.OURS
    keeps_id = True

    def __init__(self, connect: str, group: str, topic: str, plant: str | None = None) -> None:
        super().__init__(connect, group, topic)
        self._plant = plant

    def command(self, name: str, folder: Path) -> list[str]:
        times = ["--session", str(SESSION), "--commit", str(COMMIT_INTERVAL)]
        plant = ["--plant", self._plant] if self._plant else []
        arguments = [self.connect, self.group, name, self.topic, *times, *plant]
        return [sys.executable, "-m", our_program.__name__, *arguments]


class OriginalConsumer(Program):
    """Kafka's console consumer of 1.1.1: a white list, one stream. It prints only values, which have the offset."""

    kind = Kind.ORIGINAL

    def __init__(self, connect: str, group: str, topic: str, servers: Servers) -> None:
        super().__init__(connect, group, topic)
        self._servers = servers

    def command(self, name: str, folder: Path) -> list[str]:
        properties = {
            "group.id": self.group,
            "consumer.id": name,
            "zookeeper.session.timeout.ms": int(SESSION * 1000),
            "auto.commit.interval.ms": int(COMMIT_INTERVAL * 1000),
            "rebalance.max.retries": 8,  # times 2 s: longer than a session
            "fetch.message.max.bytes": FETCH_BYTES,
        }
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "consumer.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        arguments = ["--zookeeper", self.connect, "--whitelist", self.topic, "--consumer.config", str(config)]
        return logging_command(self._servers, NEWEST_ORIGINAL, "kafka.tools.ConsoleConsumer", arguments, folder)

    def delivery(self, at: float, line: bytes) -> Delivery:
        record = Record.parse(line.decode())
        return Delivery(at, record.partition, record.offset)


class KafkaNode(Program):
    """kafka-node's HighLevelConsumer."""

    kind = Kind.KAFKA_NODE

    def __init__(self, connect: str, group: str, topic: str, node: Path, modules: Path) -> None:
        super().__init__(connect, group, topic)
        self._node = node
        self.environment = {"NODE_PATH": str(modules)}

    def command(self, name: str, folder: Path) -> list[str]:
        program = Path(__file__).with_name("kafka_node_program.js")
        arguments = [self.connect, self.group, f"{self.group}_{name}", self.topic]
        numbers = [str(number) for number in (SESSION, COMMIT_INTERVAL, FETCH_BYTES)]
        return [str(self._node), str(program), *arguments, *numbers]


class KafkaNodeMissingError(Exception):
    """Why kafka-node cannot be run here."""


def find_kafka_node() -> tuple[Path, Path]:
    """Node and the folder of its modules, into which kafka-node is installed once. Raises KafkaNodeMissingError."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise KafkaNodeMissingError("node or npm is missing")
    folder = cache_folder() / KAFKA_NODE
    modules = folder / "node_modules"
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(folder), "--no-optional", "--ignore-scripts", KAFKA_NODE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KafkaNodeMissingError(f"npm install {KAFKA_NODE}: {done.stderr.strip()[-300:]}")
        (folder / "installed").touch()
    return Path(node), modules
