"""`sink verify` and `replay` beside a live member with a Spark, as printed in docs/spark-proof.md."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pyarrow.dataset as ds
import pytest

from kzconsumer.registry import paths
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.extent import only_nightly
from tests.support.members import committed
from tests.support.pages import printed
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session

pytestmark = pytest.mark.timeout(600)
LIMIT = 240.0
NEW_YEAR = 1_767_225_600_000
PAGE = "docs/spark-proof.md"
LOTS, EACH = 8, 25
_VARYING = [
    (re.compile(r"\+[0-9a-f]+\.0\+"), "+INCARNATION.0+"),
    (re.compile(r"\d+ records? written in \d+ ranges?"), "N records written"),
    (re.compile(r"\d+ were there before"), "N were there"),
]
FILE = """
[zookeeper]
connect = "{connect}"
[group]
id = "billing"
[subscription]
topics = {{ orders = 1 }}
[offsets]
commit_interval = "200ms"
[batch]
max_records = {records}
max_time = "100ms"
[fetch]
max_bytes = {bytes}
[log]
format = "json"
"""
SINK = '[sink]\nplugin = "spark"\n[sink.options]\ndestination = "parquet"\n'


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Its name is short, since it occurs in lines of 80 columns."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.chdir(made)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def ordered(servers: Servers) -> Iterator[Cluster]:
    """Two partitions with a record every 10 ms from new year on, in several batches."""
    cluster = servers.cluster("ordered")
    anyio.run(create_topic, cluster.connect, "orders", 2)
    for lot in range(LOTS):
        numbers = range(lot * EACH, (lot + 1) * EACH)
        records = [Sent(p, None, b"%d" % n, timestamp=NEW_YEAR + n * 10) for n in numbers for p in (0, 1)]
        produce(cluster.bootstrap, cluster.version, "orders", records)
    yield cluster
    cluster.kill()


def form(text: str, folder: Path) -> list[str]:
    text = text.replace(str(folder), "/data")
    for varying, name in _VARYING:
        text = varying.sub(name, text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def positions(path: Path) -> list[tuple[int, int]]:
    """Of every record that a reader finds."""
    table = ds.dataset(path, format="parquet").to_table(columns=["partition", "offset"])
    return sorted((row["partition"], row["offset"]) for row in table.to_pylist())


async def tree(cluster: Cluster) -> dict[str, bytes]:
    """The group's offsets and claims in ZooKeeper."""
    async with session(cluster.connect) as zookeeper:
        found = {}
        for kind in ("offsets", "claims"):
            for number in (0, 1):
                path = f"{paths.CONSUMERS}/billing/{kind}/orders/{number}"
                node = await zookeeper.find(path)
                found[path] = node.data if node is not None else b""
        return found


# Both with a real member: files/servers/test_parquet_sink.py; interrupted replays: tools/servers/test_sink_replay.py;
# what is found: tools/plain/test_sink_proof.py.
@only_nightly
async def test_the_page_matches_a_live_member(
    ordered: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kzconsumer = CommandLine(capsys, "--config", "group.toml")
    sink = f'{SINK}path = "{folder}/out"\n'
    text = FILE.format(connect=ordered.connect, records=500, bytes=1 << 20) + sink
    small = FILE.format(connect=ordered.connect, records=EACH, bytes=1024) + sink
    (folder / "group.toml").write_text(text)
    (folder / "small.toml").write_text(small)
    member = _started(folder, "--config", "group.toml")
    try:
        await committed(ordered.connect, "billing", "orders", [LOTS * EACH] * 2, LIMIT)
        before = await tree(ordered)
        published = await _killed_replay(folder)
        done: list[tuple[str, int]] = []
        for command, answer in printed(PAGE):
            if len(done) == 1:
                gone = next((folder / "out").glob("orders+0+*.parquet"))
                gone.rename(gone.with_name("_gone"))
            said = await CommandLine(capsys)(*shlex.split(command))
            if len(done) == 1:
                (folder / "out" / "_gone").rename(gone)
            done.append((command.split()[1], said.status))
            assert form(said.out, folder) == form("\n".join(answer), folder), f"{command}\n{said.out}{said.err}"
        assert done == [("verify", 0), ("verify", 3), ("replay", 0)]
        # No duplicate, nothing missing, including the work of the killed one; the group and its target as before.
        assert positions(folder / "again") == [(p, n) for p in (0, 1) for n in range(100)]
        assert published > 0
        assert await tree(ordered) == before
        assert positions(folder / "out") == [(p, n) for p in (0, 1) for n in range(LOTS * EACH)]
        times = ["--from", "2026-01-01", "--until", "2026-01-02"]
        refused = await kzconsumer("sink", "replay", *times, "--into", "out")
        assert refused.status == 78
        assert "belongs to group billing of cluster" in refused.err
        await _beside(ordered, kzconsumer)
    finally:
        print((folder / "err").read_text())
        member.terminate()
        member.wait(30)


def _started(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    with (folder / "err").open("ab") as err:
        return subprocess.Popen([sys.executable, "-m", "kzconsumer", *words], cwd=folder, stdout=err, stderr=err)


async def _killed_replay(folder: Path) -> int:
    """A replay that is killed as soon as something is published; returns how many ranges there are."""
    replay = next(command for command, _ in printed(PAGE) if "replay" in command).replace("group.toml", "small.toml")
    process = _started(folder, *shlex.split(replay))
    ledger = folder / "again" / "_kzconsumer"
    try:
        with anyio.fail_after(LIMIT):
            while not (entries := list(ledger.glob("orders*.json"))) and process.poll() is None:
                await anyio.sleep(0.005)
    finally:
        process.kill()
        process.wait()
    return len(entries)


async def _beside(cluster: Cluster, kzconsumer: CommandLine) -> None:
    """While records arrive and are written, every verification is healthy."""
    looks: list[Any] = []

    async def look() -> None:
        looks.append(await kzconsumer.json("sink", "verify"))

    for lot in range(LOTS, LOTS + 4):
        numbers = range(lot * EACH, (lot + 1) * EACH)
        records = [Sent(p, None, b"%d" % n, timestamp=NEW_YEAR + n * 10) for n in numbers for p in (0, 1)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, "orders", records)
        await look()
    await committed(cluster.connect, "billing", "orders", [(LOTS + 4) * EACH] * 2, LIMIT)
    await look()
    assert [each["healthy"] for each in looks] == [True] * 5, [each["findings"] for each in looks]
    assert [(each["stored"], each["rows"]) for each in looks[-1]["partitions"]] == [((LOTS + 4) * EACH,) * 2] * 2
