"""A slow replayable sink whose partition is revoked in the middle of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import anyio
import pytest

from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import Plan, decode_claim_record
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.servers.test_replay import LIMIT, Sink, Target, consume
from tests.support.members import committed
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session, until

RECORDS = 30
"""In each partition."""


class Slow(Sink):
    """Publishes when the test allows it."""

    def __init__(self, target: Target, *, held: bool = False) -> None:
        super().__init__(target)
        self.writing = asyncio.Event()
        self.free = asyncio.Event()
        self.written = 0
        if not held:
            self.free.set()

    async def write(self, batch: Batch) -> None:
        self.writing.set()
        await self.free.wait()
        await super().write(batch)
        self.written += 1

    @property
    def replayed(self) -> list[RangeData]:
        return [part for batch in self.batches for part in batch.ranges if batch.is_replay]


async def filled(cluster: Cluster, topic: str, partitions: int) -> None:
    await create_topic(cluster.connect, topic, partitions)
    records = [Sent(n % partitions, None, b"%d" % n) for n in range(RECORDS * partitions)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


def whole(target: Target, partitions: Iterable[int], end: int = RECORDS) -> bool:
    """Every one of these offsets is in exactly one range."""
    return all(
        sorted(n for part in target.ranges if part.partition == partition for n in range(part.first, part.until))
        == list(range(end))
        for partition in partitions
    )


async def plans(cluster: Cluster, topic: str, partitions: int) -> list[Plan | None]:
    paths = GroupPaths(topic)
    async with session(cluster.connect) as zookeeper:
        nodes = [await zookeeper.get(paths.claim_record(TopicPartition(topic, n))) for n in range(partitions)]
    return [decode_claim_record(node.data).plan for node in nodes]


async def owner_of(cluster: Cluster, topic: str, partition: int, is_owner: Callable[[str], bool]) -> None:
    async with session(cluster.connect) as zookeeper:
        with anyio.fail_after(LIMIT):
            while True:
                node = await zookeeper.find(f"/consumers/{topic}/owners/{topic}/{partition}")
                if node is not None and is_owner(node.data.decode()):
                    return
                await anyio.sleep(0.02)


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_partition_that_moves_in_the_middle_of_a_batch(cluster: Cluster, unique: str, in_time: bool) -> None:
    """If it finishes in time, the next owner begins after it; otherwise that finds the plan and writes the range."""
    await filled(cluster, unique, 2)
    target, over = Target(), asyncio.Event()
    slow, successor = Slow(target, held=True), Slow(target)
    group = {"revoke_deadline": "20s" if in_time else "500ms"}
    async with asyncio.TaskGroup() as members:
        members.create_task(consume(cluster, unique, slow, over.is_set, group=group | {"consumer_id": "a"}))
        await until(slow.writing.is_set, LIMIT)
        assert [(plan.first, plan.until) for plan in await plans(cluster, unique, 2) if plan] == [(0, RECORDS)] * 2
        members.create_task(consume(cluster, unique, successor, over.is_set, group=group | {"consumer_id": "b"}))
        if in_time:
            await anyio.sleep(1.0)  # its claim is blocked all the while
            slow.free.set()
            await owner_of(cluster, unique, 1, lambda owner: owner.startswith(f"{unique}_b"))
        else:
            await until(lambda: successor.written, LIMIT)
            assert [(part.partition, part.first, part.until) for part in successor.replayed] == [(1, 0, RECORDS)]
            slow.free.set()  # too late for partition 1, in time for partition 0
        await committed(cluster.connect, unique, unique, [RECORDS] * 2, LIMIT)
        assert bool(successor.replayed) is not in_time
        assert slow.written == 1
        assert whole(target, (0, 1))
        over.set()
    assert await plans(cluster, unique, 2) == [None, None]
