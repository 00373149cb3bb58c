"""Every pinned broker version starts, takes topics and records, and comes back on its port after a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from kzconsumer.errors import NodeExistsError
from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers.jars import NEWEST, resolve_jars
from kzconsumer_sandbox.servers.jars import VERSIONS as ALL
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.readiness import known_brokers, zookeeper_serves
from kzconsumer_sandbox.servers.sandbox import start_server
from kzconsumer_sandbox.servers.topic_creation import add_partitions, create_topic
from tests.support.extent import extent
from tests.support.producing import Sent, compatibility, produce
from tests.support.servers import Servers

VERSIONS = extent(("3.9.1",), tuple(number for number, version in ALL.items() if version.zookeeper))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_version_takes_topics_and_records(
    cluster_of: Callable[[str], Cluster], version: str, unique: str
) -> None:
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 2, {"max.message.bytes": 100_000})
    sent = [Sent(number % 2, b"k", b"value %d" % number) for number in range(20)]
    offsets = await asyncio.to_thread(produce, cluster.bootstrap, version, unique, sent)
    assert offsets == [number // 2 for number in range(20)]
    assert known_brokers(cluster.brokers[1].host, cluster.brokers[1].port) == {1}
    values = await asyncio.to_thread(_read, cluster, unique, 1, 10)
    assert values == [record.value for record in sent if record.partition == 1]
    assert " INFO " in cluster.brokers[1].last_lines()


async def test_a_topic_is_created_once(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    with pytest.raises(Exception, match="exists") as caught:
        await create_topic(cluster.connect, unique, 1)
    assert isinstance(getattr(caught.value, "error", caught.value), NodeExistsError)


@pytest.mark.parametrize("version", VERSIONS)
async def test_partitions_are_added(cluster_of: Callable[[str], Cluster], version: str, unique: str) -> None:
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 1)
    await add_partitions(cluster.connect, unique, 3)
    offsets = await asyncio.to_thread(produce, cluster.bootstrap, version, unique, [Sent(2, None, b"new")])
    assert offsets == [0]


async def test_the_answer_of_another_server_on_its_port_is_not_its_own(servers: Servers, tmp_path: Path) -> None:
    """Two sandboxes that start at once may choose the same port."""
    port = servers.zookeeper.port
    late = ZooKeeperServer(tmp_path, servers.java, resolve_jars(NEWEST.jars), port=port)
    try:
        with pytest.raises(SandboxError, match=r"^zookeeper: another program has taken its port; start again"):
            await start_server(late)
    finally:
        late.kill()
    assert zookeeper_serves(late.host, port)


def _read(cluster: Cluster, topic: str, partition: int, count: int) -> list[bytes | None]:
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "reader", **compatibility(cluster.version)}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        return [message.value() for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()
