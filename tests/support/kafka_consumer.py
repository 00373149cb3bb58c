"""Kafka's own consumers, as members of groups that brokers coordinate: librdkafka's, and Java's for brokers of 0.9.

librdkafka reads and stores offsets there, but joins no groups (2.16).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
from confluent_kafka import Consumer, KafkaError, KafkaException, ShareConsumer

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol.groups import ListGroupsRequest
from kzconsumer.model import Broker
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.consuming import LIMIT
from tests.support.java_program import JavaProgram
from tests.support.producing import compatibility
from tests.support.servers import Servers

NEWER_PROTOCOL = {"group_protocol": "consumer"}
"""The protocol of KIP-848."""

QUICK_HEARTBEATS = {
    f"group.{kind}.{least}heartbeat.interval.ms": 100 for kind in ("consumer", "share") for least in ("", "min.")
}
"""For brokers: members of the newer protocols learn with a heartbeat what they own, else after 5 s."""


def kafka_consumer(cluster: Cluster, group: str, **settings: Any) -> Consumer:
    """A consumer without automatic commits. `settings` are librdkafka's settings, with `_` in place of `.`."""
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            **compatibility(cluster.version),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


@asynccontextmanager
async def kafka_member(cluster: Cluster, group: str, topic: str, **settings: Any) -> AsyncIterator[Consumer]:
    """A member that has partitions, and does not read. The coordinator accepts offsets of no others meanwhile."""
    consumer = kafka_consumer(cluster, group, **settings)
    try:
        consumer.subscribe([topic])
        with anyio.fail_after(LIMIT):
            while not consumer.assignment():
                await asyncio.to_thread(consumer.poll, 0.1)
        yield consumer
    finally:
        await asyncio.to_thread(consumer.close)


@contextmanager
def java_member(servers: Servers, cluster: Cluster, group: str, topic: str, folder: Path) -> Iterator[JavaMember]:
    """0.9's console consumer, which reads, prints the values and commits when it is stopped.

    Without a stored offset it reads what is produced from then on.
    """
    folder.mkdir()
    config = folder / "consumer.properties"
    config.write_text(f"group.id={group}\nclient.id=client\nauto.commit.interval.ms=600000\n")
    words = "--new-consumer", "--bootstrap-server", cluster.bootstrap, "--topic", topic, "--consumer.config"
    command = servers.java_command(cluster.version, "kafka.tools.ConsoleConsumer", *words, str(config))
    member = JavaMember(command, folder)
    try:
        yield member
    finally:
        member.kill()


class JavaMember(JavaProgram):
    @property
    def values(self) -> list[bytes]:
        return self.out.read_bytes().split(b"\n")[:-1]

    async def reached(self, number: int) -> list[bytes]:
        """The values as soon as there are so many."""
        with anyio.fail_after(LIMIT):
            while len(self.values) < number:
                assert self.process.poll() is None, self.err.read_text()
                await anyio.sleep(0.05)
        return self.values

    async def stop(self) -> None:
        self.process.terminate()
        with anyio.fail_after(LIMIT):
            while self.process.poll() is None:
                await anyio.sleep(0.05)


@asynccontextmanager
async def share_member(cluster: Cluster, group: str, topic: str) -> AsyncIterator[None]:
    """A member of a share group (KIP-932), whose members get records of the same partitions, in no order."""
    consumer = ShareConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        consumer.subscribe([topic])
        with anyio.fail_after(LIMIT):
            while group not in await _listed(cluster):
                await asyncio.to_thread(consumer.poll, 0.1)
        yield
    finally:
        await asyncio.to_thread(consumer.close)


async def _listed(cluster: Cluster) -> set[str]:
    """The groups that the first broker coordinates. librdkafka lists no share groups."""
    broker = cluster.brokers[1]
    connection = await BrokerConnection.open(Broker(1, broker.host, broker.port), client_id="test", timeout=LIMIT)
    try:
        return {each.group for each in (await connection.call(ListGroupsRequest(), timeout=LIMIT)).groups}
    finally:
        connection.close()


async def read_to_the_end(
    cluster: Cluster, group: str, topic: str, reset: str = "error", *, partitions: int, **settings: Any
) -> list[bytes]:
    """The values that a consumer gets until the end of every partition; it commits.

    Without a stored offset the reset policy counts: `error` raises KafkaException.
    """

    def read() -> list[bytes]:
        consumer = kafka_consumer(cluster, group, auto_offset_reset=reset, enable_partition_eof=True, **settings)
        found: list[bytes] = []
        try:
            consumer.subscribe([topic])
            ended: set[int | None] = set()
            while len(ended) < partitions:
                message = consumer.poll(LIMIT)
                assert message is not None, f"no record within {LIMIT} s"
                error = message.error()
                if error is None:
                    found.append(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise KafkaException(error)
            if found:
                consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found

    return await asyncio.to_thread(read)
