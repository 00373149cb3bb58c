"""What counts as consumed: the message in hand, `ack`, leaving and rejoining, offsets without a record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

from kzconsumer import ConsumerConnector, OffsetLostError
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import LIMIT, member, stored_offset, take
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until


async def fill(cluster: Cluster, topic: str, records: int) -> None:
    """A topic of one partition whose values are their offsets."""
    await create_topic(cluster.connect, topic, 1)
    await append(cluster, topic, range(records))


async def append(cluster: Cluster, topic: str, numbers: range) -> None:
    sent = [Sent(0, None, b"%d" % number) for number in numbers]
    assert await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, sent) == list(numbers)


def processed(consumer: ConsumerConnector) -> int:
    (position,) = consumer.positions()
    return position.processed


async def test_consumption_continues_at_the_message_in_hand(cluster: Cluster, unique: str) -> None:
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


async def test_control_records_are_skipped(cluster: Cluster, unique: str) -> None:
    """Aborted records are delivered (read uncommitted, as by the original); transaction markers are not records."""
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
            found.append(message.offset)  # noqa: PERF401  (looked at meanwhile)

    async with member(cluster, unique, {unique: 1}) as (consumer, streams), anyio.create_task_group() as tasks:
        tasks.start_soon(consume, streams[unique][0])
        await until(lambda: processed(consumer) == 18)
        assert found == offsets
        tasks.cancel_scope.cancel()
    assert await stored_offset(cluster, unique, unique) == 18


def clean_every(milliseconds: int, cluster: Cluster) -> None:
    """How long the broker's log cleaner rests; from now on."""
    entry = ConfigEntry("log.cleaner.backoff.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for changed in admin.incremental_alter_configs([broker]).values():
        changed.result(LIMIT)


@pytest.fixture
def compacting(cluster: Cluster) -> Iterator[Cluster]:
    clean_every(50, cluster)
    yield cluster
    clean_every(15_000, cluster)


async def test_a_compacted_log(compacting: Cluster, unique: str) -> None:
    """Compaction leaves holes, inside batches, at their ends and between them; offsets keep their meaning."""
    cluster = compacting
    small = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.bytes": 5000}
    await create_topic(cluster.connect, unique, 1, small)
    folder = cluster.brokers[1].folder / "data" / f"{unique}-0"

    def size() -> int:
        try:
            return sum(file.stat().st_size for file in folder.glob("*.log"))
        except FileNotFoundError:  # renamed by the cleaner at this moment
            return size()

    sent = [Sent(0, b"%d" % (number * number % 13), b"%d" % number + b" " * 400) for number in range(200)]
    offsets = await asyncio.to_thread(
        produce, cluster.bootstrap, cluster.version, unique, sent, batch_num_messages=5, linger_ms=500
    )
    assert offsets == list(range(200))
    await until(lambda: size() < 200 * 400 // 2, LIMIT)
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    async with member(cluster, unique, {unique: 1}) as (_, streams):
        stream = streams[unique][0]
        with anyio.fail_after(LIMIT):
            async for message in stream:
                assert not found or message.offset > max(found)
                found[message.offset] = message.key, message.value
                if message.offset == 199:
                    break
        stream.ack()
    assert len(found) < len(sent)
    assert {offset: (sent[offset].key, sent[offset].value) for offset in found} == found
    assert dict(found.values()) == {each.key: each.value for each in sent}
    assert await stored_offset(cluster, unique, unique) == 200


async def test_records_deleted_from_the_stored_offset_on(cluster: Cluster, unique: str) -> None:
    await fill(cluster, unique, 20)
    async with member(cluster, unique, {unique: 1}) as (_, streams):
        await take(streams[unique][0], 4)
    assert await stored_offset(cluster, unique, unique) == 3
    await delete_before(cluster, unique, 12)
    async with member(cluster, unique, {unique: 1}) as (_, streams):
        assert [message.offset for message in await take(streams[unique][0], 8)] == list(range(12, 20))
    assert await stored_offset(cluster, unique, unique) == 19


async def test_reset_policies(cluster: Cluster, unique: str) -> None:
    await fill(cluster, unique, 10)
    await delete_before(cluster, unique, 4)
    async with member(cluster, f"{unique}-s", {unique: 1}, offsets={"reset": "smallest"}) as (_, streams):
        assert (await take(streams[unique][0], 1))[0].offset == 4
    async with member(cluster, f"{unique}-l", {unique: 1}, offsets={"reset": "largest"}) as (consumer, streams):
        await until(lambda: [position.fetched for position in consumer.positions()] == [10])
        await append(cluster, unique, range(10, 11))
        assert (await take(streams[unique][0], 1))[0].offset == 10
    with pytest.raises(OffsetLostError, match="has no stored offset"):
        async with member(cluster, f"{unique}-f", {unique: 1}, offsets={"reset": "fail"}) as (_, streams):
            await take(streams[unique][0], 1)


async def delete_before(cluster: Cluster, topic: str, offset: int) -> None:
    """As retention does: the log begins at `offset` from now on."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, offset)], request_timeout=LIMIT).values()
    await asyncio.to_thread(deleted.result)
