"""A replay that fails at every step and is restarted, against a real broker: each record is in the target once."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import TracebackType
from typing import Any, Self, cast

import pytest

from kzconsumer.clock import now
from kzconsumer.errors import NotDoneError, SinkError
from kzconsumer.fetcher.range_reader import range_reader
from kzconsumer.model import OffsetRange, RangeIdentity, TopicPartition
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.interface import Batch, HeldRange, Holdings
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_tools import replay as module
from kzconsumer_tools.replay import alone, replay
from tests.support.producing import Sent, produce

TIME = 1_767_225_600_000


class Shelf:
    """A target in memory, with a ledger; `steps` writes succeed, the next one fails."""

    def __init__(self) -> None:
        self.ledger: list[RangeIdentity] = []
        self.rows: list[tuple[int, int]] = []
        self.steps = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def write(self, batch: Batch) -> None:
        if not self.steps:
            raise OSError("no more")
        self.steps -= 1
        assert len({part.topic_partition for part in batch.ranges}) == len(batch.ranges)
        for part in batch.ranges:
            self.ledger.append(RangeIdentity(*part.range[:2], part.incarnation, part.epoch, part.first, part.until))
            offsets: list[Any] = [offset for each in part.batches for offset in each.column("offset").to_pylist()]
            assert offsets
            assert part.first <= offsets[0] <= offsets[-1] < part.until
            self.rows += [(part.partition, offset) for offset in offsets]

    async def holdings(self, *, count_rows: bool) -> Holdings:
        held = [HeldRange(identity=each, records_in=0, records_out=0, records_quarantined=0) for each in self.ledger]
        return Holdings(destination="shelf", fingerprint="f", ranges=tuple(held))


async def test_a_replay_continues_where_it_ended(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED", 0.0)
    await create_topic(cluster.connect, unique, 3)
    for lot in range(6):
        records = [Sent(n % 2, None, b"." * 100, timestamp=TIME + n) for n in range(lot * 20, lot * 20 + 20)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    tables = {"zookeeper": {"connect": cluster.connect}, "group": {"id": unique}, "fetch": {"max_bytes": 1024}}
    settings = Settings.from_dict(tables | {"subscription": {"topics": {unique: 1}}}, source="test")
    shelf, reasons = Shelf(), list[str]()
    shown: list[tuple[int, int]] = []
    async with range_reader(settings) as reader:
        topics = await reader.topics(settings.subscription)
        partitions = [TopicPartition(unique, n) for n in range(3)]
        first = await reader.at_time(partitions, TIME + 7)  # between two records of each partition
        until = await reader.at_time(partitions, TIME + 101)
        assert list(first.values()) == [4, 3, 0]
        assert list(until.values()) == [51, 50, 0]
        assert await reader.at_time(partitions, TIME + 500) == dict(zip(partitions, (60, 60, 0), strict=True))
        wanted = [OffsetRange(*each, first[each], until[each]) for each in partitions[:2]]
        incarnations = {unique: topics[unique].incarnation}
        for _ in range(20):
            shelf.steps = 1
            try:
                done = await replay(
                    reader,
                    shelf,
                    wanted,
                    incarnations,
                    BatchSettings(max_records=10),
                    now(),
                    lambda *at: shown.append(at),
                )
                break
            except SinkError as error:
                reasons.append(str(error))
    assert len(reasons) >= 3
    assert set(reasons) == {"OSError: no more"}
    spans = sorted((each.partition, each.first, each.until) for each in shelf.ledger)
    assert all(a[2] <= b[1] for a, b in pairwise(spans) if a[0] == b[0])
    assert sorted(shelf.rows) == [(0, n) for n in range(4, 51)] + [(1, n) for n in range(3, 50)]
    assert (done.partitions, done.offsets) == (2, 94)
    assert shown[-1] == (94, 94)
    assert all(0 <= at <= total == 94 for at, total in shown)


class Fetching(Shelf):
    """A sink that fetches for itself, as Spark's tasks do."""

    wants = "ranges"

    async def write(self, batch: Batch) -> None:
        assert sum(part.records for part in batch.ranges) <= 10
        assert len({part.topic_partition for part in batch.ranges}) == len(batch.ranges)
        for part in batch.ranges:
            assert part.spans == (part.range,)
            self.rows += [(part.partition, offset) for offset in range(part.first, part.until)]


async def test_a_sink_that_fetches_for_itself_gets_what_it_is_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLED", 0.0)
    wanted = [OffsetRange("t", 0, 4, 51), OffsetRange("t", 1, 3, 8), OffsetRange("t", 0, 60, 61)]
    shelf, limits = Fetching(), BatchSettings(max_records=10)
    done = await replay(cast(Any, None), shelf, wanted, {"t": 7}, limits, now(), lambda *at: None)
    expected = [(each.partition, n) for each in wanted for n in range(each.first, each.until)]
    assert sorted(shelf.rows) == sorted(expected)
    assert (done.records, done.offsets) == (53, 53)


def test_one_replay_of_a_group_runs_at_a_time(unique: str) -> None:
    with alone("c", unique):
        with (
            pytest.raises(NotDoneError, match=f"another replay of group {unique} is running on this machine"),
            alone("c", unique),
        ):
            pass
        with alone("c", f"{unique}2"):
            pass
    with alone("c", unique):
        pass
