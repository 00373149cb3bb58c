"""Daemons stopped at a seeded moment, and what must be true of every one of them afterwards.

The topic has its records before the daemon starts; the sink writes a line per record, at a pace that a signal can
interrupt.
"""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from tests.support.members import Daemon, stored_offsets
from tests.support.zookeeper_sessions import session

PARTITIONS = 4
DEADLINE = 20.0
T = 3.0

_TABLES = f"""\
[stop]
deadline = "{DEADLINE:.0f}s"
[fetch]
max_bytes = 10000
queue_bytes = 10000
[sink]
plugin = "callable"
options = {{ function = "tests.support.sinks:print_slowly" }}
"""


class Stopped:
    """A daemon that has ended."""

    def __init__(self, member: Daemon, status: int, seconds: float) -> None:
        self.member = member
        self.status = status
        self.seconds = seconds
        """From the signal to the end of the process."""

    def __repr__(self) -> str:
        return f"<Stopped with {self.status} after {self.seconds:.2f} s>"

    @property
    def written(self) -> list[int]:
        """What the sink has, by partition, as the number of records; they must be the first ones, exactly once."""
        offsets: dict[int, list[int]] = defaultdict(list)
        for record in self.member.records():
            offsets[record["partition"]].append(record["offset"])
        for partition, found in offsets.items():
            assert found == list(range(len(found))), f"partition {partition} has gaps or repeats"
        return [len(offsets[partition]) for partition in range(PARTITIONS)]


@contextmanager
def stoppable(folder: Path, connect: str, group: str, topic: str) -> Iterator[Daemon]:
    """The daemon `<group>_stopped` with one stream; killed at the end if it still runs."""
    member = Daemon(folder, connect, group, {topic: 1}, _TABLES, "smallest")
    text = member.config.read_text().replace('"6s"', f'"{T:.0f}s"')
    member.config.write_text(text.replace("[group]\n", '[group]\nconsumer_id = "stopped"\n'))
    member.start()
    try:
        yield member
    finally:
        assert member.process is not None
        if member.process.poll() is None:
            member.process.kill()
            member.process.wait()


async def terminated(member: Daemon, limit: float) -> Stopped:
    began = time.monotonic()
    member.signal(signal.SIGTERM)
    status = await member.ended(limit)
    return Stopped(member, status, time.monotonic() - began)


async def registered(connect: str, group: str, consumer: str, limit: float = 30.0) -> None:
    """Until ZooKeeper has the member's registration."""
    async with session(connect) as zookeeper:
        with anyio.fail_after(limit):
            while not await zookeeper.exists(f"/consumers/{group}/ids/{group}_{consumer}"):
                await anyio.sleep(0.002)


async def left_behind(connect: str, group: str, topic: str) -> list[str]:
    """Members and owners that are still in ZooKeeper."""
    async with session(connect) as zookeeper:
        found = []
        for path in (f"/consumers/{group}/ids", f"/consumers/{group}/owners/{topic}"):
            if await zookeeper.exists(path):
                found += await zookeeper.children(path)
    return found


async def stored(connect: str, group: str, topic: str) -> list[int]:
    """By partition; 0 where nothing is stored."""
    return [offset or 0 for offset in await stored_offsets(connect, group, topic, PARTITIONS)]
