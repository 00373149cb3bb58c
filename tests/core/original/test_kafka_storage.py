"""Kafka's own consumer with `offsets.storage=kafka` and ours, one after the other, while coordinators hang and are
killed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from kzconsumer import ConsumerConnector
from kzconsumer.errors import CoordinatorError
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import LIMIT, member, stored_offset, take
from tests.support.extent import only_nightly
from tests.support.kafka_offsets import coordinator_of, in_sync, kafka_offset
from tests.support.original import Record, console_consumer
from tests.support.producing import Sent, produce
from tests.support.servers import Servers

TWICE = {
    "offsets.topic.replication.factor": 2,
    "zookeeper.session.timeout.ms": 3000,
    # Followers of 1.1.1 occasionally fetch without the part of the group's offsets for some seconds. Commits would wait
    # for them, longer than ours do, and an original gives up silently: neither is the subject of this test.
    "offsets.commit.required.acks": 1,
    # Nor is a coordinator that moves back five seconds after a new controller began, during an original's commit.
    "auto.leader.rebalance.enable": "false",
}


@pytest.fixture
def cluster(servers: Servers) -> Iterator[Cluster]:
    cluster = servers.cluster("kafka-storage", "1.1.1", brokers=2, config=TWICE)
    yield cluster
    cluster.kill()


@only_nightly  # both storages and the coordinator: tests/core/servers/test_offset_storage.py; both kinds: test_kill.py
async def test_both_kinds_hand_over_while_the_coordinator_changes(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    await create_topic(cluster.connect, unique, 1, replicas=2)
    sent = [Sent(0, None, Record(unique, 0, offset).value()) for offset in range(60)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)

    async def both() -> tuple[int | None, int | None]:
        return await kafka_offset(cluster, unique, unique), await stored_offset(cluster, unique, unique)

    async def committed(consumer: ConsumerConnector, offset: int) -> None:
        """Without a coordinator some member has to log that; ZooKeeper needs none."""
        refused = 0
        with anyio.fail_after(2 * LIMIT):
            while True:
                try:
                    await consumer.commit()
                    break
                except CoordinatorError:
                    refused += 1
                    assert await stored_offset(cluster, unique, unique) == offset
        assert refused

    async def original(takes: int, folder: str, **more: Any) -> list[int]:
        with console_consumer(
            servers,
            cluster,
            unique,
            unique,
            tmp_path / folder,
            max_messages=takes,
            offsets_storage="kafka",
            **more,
        ) as running:
            assert await running.ended(LIMIT) == 0, running.err.read_text()[-2000:]
            return [record.offset for record in running.delivered()]

    assert await original(20, "first", dual_commit_enabled="true", from_beginning=True) == list(range(20))
    assert await both() == (20, 20)

    dual = {"storage": "kafka", "commit_interval": "1h"}
    patient = {"request_timeout": "5m"}  # a request that is never answered does not end by itself
    async with member(cluster, unique, {unique: 1}, offsets=dual, fetch=patient) as (consumer, streams):
        stream = streams[unique][0]
        assert [message.offset for message in await take(stream, 10)] == list(range(20, 30))
        stream.ack()
        await consumer.commit()
        assert await both() == (30, 30)

        assert [message.offset for message in await take(stream, 10)] == list(range(30, 40))
        stream.ack()
        # It hangs and cannot even be connected to: the others only learn that when its session has expired.
        hanging = cluster.brokers[await coordinator_of(cluster, unique)]
        hanging.send_signal(signal.SIGSTOP)
        await committed(consumer, 40)
        assert await both() == (40, 40)
        hanging.kill()
        await asyncio.to_thread(hanging.start)
        await asyncio.to_thread(hanging.wait_ready)

    await in_sync(cluster, unique)  # an original gives up after four attempts to read its offsets
    assert await original(10, "second", dual_commit_enabled="false") == list(range(40, 50))
    assert await both() == (50, 40)
    await in_sync(cluster, unique)
    async with member(cluster, unique, {unique: 1}, offsets=dual) as (consumer, streams):
        assert [message.offset for message in await take(streams[unique][0], 5)] == list(range(50, 55))
        cluster.brokers[await coordinator_of(cluster, unique)].kill()
        streams[unique][0].ack()
        await committed(consumer, 55)
    assert await both() == (55, 55)
    assert await original(5, "third", dual_commit_enabled="false") == list(range(55, 60))
