"""Flow control by an application: pause, resume and seek, on real brokers and across rebalances."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import anyio
import pytest

import kzconsumer
from kzconsumer import NotOwnedError
from kzconsumer.clock import now
from kzconsumer.fetcher import fetcher_manager
from kzconsumer.model import TopicPartition
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import member, stored_offset, take
from tests.support.members import daemon, reader, settings, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session, until

PARTITIONS = 2


async def send(cluster: Cluster, topic: str, number: int) -> None:
    records = [Sent(n % PARTITIONS, None, b"%d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def test_a_pause_stops_one_partition_and_outlives_a_rebalance(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two fetch sessions."""
    monkeypatch.setattr(fetcher_manager, "SESSION_PARTITIONS", 1)
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
        await consumer.commit()
        assert await stored_offset(cluster, unique, unique) == 100
        await consumer.seek(partition, 3)
    async with member(cluster, unique, {unique: 1}) as (consumer, streams):
        assert [message.offset for message in await take(streams[unique][0], 2)] == [3, 4]
        with pytest.raises(NotOwnedError, match="is not owned by this member"):
            await consumer.seek(TopicPartition(unique, 7), 0)
        with pytest.raises(ValueError, match="-1 is not an offset"):
            await consumer.seek(partition, -1)


async def drain(stream: kzconsumer.KafkaStream) -> list[int]:
    """The offsets of everything until the stream ends."""
    with anyio.fail_after(20):
        return [message.offset async for message in stream]


async def test_a_run_ends_at_the_log_end(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    await send(cluster, unique, 100)
    end = {"topics": {unique: 1}, "stop_at": "end"}
    async with member(cluster, unique, {unique: 1}, subscription=end) as (consumer, streams):
        first = await take(streams[unique][0], 1)
        await send(cluster, unique, 100)
        assert sorted([*(m.offset for m in first), *await drain(streams[unique][0])]) == sorted(
            [*range(50), *range(50)]
        )
        assert consumer.finished.is_set()
    assert await stored_offset(cluster, unique, unique) == 50
    async with member(cluster, unique, {unique: 1}, subscription=end) as (_, streams):
        assert len(await drain(streams[unique][0])) == 100
    async with member(cluster, unique, {unique: 1}, subscription=end) as (_, streams):
        assert await drain(streams[unique][0]) == []


async def test_a_run_ends_at_a_time_and_at_an_offset_inside_a_batch(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    time = 1_700_000_000_000  # 2023-11-14T22:13:20Z
    sent = [Sent(0, None, b"%d" % n, timestamp=time + 1000 * n) for n in range(60)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent, "lz4")
    until_then = {"topics": {unique: 1}, "stop_at": "2023-11-14T23:13:30+01:00"}
    async with member(cluster, unique, {unique: 1}, subscription=until_then) as (_, streams):
        assert await drain(streams[unique][0]) == list(range(10))
    assert await stored_offset(cluster, unique, unique) == 10
    ends = {TopicPartition(unique, 0): 25}
    async with kzconsumer.connect(settings(cluster.connect, unique), stop_at=ends) as consumer:
        streams = await consumer.create_message_streams({unique: 1})
        assert await drain(streams[unique][0]) == list(range(10, 25))
    assert await stored_offset(cluster, unique, unique) == 25


async def test_a_daemon_at_the_end_exits_with_status_0(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    await send(cluster, unique, 1000)
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}) as job:
        assert job.process is not None
        job.process.kill()
        job.process.wait()
        job.config.write_text(job.config.read_text().replace("[subscription]", '[subscription]\nstop_at = "end"'))
        job.out.write_bytes(b"")
        job.start()
        assert await job.ended(30) == 0
        read = {(record["partition"], record["offset"]) for record in job.records()}
        assert len(job.records()) == len(read) <= 1000
    assert await stored_offsets(cluster.connect, unique, unique, PARTITIONS) == [500] * PARTITIONS


async def test_the_rate_stays_below_the_limit(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    sent = [Sent(0, None, b"x" * 1000) for _ in range(2000)]
    # A broker sends at least one whole batch: large ones would exceed what is allowed at once.
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent, batch_num_messages=50)
    slow = {"rate_limit": "500kB", "max_bytes": "100kB"}
    began = now()  # fetching begins before the streams are here
    async with member(cluster, unique, {unique: 1}, fetch=slow) as (_, streams):
        await take(streams[unique][0], 2000)
        # 2 MB, of which a second's allowance arrives at once, and what is in flight; without a limit it takes 0.1 s.
        assert now() - began > 2.5


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


async def test_a_cancelled_seek_is_stored_by_the_next_commit(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    records = [Sent(0, None, b"%d" % n) for n in range(20)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    rarely = {"commit_interval": "1h"}
    async with member(cluster, unique, {unique: 1}, offsets=rarely) as (consumer, streams):
        await take(streams[unique][0], 10)
        streams[unique][0].ack()
        await consumer.commit()
        for offset in (3, 15, 0):
            with anyio.move_on_after(0):
                await consumer.seek(TopicPartition(unique, 0), offset)
            await consumer.commit()
            assert await stored_offset(cluster, unique, unique) == offset
            assert (await take(streams[unique][0], 1, limit=5))[0].offset == offset


async def test_without_any_broker_nothing_is_finished(zookeeper: ZooKeeperServer, unique: str) -> None:
    async with session(zookeeper.connect) as operator:
        await operator.ensure(f"/{unique}/brokers/topics")
        await operator.create(f"/{unique}/brokers/topics/{unique}", b'{"version":1,"partitions":{"0":[1]}}')
    end = {TopicPartition(unique, 0): 10}
    async with kzconsumer.connect(settings(f"{zookeeper.connect}/{unique}", unique), stop_at=end) as consumer:
        await consumer.create_message_streams({unique: 1})
        with anyio.move_on_after(1):
            await consumer.finished.wait()
        assert not consumer.finished.is_set()


async def test_partitions_that_are_moving_do_not_count_as_finished(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    await send(cluster, unique, 20)
    ends = {TopicPartition(unique, n): 10 for n in range(PARTITIONS)}
    eager = settings(cluster.connect, unique, group={"id": unique, "ownership": "eager"})
    sorts_last = settings(cluster.connect, unique, group={"id": unique, "consumer_id": "z"})
    async with kzconsumer.connect(eager, stop_at=ends) as consumer:
        (stream,) = (await consumer.create_message_streams({unique: 1}))[unique]
        await take(stream, 1)  # in hand: a release waits for it
        async with reader(sorts_last, {unique: 1}):
            await until(lambda: not consumer.positions())  # all released, half of it to be assigned again
            await anyio.sleep(0.5)
            assert not consumer.finished.is_set()
