"""The archive compared with the log it was made from: the same bytes, whatever happens to the member meanwhile."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.readiness import create_topic
from tests.support.members import Daemon, daemon, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.raw_ranges import content, log_directory, segments
from tests.support.servers import Servers
from tests.support.steady_flow import flowing
from tests.support.zookeeper_sessions import session, until

CODECS = {"0.8.2.2": ("none", "gzip", "snappy"), "0.10.2.2": ("none", "gzip", "lz4"), "3.9.1": ("none", "lz4", "zstd")}
TOTAL = 3000
SESSION = "2s"
"""Short: each member waits for the end of the session of the one that was killed."""


def sink(path: Path, **options: int) -> str:
    more = "".join(f"{key} = {value}\n" for key, value in options.items())
    return f'[sink]\nplugin = "segments"\n[sink.options]\npath = "{path}"\n{more}'


async def send(cluster: Cluster, topic: str, first: int, until: int) -> None:
    records = [Sent(0, None, b"value %d" % n) for n in range(first, until)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


def log_of(cluster: Cluster, topic: str, partition: int = 0) -> bytes:
    """What the broker has on disk."""
    return content(log_directory(cluster, topic, partition))


async def dumped(servers: Servers, files: list[Path]) -> str:
    """The output of `kafka.tools.DumpLogSegments` for segments, after reading every record in them."""
    arguments = ["--deep-iteration", "--files", ",".join(map(str, files))]
    command = servers.java_command("3.9.1", "kafka.tools.DumpLogSegments", *arguments)
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def complaints(dump: str) -> list[str]:
    """Lines of a dump that report a problem, or batches that are not valid."""
    wrong = re.compile(r"invalid bytes|mismatch|non-consecutive|isvalid: false|exception", re.IGNORECASE)
    return [line for line in dump.splitlines() if wrong.search(line)]


def stopped_outside_a_write(member: Daemon, directory: Path) -> bool:
    """Stop a member; let it continue if it holds the partition's lock, since no other could continue then."""
    member.signal(signal.SIGSTOP)
    with (directory / ".lock").open("rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            member.signal(signal.SIGCONT)
            return False


@pytest.mark.parametrize("version", CODECS)
async def test_the_archive_equals_the_log_and_kafkas_own_tool_reads_it(
    servers: Servers, cluster_of: Callable[[str], Cluster], version: str, unique: str, tmp_path: Path
) -> None:
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 1)
    for codec in CODECS[version]:
        records = [Sent(0, b"%d" % n, b"value %d" % n * 10) for n in range(TOTAL // 3)]
        await asyncio.to_thread(produce, cluster.bootstrap, version, unique, records, codec, batch_num_messages=100)
    archive = tmp_path / "archive"
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, sink(archive, segment_bytes=20_000)) as member:
        await until(lambda: content(archive / f"{unique}-0") == log_of(cluster, unique), 90)
        member.signal(signal.SIGTERM)
        assert await member.ended() == 0
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [TOTAL]
    files = segments(archive / f"{unique}-0")
    assert len(files) > 1
    assert all(file.stat().st_size <= 20_000 for file in files)
    dump = await dumped(servers, files)
    assert complaints(dump) == []
    assert [int(offset) for offset in re.findall(r"^\| offset: (\d+)", dump, re.MULTILINE)] == list(range(TOTAL))
    # The tool can fail: it reports a torn tail.
    with files[-1].open("ab") as file:
        file.write(b"torn")
    assert complaints(await dumped(servers, files[-1:])) != []


async def test_repeated_kills_under_a_continuous_producer(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """No gap, no overlap: written but uncommitted entries are recognised, torn ones are truncated."""
    await create_topic(cluster.connect, unique, 2)
    archive = tmp_path / "archive"
    small = sink(archive, segment_bytes=60_000)
    directories = [archive / f"{unique}-{partition}" for partition in (0, 1)]
    async with flowing(cluster, unique, 2, per_second=2000) as flow:
        for round_ in range(1, 4):
            with daemon(tmp_path, cluster.connect, unique, {unique: 1}, small, session_timeout=SESSION) as member:
                wanted = round_ * 40_000
                await until(lambda: min(len(content(directory)) for directory in directories) > wanted, 90)  # noqa: B023
                member.signal(signal.SIGKILL)
                await member.ended()
        flow.end()
        await until(lambda: flow.ended, 30)
        async with session(cluster.connect) as zookeeper:  # as if it had been killed before its last commits, too
            for partition in (0, 1):
                await zookeeper.set(f"/consumers/{unique}/offsets/{unique}/{partition}", b"100", -1)
        (torn,) = segments(directories[0])[-1:]
        with torn.open("ab") as file:
            file.write(bytes(3000))
        with daemon(tmp_path, cluster.connect, unique, {unique: 1}, small, session_timeout=SESSION) as member:
            await until(lambda: [content(d) for d in directories] == [log_of(cluster, unique, p) for p in (0, 1)], 60)
            member.signal(signal.SIGTERM)
            assert await member.ended() == 0
            # The last kill may have torn the other one as well.
            assert str(torn) in {event["segment"] for event in member.events("cut off what an interrupted write left")}
    assert flow.refused == []
    for directory in directories:
        assert complaints(await dumped(servers, segments(directory))) == []


async def test_a_suspended_member_finds_the_work_of_its_successor(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """Suspended in mid-flow until its session has expired, and resumed while the other one writes."""
    await create_topic(cluster.connect, unique, 1)
    archive = tmp_path / "archive"
    directory = archive / f"{unique}-0"
    async with flowing(cluster, unique, 1, per_second=1000) as flow:
        with daemon(tmp_path / "1", cluster.connect, unique, {unique: 1}, sink(archive)) as zombie:
            await until(lambda: len(content(directory)) > 10_000, 90)
            with anyio.fail_after(30):
                while not stopped_outside_a_write(zombie, directory):
                    await anyio.sleep(0.01)
            with daemon(tmp_path / "2", cluster.connect, unique, {unique: 1}, sink(archive)) as successor:
                size = len(content(directory))
                await until(lambda: len(content(directory)) > size + 50_000, 60)
                zombie.signal(signal.SIGCONT)
                await until(lambda: zombie.events("session expired, joining again"), 30)
                flow.end()
                await until(lambda: flow.ended and content(directory) == log_of(cluster, unique), 60)
                for member in (zombie, successor):
                    member.signal(signal.SIGTERM)
                    assert await member.ended() == 0
    assert content(directory) == log_of(cluster, unique)


async def test_an_offset_beyond_the_archive_stops_the_member_and_names_the_partition(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    await create_topic(cluster.connect, unique, 1)
    archive = tmp_path / "archive"
    await send(cluster, unique, 0, 10)
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, sink(archive)) as member:
        await until(lambda: content(archive / f"{unique}-0") == log_of(cluster, unique), 90)
        member.signal(signal.SIGTERM)
        assert await member.ended() == 0
    (segment,) = segments(archive / f"{unique}-0")
    os.truncate(segment, 5)
    await send(cluster, unique, 10, 20)
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, sink(archive)) as member:
        assert await member.ended() == 1
        (stopped,) = member.events("stopped by a failure")
        assert f"segments: {unique}-0: the stored offset is 10" in stopped["reason"]
    assert segment.stat().st_size == 5
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [10]
