"""Kafka's own ZooKeeper consumer as a member of a group: the tools of its last releases, each a process.

The processes are killed when the block ends. What a member delivered is taken from its output, and where it began to
read from its log. The tools limit what a member can be: the console consumer registers a white list with one stream,
the replay tool registers statically with any number of streams.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.extent import extent
from tests.support.java_program import JavaProgram
from tests.support.servers import Servers

NEWEST_ORIGINAL = "1.1.1"
ORIGINALS = extent((NEWEST_ORIGINAL,), ("0.10.2.2", NEWEST_ORIGINAL))
"""The last of all, and nightly the last with the text forms of the older releases."""

PROPERTIES: Mapping[str, object] = {
    "zookeeper.session.timeout.ms": 6000,
    "auto.commit.interval.ms": 3_600_000,  # it also commits at every rebalance and when it is stopped
    "consumer.timeout.ms": -1,
}
REPLAY_GROUP = "replay-log-producer"
"""The replay tool has one group of its own, and deletes it first."""

_SELECTED = re.compile(r"([\w.-]+):(\d+): fetched offset = (-?\d+): consumed offset = ")
_LOGGING = """\
log4j.rootLogger=WARN, err
log4j.logger.kafka.consumer=INFO
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %c{1} %m%n
"""


class Record(NamedTuple):
    """A record's partition and number; the value contains them, for members that print nothing else."""

    topic: str
    partition: int
    offset: int

    def value(self) -> bytes:
        return f"{self.topic}/{self.partition}/{self.offset}".encode()

    @classmethod
    def parse(cls, value: str) -> Record:
        topic, partition, offset = value.split("/")
        return cls(topic, int(partition), int(offset))


class Original(JavaProgram):
    """One member."""

    def __init__(self, command: list[str], folder: Path, group: str, consumer: str) -> None:
        super().__init__(command, folder)
        self.consumer = f"{group}_{consumer}"

    def __repr__(self) -> str:
        return f"<Original {self.consumer} process {self.process.pid}>"

    def thread(self, number: int = 0) -> str:
        return f"{self.consumer}-{number}"

    def delivered(self) -> list[Record]:
        """What the console consumer has printed, in order."""
        lines = self.out.read_bytes().split(b"\n")[:-1]
        return [Record.parse(line.decode()) for line in lines if line]

    def starts(self) -> dict[tuple[str, int], list[int]]:
        """Topic and partition -> the offset where each of its ownerships began, by its own log; -1 is "none stored"."""
        found: dict[tuple[str, int], list[int]] = {}
        for line in self.err.read_text(errors="replace").splitlines():
            if "selected partitions" in line:
                for topic, partition, offset in _SELECTED.findall(line):
                    found.setdefault((topic, int(partition)), []).append(int(offset))
        return found

    def logged(self, text: str) -> int:
        """How many lines of the log have the text."""
        return sum(text in line for line in self.err.read_text(errors="replace").splitlines())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, limit: float = 20.0) -> int:
        """The exit status; TimeoutError after `limit` seconds."""
        with anyio.fail_after(limit):
            while (status := self.process.poll()) is None:
                await anyio.sleep(0.02)
        return status


@contextmanager
def console_consumer(
    servers: Servers,
    cluster: Cluster,
    group: str,
    white_list: str,
    folder: Path,
    *,
    consumer: str = "original",
    version: str = NEWEST_ORIGINAL,
    from_beginning: bool = False,
    max_messages: int | None = None,
    **properties: object,
) -> Iterator[Original]:
    """`kafka.tools.ConsoleConsumer`: a white list, one stream, prints every record, or so many and then leaves.

    It refuses `from_beginning` if the group has offsets. `properties` are the consumer's, with `_` for `.`.
    """
    config = _properties(folder, {"group.id": group, "consumer.id": consumer}, properties)
    args = ["--zookeeper", cluster.connect, "--whitelist", white_list, "--consumer.config", str(config)]
    if from_beginning:
        args.append("--from-beginning")
    if max_messages is not None:
        args += ["--max-messages", str(max_messages)]
    command = logging_command(servers, version, "kafka.tools.ConsoleConsumer", args, folder)
    yield from _running(Original(command, folder, group, consumer))


@contextmanager
def replaying_consumer(
    servers: Servers, cluster: Cluster, topic: str, copy: str, streams: int, folder: Path
) -> Iterator[Original]:
    """`kafka.tools.ReplayLogProducer` (1.1.1): a static subscription in REPLAY_GROUP, records copied to a topic.

    It chooses its own id; a stream stops reading after 10 s without a record.
    """
    args = ["--zookeeper", cluster.connect, "--broker-list", cluster.bootstrap, "--inputtopic", topic]
    args += ["--outputtopic", copy, "--threads", str(streams), "--property", "linger.ms=0"]
    command = logging_command(servers, NEWEST_ORIGINAL, "kafka.tools.ReplayLogProducer", args, folder)
    yield from _running(Original(command, folder, REPLAY_GROUP, "generated"))


async def tools_verdict(servers: Servers, cluster: Cluster, group: str) -> str:
    """`kafka.tools.VerifyConsumerRebalance`, which reports whether every partition has a registered owner."""
    args = ["--zookeeper.connect", cluster.connect, "--group", group]
    return await servers.tool(NEWEST_ORIGINAL, "kafka.tools.VerifyConsumerRebalance", *args)


async def offset_checker(servers: Servers, cluster: Cluster, group: str, *arguments: str) -> str:
    """What `kafka.tools.ConsumerOffsetChecker` (0.10.2.2) writes about a group.

    Each run has its own process: the tool keeps its connections to brokers, by their ids, and clusters share ids.
    """
    args = ["--zookeeper", cluster.connect, "--group", group, *arguments]
    command = servers.java_command("0.10.2.2", "kafka.tools.ConsumerOffsetChecker", *args)
    done = await anyio.run_process(command, stderr=subprocess.STDOUT, check=False)
    return done.stdout.decode()


def _running(member: Original) -> Iterator[Original]:
    try:
        yield member
    finally:
        member.kill()


def _properties(folder: Path, needed: Mapping[str, object], more: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "consumer.properties"
    values = {**PROPERTIES, **needed, **{key.replace("_", "."): value for key, value in more.items()}}
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


def logging_command(servers: Servers, version: str, tool: str, args: list[str], folder: Path) -> list[str]:
    """With a log of the partitions that the member selected; the last of equal flags counts."""
    folder.mkdir(parents=True, exist_ok=True)
    logging = folder / "log4j.properties"
    logging.write_text(_LOGGING)
    command = servers.java_command(version, tool, *args)
    flags = [
        f"-Dlog4j.configuration=file:{logging}",
        "-Dorg.slf4j.simpleLogger.log.kafka.consumer=info",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss,SSS",
    ]
    at = command.index("-cp")
    return [*command[:at], *flags, *command[at:]]
