"""A group in ZooKeeper whose cluster has none: topics and brokers come from Metadata requests."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from structlog.testing import capture_logs

import kzconsumer
from kzconsumer.end_offsets import RUN_CHECK
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic_in_kraft
from tests.support.extent import extent
from tests.support.members import Reader, Tables, reader, settings, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until

PARTITIONS = 4

pytestmark = pytest.mark.parametrize("kraft", extent(("4.2.0",), ("3.9.1", "4.2.0")), indirect=True)


def tables(cluster: Cluster) -> Tables:
    return {"brokers": {"bootstrap": [cluster.bootstrap], "metadata_interval": "200ms"}}


async def send(cluster: Cluster, topic: str, first: int, number: int, partitions: int = PARTITIONS) -> None:
    records = [Sent(n % partitions, b"%d" % n, b"value %d" % n) for n in range(first, first + number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


def values(*members: Reader) -> Counter[bytes | None]:
    return Counter(message.value for member in members for message in member.messages)


async def test_every_record_is_delivered_once_while_members_join_and_leave(kraft: Cluster, unique: str) -> None:
    admin = AdminClient({"bootstrap.servers": kraft.bootstrap})
    await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, unique, PARTITIONS)
    configured = settings(kraft.connect, unique, **tables(kraft))
    await send(kraft, unique, 0, 2_000)
    async with reader(configured, {unique: 1}) as first:
        async with reader(configured, {unique: 1}) as second:
            await until(lambda: len(first.owned) == len(second.owned) == PARTITIONS // 2)
            await send(kraft, unique, 2_000, 2_000)
            await until(lambda: len(first.messages) + len(second.messages) >= 4_000)
        await until(lambda: len(first.owned) == PARTITIONS)
        await send(kraft, unique, 4_000, 400)
        await until(lambda: len(first.messages) + len(second.messages) >= 4_400)
        # A new partition is found by polling alone.
        grown = admin.create_partitions([NewPartitions(unique, PARTITIONS + 1)])
        await asyncio.to_thread(grown[unique].result, 30)
        await until(lambda: len(first.owned) == PARTITIONS + 1)
    assert values(first, second) == Counter(b"value %d" % n for n in range(4_400))
    assert await stored_offsets(kraft.connect, unique, unique, PARTITIONS) == [1_100] * PARTITIONS

    # The offsets of a deleted topic do not count for a new one of its name.
    await asyncio.to_thread(admin.delete_topics([unique])[unique].result, 30)
    await until(lambda: unique not in admin.list_topics(timeout=10).topics)
    await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, unique, PARTITIONS)
    await send(kraft, unique, 10_000, 2_000)
    async with reader(configured, {unique: 1}) as third:
        await until(lambda: len(third.messages) >= 2_000)
    assert values(third) == Counter(b"value %d" % n for n in range(10_000, 12_000))


async def test_a_run_reads_up_to_the_ends_with_which_it_began(kraft: Cluster, unique: str) -> None:
    """A topic that has no node is not a deleted one."""
    await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, unique, PARTITIONS)
    await send(kraft, unique, 0, 400)
    configured = settings(kraft.connect, unique, subscription={"stop_at": "end"}, **tables(kraft))
    found: Counter[bytes | None] = Counter()
    async with kzconsumer.connect(configured) as consumer:
        (stream,) = (await consumer.create_message_streams({unique: 1}))[unique]
        async for message in stream:
            if not found:
                await anyio.sleep(3 * RUN_CHECK)
            found[message.value] += 1
    assert found == Counter(b"value %d" % n for n in range(400))


async def test_a_run_ends_without_a_topic_that_is_deleted(kraft: Cluster, unique: str) -> None:
    """The other one is read to its end."""
    names = read, gone = f"{unique}-a", f"{unique}-b"
    for name in names:
        await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, name, 1)
        await send(kraft, name, 0, 400, 1)
    configured = settings(kraft.connect, unique, subscription={"stop_at": "end"}, **tables(kraft))
    admin = AdminClient({"bootstrap.servers": kraft.bootstrap})
    found: Counter[bytes | None] = Counter()
    with anyio.fail_after(60), capture_logs() as logs:
        async with kzconsumer.connect(configured) as consumer, anyio.create_task_group() as tasks:
            streams = await consumer.create_message_streams(dict.fromkeys(names, 1))

            async def read_all() -> None:
                async for message in streams[read][0]:
                    found[message.value] += 1

            tasks.start_soon(read_all)
            async for _ in streams[gone][0]:
                await asyncio.to_thread(admin.delete_topics([gone])[gone].result, 30)
                break
    shortened = [each for each in logs if each["event"].startswith("run shortened")]
    assert [(each["topic"], each["until"]) for each in shortened] == [(gone, 400)]
    assert found == Counter(b"value %d" % n for n in range(400))
