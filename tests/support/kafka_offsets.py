"""A group's offsets in the brokers, read and written by librdkafka, which shares no code with ours.

Blocking calls run in a thread; no member joins the group for them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from confluent_kafka import Consumer, TopicPartition

from kzconsumer.assignors import java_hash
from kzconsumer.registry import paths
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.producing import compatibility
from tests.support.zookeeper_sessions import session

LIMIT = 30.0
TOPIC = "__consumer_offsets"


@contextmanager
def _as_group(cluster: Cluster, group: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            **compatibility(cluster.version),
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


async def kafka_offset(cluster: Cluster, group: str, topic: str, partition: int = 0) -> int | None:
    """The coordinator's offset for the group; None if it has none."""

    def read() -> int | None:
        with _as_group(cluster, group) as consumer:
            (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=LIMIT)
            return found.offset if found.offset >= 0 else None

    return await asyncio.to_thread(read)


async def move_kafka_offset(cluster: Cluster, group: str, topic: str, offset: int) -> None:
    """A commit of partition 0 by another program."""

    def write() -> None:
        with _as_group(cluster, group) as consumer:
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)

    await asyncio.to_thread(write)


async def coordinator_of(cluster: Cluster, group: str) -> int:
    """The id of the broker that keeps the group's offsets: the leader of that partition of their topic
    (`partitionFor`).
    """

    def ask() -> int:
        with _as_group(cluster, "nobody") as consumer:
            parts = consumer.list_topics(TOPIC, timeout=LIMIT).topics[TOPIC].partitions
            return int(parts[_part(group, len(parts))].leader)

    return await asyncio.to_thread(ask)


async def in_sync(cluster: Cluster, group: str) -> None:
    """Wait until every broker has the group's offsets, so that any of them may be stopped or asked for them.

    According to ZooKeeper: a broker that was away assumes for a while that nothing has changed, and reports so.
    """
    async with session(cluster.connect) as zookeeper:

        async def lagging() -> bool:
            parts = json.loads((await zookeeper.get(paths.topic(TOPIC))).data)["partitions"]
            state = await zookeeper.get(f"{paths.topic(TOPIC)}/partitions/{_part(group, len(parts))}/state")
            return len(json.loads(state.data)["isr"]) < len(cluster.brokers)

        with anyio.fail_after(LIMIT):
            while await lagging():
                await asyncio.sleep(0.1)


def _part(group: str, parts: int) -> int:
    return (java_hash(group) & 0x7FFFFFFF) % parts
