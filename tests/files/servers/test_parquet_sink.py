"""The sink `parquet` in a daemon with a real broker: killed while it writes, verified, and replayed elsewhere."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset as ds
import pytest
from pyarrow import fs

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.copied import copied
from tests.support.extent import extent, only_nightly
from tests.support.members import committed, daemon, stored_offsets
from tests.support.object_store import ObjectStore
from tests.support.producing import Sent, produce
from tests.support.steady_flow import flowing
from tests.support.zookeeper_sessions import until

pytestmark = pytest.mark.timeout(300)
ROUNDS = extent(2, 3)
SESSION = "2s"
"""Short: each member waits for the end of the session of the one that was killed."""


class Lake(NamedTuple):
    """Where files are published: the sink's options, and what a reader needs."""

    options: str
    top: str
    copied: Callable[[], Callable[[], None]]
    filesystem: Any = None

    def read(self) -> ds.FileSystemDataset:
        return ds.dataset(self.top, format="parquet", filesystem=self.filesystem)

    def files(self) -> list[str]:
        try:
            return self.read().files
        except FileNotFoundError:
            return []


@pytest.fixture(params=["directory", *(pytest.param(each, marks=only_nightly) for each in ("s3", "gs", "abfss"))])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    if request.param == "directory":
        yield Lake(f'path = "{tmp_path}/lake"\n', str(tmp_path / "lake"), partial(copied, tmp_path / "lake"))
        return
    with ObjectStore.running(tmp_path / "store", scheme=request.param) as store:
        for key, value in store.environment.items():
            monkeypatch.setenv(key, value)
        reach = "".join(f'store_options.{key} = "{value}"\n' for key, value in store.options.items())
        yield Lake(f'path = "{store.uri("lake")}"\n{reach}', "lake", store.copied, store.filesystem)


def offsets(lake: Lake, partition: int) -> list[int]:
    """Of the records that readers see, in order."""
    table = lake.read().to_table(columns=["partition", "offset"])
    return sorted(row["offset"] for row in table.to_pylist() if row["partition"] == partition)


async def test_repeated_kills_leave_every_record_exactly_once(
    cluster: Cluster, unique: str, tmp_path: Path, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    await create_topic(cluster.connect, unique, 2)
    sink = f'[sink]\nplugin = "parquet"\n[sink.options]\n{lake.options}codec = "zstd"\n'
    kzconsumer = CommandLine(capsys, "--config", str(tmp_path / "group.toml"))

    def written() -> int:
        return len(lake.files())

    async with flowing(cluster, unique, 2, per_second=500) as flow:
        for _ in range(ROUNDS):
            before = written()
            with daemon(tmp_path, cluster.connect, unique, {unique: 1}, sink, session_timeout=SESSION) as member:
                await until(lambda: written() > before + 10, 90)  # noqa: B023
                member.signal(signal.SIGKILL)
                await member.ended()
        flow.end()
        await until(lambda: flow.ended, 30)
    assert flow.refused == []
    records = [Sent(partition, None, b"the last one") for partition in (0, 1)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    last = b"the last one"
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, sink, session_timeout=SESSION) as member:
        await until(lambda: lake.read().count_rows(ds.field("value") == last) == 2, 60)
        member.signal(signal.SIGTERM)
        assert await member.ended() == 0
    ends = [end for end in await stored_offsets(cluster.connect, unique, unique, 2) if end is not None]
    for partition, end in enumerate(ends):
        assert offsets(lake, partition) == list(range(end))
    proof = await kzconsumer.json("sink", "verify")
    assert (proof["healthy"], [each["rows"] for each in proof["partitions"]]) == (True, ends)

    times = ("--from", "2020-01-01", "--until", "2100-01-01")
    done = await kzconsumer("sink", "replay", *times, "--into", str(tmp_path / "again"))
    assert done.status == 0, done
    for partition, end in enumerate(ends):
        assert offsets(lake._replace(top=str(tmp_path / "again"), filesystem=None), partition) == list(range(end))
    (lake.filesystem or fs.LocalFileSystem()).delete_file(lake.files()[0])
    proof = await kzconsumer.json("sink", "verify", status=3)
    assert [each["kind"] for each in proof["findings"]] == ["damaged"]


async def test_a_lake_that_is_restored_while_a_daemon_writes(
    cluster: Cluster,
    unique: str,
    tmp_path: Path,
    lake: Lake,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next batch fails and says what is missing; a reset has it written again. A copy alone changes nothing."""
    monkeypatch.chdir(tmp_path)  # where the command leaves its undo file
    await create_topic(cluster.connect, unique, 2)
    sink = f'[sink]\nplugin = "parquet"\n[sink.options]\n{lake.options}'
    kzconsumer = CommandLine(capsys, "--config", str(tmp_path / "group.toml"))

    async def send(first: int) -> None:
        records = [Sent(partition, None, b"%d" % n) for n in range(first, first + 10) for partition in (0, 1)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)

    async def write(first: int) -> None:
        await send(first)
        await committed(cluster.connect, unique, unique, [first + 10] * 2, 60, member)

    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, sink, session_timeout=SESSION) as member:
        await write(0)
        restore = lake.copied()
        for first in (10, 20):
            await write(first)
        restore()
        await send(30)
        assert await member.ended() == 1
        lost = "offsets 10 to 30 were written and committed, and are missing now: the destination was"
        assert lost in member.err.read_text(), member.err.read_text()
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [30, 30]
    assert [offsets(lake, partition) for partition in (0, 1)] == [list(range(10))] * 2
    proof = await kzconsumer.json("sink", "verify", status=3)
    assert {(each["kind"], each["first"], each["until"]) for each in proof["findings"]} == {("gap", 10, 30)}
    way_out = ("--to-offset", "10", "--republish", "--topic", unique, "--execute")
    done = await CommandLine(capsys, "--zookeeper", cluster.connect)("offsets", "reset", unique, *way_out)
    assert done.status == 0, done
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, sink, session_timeout=SESSION) as member:
        await until(lambda: lake.read().count_rows() == 80, 60)
    assert [offsets(lake, partition) for partition in (0, 1)] == [list(range(40))] * 2
