"""Creates topics, and waits until every broker knows their leaders.

By writing the nodes that Kafka's own tool writes, which the controllers of all versions accept that read ZooKeeper; in
KRaft mode with librdkafka.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kzconsumer.zookeeper.operations import ConnectString, Create
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers.readiness import led_partitions


async def create_topic(
    connect: str,
    topic: str,
    partitions: int,
    config: Mapping[str, object] | None = None,
    *,
    replicas: int = 1,
    limit: float = 30.0,
) -> None:
    """Create the topic and return when every broker knows every leader (`kafka.admin.AdminUtils.createTopic`, 0.8.2).

    `connect` is ZooKeeper's connect string with the cluster's chroot; `config` the topic's own settings. Replicas are
    assigned to the registered brokers in turn. Raises SandboxError after `limit` seconds, NodeExistsError if it exists.
    """
    async with _session(connect, limit) as session:
        brokers = sorted(map(int, await session.children("/brokers/ids")))
        await session.ensure("/config/topics")
        await session.multi(
            [
                Create(f"/config/topics/{topic}", topic_config(config or {})),
                Create(f"/brokers/topics/{topic}", assignment(partitions, brokers, replicas)),
            ]
        )
        await _wait_led(session, topic, partitions, brokers)


def create_topic_in_kraft(
    bootstrap: str, topic: str, partitions: int, config: Mapping[str, object] | None = None, *, limit: float = 30.0
) -> bool:
    """Create the topic, and block until every broker knows every leader; False if it exists. Raises SandboxError."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {key: str(value) for key, value in (config or {}).items()}
    try:
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(limit)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise SandboxError(f"topic {topic} was not created: {error}") from None
    deadline = time.monotonic() + limit
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        while len(led_partitions(host, int(port), topic)) < partitions:
            if time.monotonic() > deadline:
                raise SandboxError(f"partitions without leader after {limit:.0f} s at {address}")
            time.sleep(0.02)
    return True


async def add_partitions(connect: str, topic: str, partitions: int, *, limit: float = 30.0) -> None:
    """Grow the topic to `partitions`, as `kafka-topics --alter` does, and wait likewise."""
    path = f"/brokers/topics/{topic}"
    async with _session(connect, limit) as session:
        brokers = sorted(map(int, await session.children("/brokers/ids")))
        node = await session.get(path)
        content = msgspec.json.decode(node.data, type=dict[str, object])
        present = msgspec.convert(content["partitions"], dict[str, list[int]])
        grown = deal(partitions, brokers, max(map(len, present.values())))
        content["partitions"] = grown | present
        await session.set(path, msgspec.json.encode(content), node.stat.version)
        await _wait_led(session, topic, partitions, brokers)


def deal(partitions: int, brokers: list[int], replicas: int) -> dict[str, list[int]]:
    """Partition (as JSON key) -> replicas, the preferred leader first. Raises ValueError with too few brokers."""
    if not 0 < replicas <= len(brokers):
        raise ValueError(f"{replicas} replicas on {len(brokers)} brokers")
    return {
        str(partition): [brokers[(partition + replica) % len(brokers)] for replica in range(replicas)]
        for partition in range(partitions)
    }


def assignment(partitions: int, brokers: list[int], replicas: int) -> bytes:
    """The content of `/brokers/topics/<topic>`, version 1: newer controllers add a topic id of their own."""
    return msgspec.json.encode({"version": 1, "partitions": deal(partitions, brokers, replicas)})


def topic_config(config: Mapping[str, object]) -> bytes:
    """The content of `/config/topics/<topic>`; all values are text."""
    return msgspec.json.encode({"version": 1, "config": {key: str(value) for key, value in config.items()}})


@asynccontextmanager
async def _session(connect: str, limit: float) -> AsyncIterator[ZooKeeperSession]:
    """A session of at most `limit` seconds."""
    try:
        with anyio.fail_after(limit):
            async with ZooKeeperSession(ConnectString.parse(connect), 6.0) as session:
                yield session
    except TimeoutError:
        raise SandboxError(f"no answer, or partitions without leader, after {limit:.0f} s at {connect}") from None


async def _wait_led(session: ZooKeeperSession, topic: str, partitions: int, brokers: list[int]) -> None:
    """Wait until every broker knows the leaders of all partitions, which is later than ZooKeeper has them."""
    for broker in brokers:
        node = await session.get(f"/brokers/ids/{broker}")
        where = msgspec.json.decode(node.data, type=_Registered)
        while True:
            led = await anyio.to_thread.run_sync(led_partitions, where.host, where.port, topic)
            if len(led) >= partitions:
                break
            await anyio.sleep(0.02)


class _Registered(msgspec.Struct):
    host: str
    port: int
