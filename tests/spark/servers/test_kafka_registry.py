"""What the worker reads of the cluster when executors fetch: whether topics are still those that were planned."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame

from kzconsumer import clock
from kzconsumer.errors import BrokersUnreachableError, OffsetLostError, ZooKeeperUnreachableError
from kzconsumer.model import Broker, OffsetRange, RangeIdentity
from kzconsumer.records.checksums import Contents
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_files.directory_target import Target
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.range_names import TargetOwner
from kzconsumer_files.target_writer import TargetWriter, WriteResult
from kzconsumer_sandbox.servers.configuration import free_port
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic_in_kraft
from kzconsumer_spark.executors.broker_access import BrokerAccess
from kzconsumer_spark.executors.fetching import fetched
from kzconsumer_spark.executors.planned_topics import KafkaRegistry, TopicRecreatedError
from kzconsumer_spark.ranges.batch import LeaseLost, PartsRead, SparkBatch, WorkerLease
from kzconsumer_spark.worker.query import TopicsLease
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session, until


async def create(zookeeper: ZooKeeperSession, path: str) -> int:
    await zookeeper.ensure(path)
    return (await zookeeper.get(path)).stat.czxid


def registry(connect: str) -> KafkaRegistry:
    return KafkaRegistry(Kafka.of(Settings.from_dict({"zookeeper": {"connect": connect}, "group": {"id": "g"}})))


def planned(topic: str, incarnation: int, partition: int = 0) -> BatchRange:
    return BatchRange(topic=topic, partition=partition, first=0, until=3, incarnation=incarnation, epoch=0, records=3)


def identity(topic: str, incarnation: int) -> RangeIdentity:
    return RangeIdentity(topic, 0, incarnation, 0, 0, 3)


def held() -> WorkerLease:
    return WorkerLease(clock.now() + 600)


def write(target: Target, lease: TopicsLease, part: BatchRange, meanwhile: Callable[[], None]) -> WriteResult:
    """As the worker does; `meanwhile` the executors fetch."""

    def stage(ranges: Sequence[BatchRange], output: Path) -> list[StagedRange]:
        output.mkdir()
        (output / "rows").write_bytes(b"rows")
        meanwhile()
        return [StagedRange(each, 3, 0, [(output / "rows", f"{each.topic}.parquet")]) for each in ranges]

    read = {part.range.topic_partition: PartsRead(Contents(records=3))}
    lease.begin(SparkBatch(1, cast("DataFrame", None), [part], read=lambda: read))
    lease.require()
    return TargetWriter(target, lease.require_whole).write([part], stage)


async def test_what_was_fetched_while_a_topic_was_created_again_is_not_published(
    zookeeper: ZooKeeperServer, unique: str, tmp_path: Path
) -> None:
    connect = f"{zookeeper.connect}/{unique}"
    target = Target(tmp_path / "out")
    target.mark(TargetOwner(cluster="c", group="g"))
    lease = TopicsLease(held(), registry(connect), lambda _: None)
    path = "/brokers/topics/t"
    async with session(connect) as connected:
        loop = asyncio.get_running_loop()

        async def recreate() -> int:
            await connected.delete(path, -1)
            return await create(connected, path)

        def again() -> None:
            asyncio.run_coroutine_threadsafe(recreate(), loop).result(20)

        first = planned("t", await create(connected, path))
        with pytest.raises(TopicRecreatedError, match=r"^topic t was deleted and created again after its"):
            await asyncio.to_thread(write, target, lease, first, again)
        assert target.missing([first]) == [first]
        with pytest.raises(TopicRecreatedError):
            await asyncio.to_thread(write, target, lease, first, pytest.fail)  # nothing is fetched
        second = planned("t", (await connected.get(path)).stat.czxid)
        written = await asyncio.to_thread(write, target, lease, second, lambda: None)
        assert (written, target.missing([first, second])) == (WriteResult(3, 1, 0), [first])


async def test_every_range_that_is_fetched_must_be_of_its_topic(zookeeper: ZooKeeperServer, unique: str) -> None:
    """One batch may have ranges of both topics of a name."""
    connect = f"{zookeeper.connect}/{unique}"
    async with session(connect) as connected:
        there = [await create(connected, f"/brokers/topics/{name}") for name in "ab"]
    known = registry(connect)

    def check() -> None:
        known.require_planned([])
        known.require_planned([planned("a", there[0]), planned("b", there[1])])
        with pytest.raises(TopicRecreatedError, match="topic b was"):
            known.require_planned([planned("a", there[0]), planned("b", there[1], 1), planned("b", 1)])
        with pytest.raises(TopicRecreatedError, match=r"^topic c was deleted after its ranges were planned$"):
            known.require_planned([planned("c", 5)])
        assert list(known.planned([identity("a", there[0]), identity("b", 1), identity("c", 5)]).gone) == [
            ("b", 1),
            ("c", 5),
        ]
        lost = TopicsLease(WorkerLease(clock.now() - 1, patience=0.05), known, lambda _: None)
        with pytest.raises(LeaseLost):
            lost.require()

    await asyncio.to_thread(check)


async def test_the_brokers_that_were_known_are_used_while_zookeeper_is_away(
    zookeeper: ZooKeeperServer, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = f"{zookeeper.connect}/{unique}"
    async with session(connect) as connected:
        await connected.ensure("/brokers/ids")
        await connected.create("/brokers/ids/7", b'{"version":1,"host":"h","port":9092}')
    known, away = registry(connect), registry(f"127.0.0.1:{free_port()}")
    found = await asyncio.to_thread(known.brokers)
    assert found == (Broker(7, "h", 9092),)
    monkeypatch.setattr(known, "kafka", away.kafka)
    monkeypatch.setattr("kzconsumer.registry.cluster.LIMIT", 0.3)
    assert await asyncio.to_thread(known.brokers) == found
    with pytest.raises(ZooKeeperUnreachableError):
        await asyncio.to_thread(away.brokers)


async def test_brokers_that_say_nothing(
    zookeeper: ZooKeeperServer, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are named, not ZooKeeper: each has less time than the session."""
    connect = f"{zookeeper.connect}/{unique}"
    async with session(connect) as connected:
        await connected.ensure("/brokers")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        brokers = {"bootstrap": [f"127.0.0.1:{silent.getsockname()[1]}"]}
        settings = {"zookeeper": {"connect": connect}, "group": {"id": "g"}, "brokers": brokers}
        monkeypatch.setattr("kzconsumer.registry.cluster.LIMIT", 3.0)
        monkeypatch.setattr("kzconsumer_spark.executors.planned_topics._BROKER_TIMEOUT", 0.5)
        with pytest.raises(BrokersUnreachableError):
            await asyncio.to_thread(KafkaRegistry(Kafka.of(Settings.from_dict(settings))).reachable)


async def test_a_cluster_without_zookeeper(kraft: Cluster, unique: str) -> None:
    """A task fetches from the brokers that Metadata requests name, and a topic of another id is another one."""
    settings = {"zookeeper": {"connect": kraft.connect}, "group": {"id": "g"}}
    kafka = Kafka.of(Settings.from_dict({**settings, "brokers": {"bootstrap": [kraft.bootstrap]}}))
    known = KafkaRegistry(kafka)

    async def make() -> None:
        await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, unique, 1)
        records = [Sent(0, None, b"%d" % n) for n in range(3)]
        await asyncio.to_thread(produce, kraft.bootstrap, kraft.version, unique, records)

    await make()
    with pytest.raises(TopicRecreatedError, match=f"topic {unique} was"):
        await asyncio.to_thread(known.require_planned, [planned(unique, 1)])
    async with session(kraft.connect) as connected:
        part = planned(unique, (await connected.get(GroupPaths("g").topic(unique))).stat.mzxid)
    brokers, ids, gone = await asyncio.to_thread(known.planned, [identity(unique, part.incarnation)])
    assert (list(ids), gone) == ([unique], {})
    assert kraft.bootstrap in [f"{each.host}:{each.port}" for each in brokers]
    access = BrokerAccess(kafka, brokers, ids)
    rows = await asyncio.to_thread(lambda: [*fetched([OffsetRange(unique, 0, 0, 3)], access)])
    assert [value for batch in rows for value in batch.column("value").to_pylist()] == [b"0", b"1", b"2"]
    admin = AdminClient({"bootstrap.servers": kraft.bootstrap})
    await asyncio.to_thread(admin.delete_topics([unique])[unique].result, 30)
    await until(lambda: unique not in admin.list_topics(timeout=10).topics)
    await make()
    with pytest.raises(TopicRecreatedError, match=f"topic {unique} was"):
        await asyncio.to_thread(known.require_planned, [part])
    with pytest.raises(OffsetLostError, match=f"topic {unique} was deleted and created again"):
        await asyncio.to_thread(lambda: [*fetched([OffsetRange(unique, 0, 0, 3)], access)])
