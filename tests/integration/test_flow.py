"""An application in control of the flow: pause, resume and seek, on real brokers and over rebalances."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import pytest

from kzconsumer import NotOwned
from kzconsumer.model import TopicPartition
from kzconsumer.sandbox.cluster import Cluster
from kzconsumer.sandbox.topics import create_topic
from tests.support.consuming import member, stored_offset, take
from tests.support.members import reader, settings
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until

PARTITIONS = 2


async def send(cluster: Cluster, topic: str, number: int) -> None:
    records = [Sent(n % PARTITIONS, None, b"%d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def test_a_pause_stops_one_partition_and_outlives_a_rebalance(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    await send(cluster, unique, 200)
    configured = settings(cluster.connect, unique)
    held, flowing = TopicPartition(unique, 0), TopicPartition(unique, 1)
    async with reader(configured, {unique: 1}) as first:
        await until(lambda: len(first.messages) == 200)
        first.consumer.pause([held])
        await send(cluster, unique, 200)
        await until(lambda: len(first.messages) == 300)
        async with reader(configured, {unique: 1}) as second:
            await until(lambda: len(first.owned) == len(second.owned) == 1)
        await until(lambda: first.owned == {held, flowing})
        await send(cluster, unique, 200)
        await until(lambda: len([m for m in first.messages + second.messages if m.partition == 1]) == 300)
        await anyio.sleep(0.3)
        assert [at.paused for at in first.consumer.positions()] == [True, False]
        read = [message for message in first.messages if message.partition == 0]
        assert len(read) == 100
        assert first.consumer.paused == {held}
        first.consumer.resume([held])
        await until(lambda: len(first.messages) + len(second.messages) == 600)
    seen = Counter((m.partition, m.offset) for m in first.messages + second.messages)
    assert set(seen.values()) == {1}


async def test_seek_back_and_forth_is_stored_at_once(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(
        produce, cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"%d" % n) for n in range(100)]
    )
    partition = TopicPartition(unique, 0)
    async with member(cluster, unique, {unique: 1}) as (consumer, streams):
        stream = streams[unique][0]
        assert (await take(stream, 50))[-1].offset == 49
        await consumer.seek(partition, 10)
        assert await stored_offset(cluster, unique, unique) == 10
        assert [message.offset for message in await take(stream, 5)] == [10, 11, 12, 13, 14]
        await consumer.seek(partition, 90)
        assert [message.offset for message in await take(stream, 10)] == list(range(90, 100))
        stream.ack()
        await consumer.commit_offsets()
        assert await stored_offset(cluster, unique, unique) == 100
        await consumer.seek(partition, 3)
    async with member(cluster, unique, {unique: 1}) as (consumer, streams):
        assert [message.offset for message in await take(streams[unique][0], 2)] == [3, 4]
        with pytest.raises(NotOwned, match="is not owned by this member"):
            await consumer.seek(TopicPartition(unique, 7), 0)
        with pytest.raises(ValueError, match="-1 is not an offset"):
            await consumer.seek(partition, -1)


async def test_seek_inside_the_loop_and_out_of_the_log(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(
        produce, cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"%d" % n) for n in range(20)]
    )
    partition, seen = TopicPartition(unique, 0), list[int]()
    async with member(cluster, unique, {unique: 1}) as (consumer, streams):
        with anyio.fail_after(20):
            async for message in streams[unique][0]:
                seen.append(message.offset)
                if len(seen) == 5:
                    await consumer.seek(partition, 15)
                if len(seen) == 10:
                    await consumer.seek(partition, 1_000)  # reset = "smallest"
                if len(seen) == 12:
                    break
    assert seen == [0, 1, 2, 3, 4, 15, 16, 17, 18, 19, 0, 1]
