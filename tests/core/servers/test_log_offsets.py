"""Where logs begin and end, and the offsets for a time, requested from real brokers of every version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import pytest

import kzconsumer
from kzconsumer.errors import ConnectionLostError, NotFoundError, UnsupportedVersionError
from kzconsumer.model import TopicPartition
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import member
from tests.support.producing import Sent, produce

TIME = 1_700_000_000_000


@pytest.mark.parametrize("version", ["0.8.2.2", "0.10.2.2", "3.9.1"])
async def test_beginning_end_and_time(cluster_of: Callable[[str], Cluster], version: str, unique: str) -> None:
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 2)
    dated = version != "0.8.2.2"
    sent = [Sent(0, None, b"%d" % n, timestamp=TIME + 1000 * n if dated else None) for n in range(10)]
    await asyncio.to_thread(produce, cluster.bootstrap, version, unique, sent)
    full, empty = TopicPartition(unique, 0), TopicPartition(unique, 1)
    async with member(cluster, unique, {unique: 1}) as (consumer, _):
        assert await consumer.beginning_offsets([full, empty]) == {full: 0, empty: 0}
        assert await consumer.end_offsets([full, empty]) == {full: 10, empty: 0}
        assert await consumer.end_offsets([]) == {}
        if not dated:
            with pytest.raises(UnsupportedVersionError, match=r"before 0\.10\.1 cannot look up records by time"):
                await consumer.offsets_for_times({full: TIME})
            return
        for time, offset in ((0, 0), (TIME + 3000, 3), (TIME + 3001, 4), (TIME + 9001, None)):
            assert await consumer.offsets_for_times({full: time, empty: time}) == {full: offset, empty: None}


async def test_what_does_not_exist_is_an_error_at_once(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 2)
    there = TopicPartition(unique, 0)
    async with member(cluster, unique, {unique: 1}, fetch={"request_timeout": "10m"}) as (consumer, _):
        with anyio.fail_after(60):
            with pytest.raises(NotFoundError, match=f"there is no topic {unique}-not"):
                await consumer.end_offsets([TopicPartition(f"{unique}-not", 0), there])
            with pytest.raises(NotFoundError, match=f"topic {unique} has 2 partitions, and no number 99"):
                await consumer.beginning_offsets([there, TopicPartition(unique, 99)])
            with pytest.raises(NotFoundError):
                await consumer.offsets_for_times({TopicPartition(unique, 99): TIME})
    with pytest.raises(ConnectionLostError, match="not a member"):
        await consumer.end_offsets([there])


async def test_a_consumer_that_has_not_joined_looks_nothing_up(cluster: Cluster, unique: str) -> None:
    async with kzconsumer.connect(zookeeper=cluster.connect, group=unique) as consumer:
        for look in (consumer.beginning_offsets, consumer.end_offsets):
            with pytest.raises(RuntimeError, match="create the streams first"):
                await look([TopicPartition(unique, 0)])
