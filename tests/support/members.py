"""Group members for tests: in this process through the API, or as a daemon process of their own.

The daemon processes are killed when the block ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio

import kzconsumer
from kzconsumer.consumer import ConsumerConnector, KafkaStream
from kzconsumer.member import Member
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Message
from kzconsumer.sessions import Sessions
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.zookeeper_sessions import session

Tables = Mapping[str, Mapping[str, object]]


def settings(connect: str, name: str, /, **tables: Mapping[str, object]) -> kzconsumer.Settings:
    """A group's settings; `tables` adds to or replaces the tables that a test needs to differ."""
    base: dict[str, Mapping[str, object]] = {
        "zookeeper": {"connect": connect, "session_timeout": "6s"},
        "group": {"id": name},
        "offsets": {"commit_interval": "500ms"},
    }
    return kzconsumer.Settings.from_dict({**base, **tables})


class Reader:
    """A member that reads all its streams and keeps every message, in the order of arrival."""

    def __init__(self, consumer: ConsumerConnector) -> None:
        self.consumer = consumer
        self.messages: list[Message] = []

    async def read(self, stream: KafkaStream) -> None:
        async for message in stream:
            self.messages.append(message)

    @property
    def owned(self) -> set[TopicPartition]:
        return {TopicPartition(at.topic, at.partition) for at in self.consumer.positions()}


def sessions_of(consumer: ConsumerConnector) -> Sessions:
    """The internals behind the object that an application holds."""
    return consumer._sessions


def present_member(consumer: ConsumerConnector) -> Member:
    member = sessions_of(consumer).member
    assert member is not None
    return member


@asynccontextmanager
async def reader(configured: kzconsumer.Settings, topics: Mapping[str, int]) -> AsyncIterator[Reader]:
    """A member of the group that reads until the block ends."""
    async with kzconsumer.connect(configured) as consumer, anyio.create_task_group() as tasks:
        member = Reader(consumer)
        for streams in (await consumer.create_message_streams(topics)).values():
            for stream in streams:
                tasks.start_soon(member.read, stream)
        yield member
        tasks.cancel_scope.cancel()


async def owners(zookeeper: ZooKeeperSession, group: str, topic: str, partitions: int) -> dict[int, str]:
    """Partition -> owner text, of those that have one."""
    found = {}
    for number in range(partitions):
        node = await zookeeper.find(f"/consumers/{group}/owners/{topic}/{number}")
        if node is not None:
            found[number] = node.data.decode()
    return found


async def stored_offsets(connect: str, group: str, topic: str, partitions: int) -> list[int | None]:
    """What is committed, by partition."""
    async with session(connect) as zookeeper:
        nodes = [await zookeeper.find(f"/consumers/{group}/offsets/{topic}/{n}") for n in range(partitions)]
    return [int(node.data) if node else None for node in nodes]


async def committed(
    connect: str, group: str, topic: str, offsets: Sequence[int], limit: float, member: Daemon | None = None
) -> None:
    """Returns when these are stored, by partition. It fails after `limit` seconds, and if the member has ended."""
    with anyio.fail_after(limit):
        while await stored_offsets(connect, group, topic, len(offsets)) != offsets:
            if member is not None:
                assert member.process is not None
                assert member.process.poll() is None, member.err.read_text()
            await anyio.sleep(0.05)


class Daemon:
    """`python -m kzconsumer --config FILE` with the JSON lines sink; stdout and stderr go to files."""

    def __init__(
        self,
        folder: Path,
        connect: str,
        group: str,
        topics: Mapping[str, int],
        extra: str,
        reset: str,
        session_timeout: str = "6s",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "group.toml"
        self.out, self.err = folder / "out", folder / "err"
        table = ", ".join(f'"{topic}" = {streams}' for topic, streams in topics.items())
        self.config.write_text(
            f'[zookeeper]\nconnect = "{connect}"\nsession_timeout = "{session_timeout}"\n[group]\nid = "{group}"\n'
            f"[subscription]\ntopics = {{ {table} }}\n"
            f'[offsets]\nreset = "{reset}"\ncommit_interval = "500ms"\n[batch]\nmax_records = 500\nmax_time = "100ms"\n'
            f'[log]\nformat = "json"\nlevel = "debug"\nprogress_interval = "200ms"\n{extra}'
            + ("" if "[sink]" in extra else '[sink]\nplugin = "jsonlines"\n')
        )
        self.environment: dict[str, str] = {}
        self.module = "kzconsumer"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, "--config", str(self.config)],
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONWARNINGS": "default", **self.environment},
            )

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    async def ended(self, limit: float = 20.0) -> int:
        """The exit status; TimeoutError after `limit` seconds."""
        assert self.process is not None
        with anyio.fail_after(limit):
            while (status := self.process.poll()) is None:
                await anyio.sleep(0.02)
        return status

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (line for line in self.err.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))
        output = (line for line in lines if line.startswith(b"{") and name.encode() in line)  # lines that are not JSON
        return [event for line in output if (event := json.loads(line))["event"] == name]


@contextmanager
def daemon(
    folder: Path,
    connect: str,
    group: str,
    topics: Mapping[str, int],
    extra: str = "",
    reset: str = "smallest",
    session_timeout: str = "6s",
    *,
    imports: bool = False,
) -> Iterator[Daemon]:
    """A running daemon; killed at the end if it still runs. `imports`: it prints what it imports on stderr."""
    running = Daemon(folder, connect, group, topics, extra, reset, session_timeout)
    if imports:
        running.environment["PYTHONPROFILEIMPORTTIME"] = "1"
    running.start()
    try:
        yield running
    finally:
        running.kill()
