"""The demo's members, each a `kzconsumer --config` process that is observed through its log, and its producer."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
from confluent_kafka import KafkaError, Message, Producer

from kzconsumer.clock import now
from kzconsumer_sandbox.demo.board import MemberState, Reported
from kzconsumer_sandbox.sandbox_errors import DemoFailed
from kzconsumer_sandbox.servers.server_process import ServerProcess

SESSION_TIMEOUT = 6.0
# Three Sparks start, and a start is nothing but work of the processors. Java's second compiler would take a third of
# it, for code that the demo does not run for long enough; the check of Spark's classes, which pip has by their hashes,
# takes a fifth of the rest.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
_CONFIGURATION = """\
[zookeeper]
connect = {connect}
session_timeout = "{timeout:g}s"

[group]
id = {group}
consumer_id = {name}

[subscription]
topics = {{ {topic} = 1 }}

[offsets]
commit_interval = "1s"

[sink]
plugin = "spark"

[sink.options]
destination = "parquet"
path = {path}
scratch = {scratch}
master = "local[2]"
conf = {{ "spark.driver.memory" = "512m", "spark.driver.extraJavaOptions" = "{java}" }}

[log]
level = "debug"
format = "json"
progress_interval = "500ms"
"""


class LogLine(msgspec.Struct):
    """The fields of a log line that the demo reads."""

    event: str
    level: str = ""
    partitions: list[Reported] = []


def configuration(*, connect: str, group: str, topic: str, name: str, path: Path, scratch: Path) -> str:
    """A member's TOML file. All members of the group write to the same `path`."""
    quoted: dict[str, Any] = {
        "connect": json.dumps(connect),
        "group": json.dumps(group),
        "topic": json.dumps(topic),
        "name": json.dumps(name),
        "path": json.dumps(str(path)),
        "scratch": json.dumps(str(scratch)),
    }
    return _CONFIGURATION.format(timeout=SESSION_TIMEOUT, java=_JAVA_OPTIONS, **quoted)


class DemoMember(ServerProcess):
    """One member; its id in ZooKeeper is `<group>_<name>`. Killed by the kernel with the demo."""

    def __init__(self, name: str, folder: Path, text: str) -> None:
        super().__init__(name, folder)
        self._text = text
        self._read = 0
        self._part = b""
        self.state = MemberState.STARTING
        self.reported: dict[int, Reported] = {}

    def command(self) -> list[str]:
        file = self.folder / "group.toml"
        file.write_text(self._text)
        return [sys.executable, "-m", "kzconsumer", "--config", str(file)]

    def serves(self) -> bool:
        self.read_log()
        return self.state is MemberState.CONSUMING

    @property
    def started(self) -> bool:
        return self._process is not None

    def kill_9(self) -> None:
        """kill -9 of the member's process only: its Spark has to notice by itself."""
        self.kill()
        self.state = MemberState.KILLED
        self.reported = {}

    def stop(self) -> None:
        """SIGTERM."""
        self.state = MemberState.STOPPING
        self.send_signal(signal.SIGTERM)

    def check(self) -> None:
        """Raises DemoFailed if the process has exited unexpectedly."""
        if not self.started or self.alive or self.state is MemberState.KILLED:
            return
        assert self._process is not None
        if self.state not in (MemberState.STOPPING, MemberState.STOPPED) or self._process.returncode != 0:
            raise DemoFailed(f"{self.name} exited with status {self._process.returncode} while {self.state.value}")
        self.state = MemberState.STOPPED
        self.reported = {}

    def read_log(self) -> None:
        """Read what has been logged since the last call."""
        if not self.started or self.state is MemberState.KILLED:
            return
        with self.log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        self._read += len(new)
        *lines, self._part = (self._part + new).split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, text: bytes) -> None:
        try:
            line = msgspec.json.decode(text, type=LogLine)
        except msgspec.MsgspecError:
            return  # printed by a library or by Spark
        if line.event == "positions":
            self.reported = {each.partition: each for each in line.partitions}
        elif line.event == "spark ready" and self.state is MemberState.STARTING:
            self.state = MemberState.JOINING
        elif line.event == "registered" and self.state in (MemberState.STARTING, MemberState.JOINING):
            self.state = MemberState.CONSUMING

    def last_log_lines(self, count: int = 12) -> list[str]:
        """The end of its log, without debug lines and progress."""
        lines = self.last_lines(1000).splitlines() if self.started else []
        return [line for line in lines if not _is_frequent(line)][-count:]


def _is_frequent(text: str) -> bool:
    try:
        line = msgspec.json.decode(text, type=LogLine)
    except msgspec.MsgspecError:
        return False
    return line.level == "debug" or line.event == "progress"


_POLL = 0.05


def processes_in(folder: Path) -> list[int]:
    """The live processes of this user with a working directory in the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            place = Path(os.readlink(entry / "cwd").removesuffix(" (deleted)"))
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has just exited, or is another user's
            continue
        if state not in "ZX" and place.is_relative_to(folder):
            found.append(int(entry.name))
    return found


async def wait_gone(folder: Path, limit: float) -> list[int]:
    """Wait until no process works in the folder; returns those that still do after `limit` seconds."""
    deadline = now() + limit
    while True:
        left = processes_in(folder)
        if not left or now() > deadline:
            return left
        await anyio.sleep(_POLL)


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


# The producer: distinct messages, spread over the partitions, within a limit that the scenario raises.
#
# It is idempotent, so that an acknowledged message is in the log once.

_BLOCK = 500
_FLUSH_LIMIT = 60.0
_VALUE = b'{"id":%d,"customer":"customer-%05d","article":"article-%04d","quantity":%d,"cents":%d}'


def value(number: int) -> bytes:
    """The value of message `number`: about 85 bytes of JSON with a unique `id`."""
    return _VALUE % (number, number * 7919 % 100_000, number * 104_729 % 10_000, number % 9 + 1, number * 31 % 100_000)


class Allowance:
    """The number of messages that may have been produced at a time: grows at a rate up to a limit."""

    def __init__(self) -> None:
        self._base = 0
        self._limit = 0
        self._rate = 0.0
        self._since = 0.0

    def raise_to(self, limit: int, moment: float, seconds: float = 0.0) -> None:
        """Allow `limit` messages, with the additional ones spread evenly over the next `seconds`."""
        self._base = limit if seconds <= 0 else self.at(moment)
        self._rate = (limit - self._base) / seconds if seconds > 0 else 0.0
        self._limit = limit
        self._since = moment

    def at(self, moment: float) -> int:
        return min(self._limit, self._base + int(self._rate * (moment - self._since)))


class Production:
    """Produces messages 0, 1, 2, ... to one topic; `acknowledged` counts them by partition, from any thread."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, messages: int) -> None:
        self._topic = topic
        self._messages = messages
        self._allowance = Allowance()
        self._closed = threading.Event()
        self._fault = ""
        self.acknowledged = [0] * partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "compression.type": "lz4",
                "log_level": 0,  # errors come with the acknowledgements
            }
        )

    def __repr__(self) -> str:
        return f"<Production {sum(self.acknowledged)} of {self._messages}>"

    def allow(self, share: float, seconds: float = 0.0) -> None:
        """Allow this share of all messages, spread over `seconds`."""
        self._allowance.raise_to(round(share * self._messages), now(), seconds)

    def close(self) -> None:
        """Make `run` return soon."""
        self._closed.set()

    def run(self) -> None:
        """Produce all messages as the limit allows; blocks. Raises DemoFailed."""
        partitions = len(self.acknowledged)
        for block in self._blocks():
            for number in block:
                self._produce(number, number % partitions)
            self._producer.poll(0)
            self._raise_fault()
        if not self._closed.is_set():
            self._producer.flush(_FLUSH_LIMIT)
            self._raise_fault()
            if len(self._producer):
                raise DemoFailed(f"{len(self._producer)} messages are not acknowledged after {_FLUSH_LIMIT:.0f} s")

    def _produce(self, number: int, partition: int) -> None:
        while not self._closed.is_set():
            try:
                self._producer.produce(self._topic, value(number), partition=partition, on_delivery=self._delivered)
                return
            except BufferError:  # librdkafka's queue is full
                self._producer.poll(0.1)

    def _blocks(self) -> Iterator[range]:
        done = 0
        while done < self._messages and not self._closed.is_set():
            until = min(done + _BLOCK, self._allowance.at(now()))
            if until > done:
                yield range(done, until)
                done = until
            else:
                self._producer.poll(0.02)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition = message.partition()
        if error is None and partition is not None:
            self.acknowledged[partition] += 1
        else:
            self._fault = str(error)

    def _raise_fault(self) -> None:
        if self._fault:
            raise DemoFailed(f"a message was rejected: {self._fault}")
