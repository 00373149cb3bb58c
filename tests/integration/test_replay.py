"""Plan, write, commit on real servers: a member that ends between any two of them leaves its range to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Self

import anyio
import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

import kzconsumer
from kzconsumer.errors import OffsetLost, SinkFailed
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.destination import RangeIdentity
from kzconsumer.sandbox.cluster import Cluster
from kzconsumer.sandbox.topics import create_topic
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer.sinks.planning import Planning
from kzconsumer.sinks.replayable import destination_of
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.streams.chunk_queue import ChunkQueue
from kzconsumer.zookeeper import znodes
from kzconsumer.zookeeper.lease import Lease
from kzconsumer.zookeeper.paths import GroupPaths
from tests.support.consuming import stored_offset
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session

LIMIT = 40.0


class Target:
    """A destination in memory that outlives members: the first publication of a range wins."""

    def __init__(self) -> None:
        self.ranges: dict[RangeIdentity, int] = {}


class Sink:
    """Publishes into the target; may end its member before or after that, as by a kill between two steps."""

    def __init__(self, target: Target, fails: str = "", fingerprint: str = "memory") -> None:
        self.fingerprint = fingerprint
        self.batches: list[Batch] = []
        self._target = target
        self._fails = fails

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return [each for each in ranges if each in self._target.ranges]

    async def write(self, batch: Batch) -> None:
        self.batches.append(batch)
        if self._fails == "before":
            raise RuntimeError("ends before it has published")
        for part in batch.ranges:
            self._target.ranges.setdefault(_identity(part), part.records)
        if self._fails == "after":
            raise RuntimeError("ends after it has published")


def _identity(part: RangeData) -> RangeIdentity:
    return RangeIdentity(part.topic, part.partition, part.incarnation, part.epoch, part.first, part.until)


async def consume(
    cluster: Cluster, topic: str, sink: Sink, until_true: Callable[[], object], records: int = 1000
) -> None:
    """A member as the daemon builds it, until the condition holds or the sink fails."""
    settings = kzconsumer.Settings.from_dict(
        {
            "zookeeper": {"connect": cluster.connect},
            "group": {"id": topic},
            "batch": {"max_records": records, "max_time": "100ms"},
        }
    )
    destination = destination_of("memory", sink)
    lease = Lease()
    fed: asyncio.Future[tuple[Iterable[ChunkQueue], Lease, Callable[[], Awaitable[None]]]] = asyncio.Future()
    async with kzconsumer.connect(settings, lease=lease, destination=destination) as consumer:
        planning = (
            Planning(destination.fingerprint, settings.fetch.isolation, consumer.plan, consumer.go_on)
            if destination is not None
            else None
        )
        runner = SinkRunner("memory", sink, settings.batch, planning)

        async def source() -> tuple[Iterable[ChunkQueue], Lease, Callable[[], Awaitable[None]]]:
            return await fed

        task = asyncio.create_task(runner.run(source))
        streams = await consumer.create_message_streams({topic: 1})
        fed.set_result(([stream.queue for stream in streams[topic]], lease, consumer.commit_offsets))
        with anyio.fail_after(LIMIT):
            while not task.done() and not until_true():
                await anyio.sleep(0.01)
        if not task.done():
            await runner.stop(5)
        await task


async def produced(cluster: Cluster, topic: str, number: int) -> None:
    records = [Sent(0, None, b"%d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def plan_of(cluster: Cluster, topic: str) -> znodes.Plan | None:
    async with session(cluster.connect) as zookeeper:
        node = await zookeeper.get(GroupPaths(topic).claim_record(TopicPartition(topic, 0)))
    return znodes.decode_claim_record(node.data).plan


def tiled(target: Target, until_offset: int) -> bool:
    """Every offset is in exactly one range."""
    at = 0
    for part in sorted(target.ranges, key=lambda each: each.first):
        if part.first != at:
            return False
        at = part.until
    return at == until_offset


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_the_next_member_finishes_the_range(cluster: Cluster, unique: str, fails: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await produced(cluster, unique, 30)
    target = Target()
    ended = Sink(target, fails)
    with pytest.raises(SinkFailed):
        await consume(cluster, unique, ended, lambda: False)
    plan = await plan_of(cluster, unique)
    assert plan is not None
    assert (plan.first, plan.until, plan.records) == (0, 30, 30)
    assert await stored_offset(cluster, unique, unique) == 0
    await produced(cluster, unique, 30)  # another cut would take these along

    following = Sink(target)
    await consume(cluster, unique, following, lambda: tiled(target, 60))

    assert [part.range[2:] for batch in following.batches for part in batch.ranges] == (
        [(0, 30), (30, 60)] if fails == "before" else [(30, 60)]
    )
    assert [batch.is_replay for batch in following.batches] == ([True, False] if fails == "before" else [False])
    assert tiled(target, 60)
    assert await stored_offset(cluster, unique, unique) == 60
    assert await plan_of(cluster, unique) is None


async def test_without_a_plan_the_same_end_doubles(cluster: Cluster, unique: str) -> None:
    """The negative control: the same sink, but that it does not declare itself replayable."""
    await create_topic(cluster.connect, unique, 1)
    await produced(cluster, unique, 30)
    target = Target()
    with pytest.raises(SinkFailed):
        await consume(cluster, unique, Sink(target, "after", fingerprint=""), lambda: False)
    await produced(cluster, unique, 30)
    following = Sink(target, fingerprint="")
    await consume(cluster, unique, following, lambda: any(part.until == 60 for part in target.ranges))
    assert not tiled(target, 60)


async def test_what_the_log_has_lost_is_told_and_not_replaced(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await produced(cluster, unique, 30)
    target = Target()
    with pytest.raises(SinkFailed):
        await consume(cluster, unique, Sink(target, "before"), lambda: False)
    before = await plan_of(cluster, unique)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (deleted,) = admin.delete_records([KafkaPartition(unique, 0, 10)]).values()
    assert (await asyncio.to_thread(deleted.result, LIMIT)).low_watermark == 10
    following = Sink(target)
    with pytest.raises(OffsetLost, match=r"offsets 0 to 30 were planned .* from 10 to 30, has lost 0 to 10;"):
        await consume(cluster, unique, following, lambda: False)
    assert (following.batches, target.ranges) == ([], {})
    assert await plan_of(cluster, unique) == before


@pytest.mark.parametrize("fingerprint", ["", "elsewhere"])
async def test_who_cannot_replay_does_not_consume(cluster: Cluster, unique: str, fingerprint: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await produced(cluster, unique, 30)
    with pytest.raises(SinkFailed):
        await consume(cluster, unique, Sink(Target(), "before"), lambda: False)
    before = await plan_of(cluster, unique)
    other = Sink(Target(), fingerprint=fingerprint)
    ticks = iter(range(100))
    await consume(cluster, unique, other, lambda: next(ticks, 100) >= 99)
    assert other.batches == []
    assert await plan_of(cluster, unique) == before
    assert await stored_offset(cluster, unique, unique) == 0
