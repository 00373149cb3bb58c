"""A table or a directory of Spark's that is restored from a copy while a daemon writes to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.chaos import DeltaFiles, Destination, IcebergFiles, published
from tests.support.command_line import CommandLine
from tests.support.copied import copied
from tests.support.extent import only_nightly
from tests.support.members import committed, daemon, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until

pytestmark = [only_nightly, pytest.mark.timeout(600)]
LIMIT = 120.0


@pytest.mark.parametrize("made", [published, DeltaFiles, IcebergFiles], ids=["parquet", "delta", "iceberg"])
async def test_the_next_batch_names_what_is_missing_and_a_reset_has_it_written_again(
    cluster: Cluster,
    unique: str,
    tmp_path: Path,
    made: Callable[[Path], Destination],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The daemon has written on after the copy was made. A copy alone changes nothing."""
    monkeypatch.chdir(tmp_path)  # where the command leaves its undo file
    await create_topic(cluster.connect, unique, 1)
    directory = tmp_path / "out"
    table = made(directory)

    def rows() -> Counter[int]:
        return Counter({offset: times for (_, offset), times in table.rows().items()})

    async def send(first: int) -> None:
        records = [Sent(0, None, b"%d" % n) for n in range(first, first + 10)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)

    async def write(first: int) -> None:
        await send(first)
        await committed(cluster.connect, unique, unique, [first + 10], LIMIT, member)

    with daemon(tmp_path / "first", cluster.connect, unique, {unique: 1}, table.tables) as member:
        await write(0)
        restore = copied(directory)
        for first in (10, 20):
            await write(first)
        restore()
        await send(30)
        assert await member.ended() == 1
        lost = "offsets 10 to 30 were written and committed, and are missing now: the destination was"
        assert lost in member.err.read_text(), member.err.read_text()
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [30]
    assert rows() == Counter(range(10))
    way_out = ("--to-offset", "10", "--republish", "--topic", unique, "--execute")
    done = await CommandLine(capsys, "--zookeeper", cluster.connect)("offsets", "reset", unique, *way_out)
    assert done.status == 0, done
    with daemon(tmp_path / "second", cluster.connect, unique, {unique: 1}, table.tables):
        await until(lambda: rows() == Counter(range(40)), LIMIT)
