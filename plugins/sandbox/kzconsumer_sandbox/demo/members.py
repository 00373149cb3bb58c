"""A member of the demo's group: a `kzconsumer --config` process, observed through its log."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec

from kzconsumer.clock import now
from kzconsumer_sandbox.demo.board import MemberState, Reported
from kzconsumer_sandbox.errors import DemoFailed
from kzconsumer_sandbox.servers.server_process import ServerProcess

SESSION_TIMEOUT = 6.0
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
conf = {{ "spark.driver.memory" = "512m" }}

[log]
level = "debug"
format = "json"
progress_interval = "500ms"
"""


class Line(msgspec.Struct):
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
    return _CONFIGURATION.format(timeout=SESSION_TIMEOUT, **quoted)


class Member(ServerProcess):
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
            line = msgspec.json.decode(text, type=Line)
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
        line = msgspec.json.decode(text, type=Line)
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
