"""Topics that are deleted and created again under their name."""

from __future__ import annotations

import asyncio

import anyio
from confluent_kafka.admin import AdminClient

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.zookeeper_sessions import session

LIMIT = 40.0


async def recreate_topic(cluster: Cluster, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (deleted,) = admin.delete_topics([topic]).values()
    await asyncio.to_thread(deleted.result, LIMIT)
    async with session(cluster.connect) as zookeeper:
        with anyio.fail_after(LIMIT):
            for node in (f"/brokers/topics/{topic}", f"/config/topics/{topic}"):
                while await zookeeper.exists(node):
                    await anyio.sleep(0.02)
    await create_topic(cluster.connect, topic, partitions)
