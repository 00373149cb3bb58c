"""A group lives through its cluster's migration from ZooKeeper to KRaft, under load, and goes on with Kafka 4."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kzconsumer.registry.nodes import decode_cluster_id
from kzconsumer_sandbox.servers.topics import create_topic
from tests.support.extent import only_nightly
from tests.support.kraft_migration import Migration
from tests.support.members import Reader, daemon, reader, settings
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until

PARTITIONS = 4
LIMIT = 60.0

Place = tuple[int, int]


class Load:
    """Records produced without end; `sent` has those that brokers have acknowledged.

    A broker that has just started knows no topic for a moment, which librdkafka reports as an error.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: dict[Place, bytes] = {}
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self._stop = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            with suppress(KafkaException):
                for _ in range(4):
                    value, partition = b"%d" % number, number % PARTITIONS
                    self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
                    number += 1
            self._producer.poll(0)
        self._producer.flush(LIMIT)

    def has_sent(self, number: int) -> bool:
        return len(self.sent) > number

    def stop(self) -> None:
        self._stop.set()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value()
        # A record whose acknowledgement was lost has no offset, though it was written.
        if error is None and partition is not None and offset is not None and isinstance(value, bytes):
            self.sent[partition, offset] = value


@contextmanager
def load(bootstrap: str, topic: str) -> Iterator[Load]:
    producing = Load(bootstrap, topic)
    thread = threading.Thread(target=producing.run)
    thread.start()
    try:
        yield producing
    finally:
        producing.stop()
        thread.join()


def places(member: Reader) -> Counter[Place]:
    return Counter((message.partition, message.offset) for message in member.messages)


@only_nightly
@pytest.mark.timeout(900)
async def test_no_record_is_lost_or_doubled_while_the_cluster_leaves_zookeeper(
    servers: Servers, unique: str, tmp_path: Path
) -> None:
    cluster = servers.cluster("migrating")
    async with session(cluster.connect) as zookeeper:
        cluster_id = decode_cluster_id((await zookeeper.get("/cluster/id")).data)
    await create_topic(cluster.connect, unique, PARTITIONS)
    migration = Migration(servers, cluster, cluster_id, tmp_path / "controller")
    killed: Counter[Place] = Counter()
    finished: Counter[Place] = Counter()
    steady_settings = settings(cluster.connect, unique, brokers={"metadata_interval": "500ms"})
    try:
        with load(cluster.bootstrap, unique) as producing:
            async with reader(steady_settings, {unique: 1}) as steady:

                async def members_come_and_go(phase: str) -> None:
                    with (
                        daemon(tmp_path / phase / "killed", cluster.connect, unique, {unique: 1}) as dying,
                        daemon(tmp_path / phase / "stopped", cluster.connect, unique, {unique: 1}) as leaving,
                    ):
                        await until(lambda: len(dying.records()) >= 20 and len(leaving.records()) >= 20, LIMIT)
                        dying.signal(signal.SIGKILL)
                        await dying.ended()
                        leaving.signal(signal.SIGTERM)
                        assert await leaving.ended(LIMIT) == 0
                        killed.update((each["partition"], each["offset"]) for each in dying.records())
                        finished.update((each["partition"], each["offset"]) for each in leaving.records())
                    await until(lambda: len(steady.owned) == PARTITIONS, LIMIT)

                await members_come_and_go("before")
                for number, step in enumerate(migration.steps):
                    begun = len(producing.sent)
                    await step()
                    await until(partial(producing.has_sent, begun + 100), LIMIT)
                    await members_come_and_go(str(number))
                await asyncio.to_thread(producing.stop)
                await until(
                    lambda: len(steady.messages) + killed.total() + finished.total() >= len(producing.sent), LIMIT
                )
                others = killed.keys() | finished.keys()
                await until(lambda: producing.sent.keys() <= others | places(steady).keys(), LIMIT)
    finally:
        migration.controller.kill()
    once = places(steady) + finished
    assert {place for place, times in once.items() if times > 1} == set()
    # Only what a killed member had not committed may be delivered again.
    assert producing.sent.keys() <= once.keys() | killed.keys()
    assert all(producing.sent.get((m.partition, m.offset), m.value) == m.value for m in steady.messages)
