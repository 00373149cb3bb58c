"""A broker with a quota for consumers, and one that sends its clients to another replica."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest
from structlog.testing import capture_logs

from kzconsumer_sandbox.servers.jars import kafka_version, resolve_jars
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import member, take
from tests.support.extent import extent, only_nightly
from tests.support.members import sessions_of
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until

RECORDS, QUOTA = 1000, 60_000
"""Of a kilobyte each; bytes a second. A window of the quota is ten or eleven seconds, so 350 records exceed it."""


async def send(cluster: Cluster, topic: str) -> None:
    records = [Sent(0, None, b"x" * 1000) for _ in range(RECORDS)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records, batch_num_messages=10)


@asynccontextmanager
async def limited(cluster: Cluster) -> AsyncIterator[None]:
    """As Kafka's own tools do: the quota of all consumers, and a note that it changed."""
    async with session(cluster.connect) as zookeeper:

        async def limit(quotas: Mapping[str, str]) -> None:
            everybody = "/config/clients/<default>"
            await zookeeper.ensure(everybody)
            await zookeeper.set(everybody, msgspec.json.encode({"version": 1, "config": quotas}), -1)
            note = msgspec.json.encode({"version": 2, "entity_path": "clients/<default>"})
            await zookeeper.create(f"/config/changes/config_change_{time.time_ns()}", note)

        await limit({"consumer_byte_rate": str(QUOTA)})
        yield
        await limit({})


# A first response that is held back: tests/core/plain/test_group_quotas.py.
@pytest.mark.parametrize(("version", "times_lost"), extent([("3.9.1", 0)], [("1.1.1", 2), ("2.8.2", 0), ("3.9.1", 0)]))
async def test_a_quota_is_kept_to_and_does_not_look_like_a_lost_broker(
    cluster_of: Callable[[str], Cluster], unique: str, version: str, times_lost: int
) -> None:
    """One before 2.0 holds the first response back for longer than an answer is waited for."""
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique)
    with capture_logs() as logs:
        async with (
            limited(cluster),
            member(cluster, unique, {unique: 1}, fetch={"request_timeout": "4s"}) as (consumer, streams),
        ):
            await take(streams[unique][0], RECORDS, limit=60)
            counters = sessions_of(consumer).counters.fetches[1]
            assert counters.throttled.count > 0
            assert [at.throttled for at in consumer.positions()] == [True]
    lost = [each["reason"] for each in logs if each["event"] == "broker lost"]
    assert len(lost) <= times_lost, lost
    assert all("quota" in reason for reason in lost)
    assert sum(each["event"] == "throttled by the broker" for each in logs) == 1


@pytest.fixture(scope="module")
def racks(servers: Servers) -> Iterator[Cluster]:
    """Two brokers in two racks; leaders send clients to the replica in theirs."""
    kind = kafka_version("3.9.1")
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    cluster = Cluster(
        servers.zookeeper.connect,
        kind,
        servers.folder / "racks",
        servers.java,
        resolve_jars(kind.jars),
        chroot="/racks",
        brokers=2,
        heap="192m",
        config={"replica.selector.class": selector},
    )
    for number, broker in cluster.brokers.items():
        broker.config["broker.rack"] = f"rack-{number}"
    cluster.start()
    cluster.wait_ready()
    yield cluster
    cluster.kill()


@only_nightly  # all that a leader may say of replicas: tests/core/plain/test_group_quotas.py
async def test_the_replica_in_the_same_rack_is_read_and_given_up_with_its_broker(racks: Cluster, unique: str) -> None:
    await create_topic(racks.connect, unique, 2, replicas=2)
    await send(racks, unique)
    brokers = {"client_rack": "rack-2"}
    async with member(racks, unique, {unique: 1}, brokers=brokers) as (consumer, streams):
        await take(streams[unique][0], RECORDS)
        await until(lambda: [at.leader for at in consumer.positions()] == [2, 2])
        await send(racks, unique)
        await take(streams[unique][0], RECORDS)
        assert [at.leader for at in consumer.positions()] == [2, 2]
        await asyncio.to_thread(racks.brokers[2].kill)
        await send(racks, unique)
        await take(streams[unique][0], RECORDS)
        await until(lambda: [at.leader for at in consumer.positions()] == [1, 1])
