"""Every record of a range, though a broker answers without records for as long as its tiered storage takes to read."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kzconsumer.clock import now
from kzconsumer.fetcher.range_reader import range_reader
from kzconsumer.model import OffsetRange
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.settings.settings import Settings
from kzconsumer_tools import replay as module
from kzconsumer_tools.replay import replay
from tests.support.extent import only_nightly
from tests.support.servers import Servers
from tests.support.tiered import RECORDS, Tiered
from tests.tools.servers.test_sink_replay import Shelf

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def slow(servers: Servers) -> Iterator[Tiered]:
    tiered = Tiered(servers)
    yield tiered
    tiered.cluster.kill()


def settings_of(tiered: Tiered, topic: str) -> Settings:
    tables = {"zookeeper": {"connect": tiered.cluster.connect}, "group": {"id": topic}}
    return Settings.from_dict(tables | {"subscription": {"topics": {topic: 1}}}, source="test")


async def consumed(tiered: Tiered, topic: str) -> list[list[int]]:
    """(partition, offset) of each line of `consume -e`."""
    verb = ["consume", topic, "--zookeeper", tiered.cluster.connect, "-e", "-f", r"%p %o\n"]
    command = [sys.executable, "-m", "kzconsumer", *verb]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return [[*map(int, line.split())] for line in done.stdout.splitlines()]


async def replayed(tiered: Tiered, topic: str) -> Shelf:
    settings, shelf = settings_of(tiered, topic), Shelf()
    shelf.steps = 1000
    async with range_reader(settings) as reader:
        topics = await reader.topics(settings.subscription)
        logs = await reader.logs(await reader.partitions(settings.subscription))
        wanted = [OffsetRange(*each, first, until) for each, (first, until) in logs.items()]
        incarnations = {topic: topics[topic].incarnation}
        await replay(reader, shelf, wanted, incarnations, BatchSettings(), now(), lambda *at: None)
    return shelf


@only_nightly  # members: tests/core/plain/test_group_empty_answers.py; ranges: tests/core/plain/test_range_reader.py
async def test_ranges_in_slow_tiered_storage_are_read_whole(
    slow: Tiered, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`consume`, a replay, and the question of `sink verify` whether a range has a record."""
    monkeypatch.setattr(module, "SETTLED", 0.0)
    await slow.topic(unique)
    assert await consumed(slow, unique) == [[0, offset] for offset in range(RECORDS)]
    slow.forget()
    assert (await replayed(slow, unique)).rows == [(0, offset) for offset in range(RECORDS)]
    slow.forget()
    async with range_reader(settings_of(slow, unique)) as reader:
        assert await reader.any_record(unique, 0, RECORDS // 2, RECORDS // 2 + 1)


@only_nightly
async def test_ranges_of_several_partitions_in_slow_tiered_storage(slow: Tiered, unique: str) -> None:
    """A broker makes one remote read for each request: the others are empty for want of a turn."""
    await slow.topic(unique, 3)
    found = await consumed(slow, unique)
    assert sorted(found) == [[partition, offset] for partition in range(3) for offset in range(RECORDS)]


@only_nightly
async def test_ranges_in_tiered_storage_with_a_quota_are_read_whole(servers: Servers, unique: str) -> None:
    """Reads beyond the quota are answered without records."""
    tiered = Tiered(servers, quota=60_000)
    try:
        await tiered.topic(unique)
        assert await consumed(tiered, unique) == [[0, offset] for offset in range(RECORDS)]
    finally:
        tiered.cluster.kill()
