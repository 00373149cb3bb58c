"""What counts as consumed: the message in hand, `ack`, leaving and coming back, and offsets that stand for no record."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import anyio
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kzconsumer import ConsumerConnector
from kzconsumer.sandbox.cluster import Cluster
from kzconsumer.sandbox.topics import create_topic
from tests.support.consuming import LIMIT, member, stored_offset, take, take_batches
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until

# Of every fetch at most one batch comes: it is larger than this.
ONE_BATCH = {"max_bytes": 512}


async def fill(cluster: Cluster, topic: str, records: int, *, batches: int = 1, config: dict[str, Any] | None = None) -> None:
    """A topic of one partition whose values are the offsets, in so many batches of records."""
    await create_topic(cluster.connect, topic, 1, config)
    await append(cluster, topic, range(records), batches=batches)


async def append(cluster: Cluster, topic: str, numbers: range, *, batches: int = 1) -> None:
    sent = [Sent(0, None, b"%d" % number + b" " * 600) for number in numbers]
    each = len(sent) // batches
    offsets = await asyncio.to_thread(
        produce, cluster.bootstrap, cluster.version, topic, sent, batch_num_messages=each, linger_ms=500 if batches > 1 else 20
    )
    assert offsets == list(numbers)


def processed(consumer: ConsumerConnector) -> int:
    (position,) = consumer.positions()
    return position.processed


async def test_goes_on_at_the_message_that_was_in_hand(cluster: Cluster, unique: str) -> None:
    await fill(cluster, unique, 20)
    async with member(cluster, unique, {unique: 1}) as (_, streams):
        assert (await take(streams[unique][0], 7))[-1].offset == 6
    assert await stored_offset(cluster, unique, unique) == 6
    async with member(cluster, unique, {unique: 1}) as (_, streams):
        assert (await take(streams[unique][0], 1))[0].offset == 6
        streams[unique][0].ack()
    assert await stored_offset(cluster, unique, unique) == 7
    async with member(cluster, unique, {unique: 1}) as (_, streams):
        assert [message.offset for message in await take(streams[unique][0], 13)] == list(range(7, 20))
        streams[unique][0].ack()
    assert await stored_offset(cluster, unique, unique) == 20


async def test_nothing_taken_is_nothing_consumed(cluster: Cluster, unique: str) -> None:
    await fill(cluster, unique, 5)
    async with member(cluster, unique, {unique: 1}) as (consumer, _):
        await until(lambda: [position.fetched for position in consumer.positions()] == [5])
        assert [(position.consumed, position.processed) for position in consumer.positions()] == [(0, 0)]
    async with member(cluster, unique, {unique: 1}) as (_, streams):
        assert [message.offset for message in await take(streams[unique][0], 5)] == list(range(5))


async def test_commit_in_the_loop_leaves_out_the_message_in_hand(cluster: Cluster, unique: str) -> None:
    await fill(cluster, unique, 10)
    async with member(cluster, unique, {unique: 1}) as (consumer, streams):
        stream = streams[unique][0]
        with anyio.fail_after(LIMIT):
            async for message in stream:
                if message.offset == 4:
                    await consumer.commit_offsets()
                    assert await stored_offset(cluster, unique, unique) == 4
                elif message.offset == 5:
                    stream.ack()
                    await consumer.commit_offsets()
                    assert await stored_offset(cluster, unique, unique) == 6
                elif message.offset == 9:
                    break


async def test_commit_leaves_out_the_batch_in_hand(cluster: Cluster, unique: str) -> None:
    await fill(cluster, unique, 9, batches=3)
    async with member(cluster, unique, {unique: 1}, fetch=ONE_BATCH) as (consumer, streams):
        stream = streams[unique][0]
        seen = 0
        with anyio.fail_after(LIMIT):
            async for batch in stream.batches():
                assert batch.num_rows == 3
                await consumer.commit_offsets()
                assert await stored_offset(cluster, unique, unique) == seen
                seen += batch.num_rows
                if seen == 9:
                    break
        stream.ack()
        await consumer.commit_offsets()
        assert await stored_offset(cluster, unique, unique) == 9


async def test_iterators_of_a_stream_share_its_place(cluster: Cluster, unique: str) -> None:
    """`break` and go on, messages and batches by turns, inside a batch and over its end: each record once, in order."""
    await fill(cluster, unique, 40, batches=4)
    async with member(cluster, unique, {unique: 1}, fetch=ONE_BATCH) as (consumer, streams):
        stream = streams[unique][0]
        seen: list[int] = []
        for count in (3, 2):
            seen += [message.offset for message in await take(stream, count)]
        assert seen == list(range(5))
        rest_of_first = await take_batches(stream, 1)
        assert processed(consumer) == 5
        second = await take_batches(stream, 1)
        assert processed(consumer) == 10
        seen += chain.from_iterable(batch.column("offset").to_pylist() for batch in rest_of_first + second)
        assert seen == list(range(20))
        seen += [message.offset for message in await take(stream, 12)]
        assert processed(consumer) == 31
        last = await take_batches(stream, 8)
        seen += chain.from_iterable(batch.column("offset").to_pylist() for batch in last)
    assert seen == list(range(40))
    assert await stored_offset(cluster, unique, unique) == 32


async def test_a_cancelled_wait_takes_nothing(cluster: Cluster, unique: str) -> None:
    await fill(cluster, unique, 3)
    async with member(cluster, unique, {unique: 1}) as (_, streams):
        stream = streams[unique][0]
        taken: list[int] = []
        with anyio.move_on_after(1.0) as scope:
            async for message in stream:
                taken.append(message.offset)
        assert scope.cancelled_caught
        assert taken == [0, 1, 2]
        await append(cluster, unique, range(3, 6))
        assert [message.offset for message in await take(stream, 3)] == [3, 4, 5]


async def test_control_records_are_moved_over(cluster: Cluster, unique: str) -> None:
    """Aborted records are delivered (read uncommitted, as the original does); what ends a transaction is no record."""
    await create_topic(cluster.connect, unique, 1)

    def transactions() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": unique, "linger.ms": 5})
        producer.init_transactions(LIMIT)
        for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            for number in range(5):
                producer.produce(unique, b"%d" % number, partition=0)
            assert producer.flush(LIMIT) == 0  # an abort would drop what is not sent
            end(LIMIT)

    await asyncio.to_thread(transactions)
    offsets = [*range(5), *range(6, 11), *range(12, 17)]
    found: list[int] = []

    async def consume(stream: Any) -> None:
        async for message in stream:
            found.append(message.offset)

    async with member(cluster, unique, {unique: 1}) as (consumer, streams), anyio.create_task_group() as tasks:
        tasks.start_soon(consume, streams[unique][0])
        await until(lambda: processed(consumer) == 18)
        assert found == offsets
        tasks.cancel_scope.cancel()
    assert await stored_offset(cluster, unique, unique) == 18


async def test_a_compacted_log(cluster_with_a_busy_cleaner: Cluster, unique: str) -> None:
    """Offsets that compaction took leave holes, also at a batch's end and as batches without any record."""
    cluster = cluster_with_a_busy_cleaner
    await create_topic(
        cluster.connect,
        unique,
        1,
        {"cleanup.policy": "compact", "segment.ms": 100, "min.cleanable.dirty.ratio": 0.01, "segment.bytes": 2000},
    )
