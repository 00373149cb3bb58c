"""What the worker reads of the cluster when executors fetch: whether topics are still those that were planned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kzconsumer import clock
from kzconsumer.errors import ZooKeeperUnreachableError
from kzconsumer.model import Broker
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_files.names import Owner
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.target import Target
from kzconsumer_files.writer import TargetWriter, Written
from kzconsumer_sandbox.servers.ports import free_port
from kzconsumer_sandbox.servers.zookeeper_server import ZooKeeperServer
from kzconsumer_spark.pipe.kafka import Kafka
from kzconsumer_spark.pipe.messages import SpooledRange
from kzconsumer_spark.ranges.lease import Lease, LeaseLost
from kzconsumer_spark.worker.kafka_registry import KafkaRegistry, TopicRecreatedError, TopicsLease
from tests.support.zookeeper_sessions import session


async def create(zookeeper: ZooKeeperSession, path: str) -> int:
    await zookeeper.ensure(path)
    return (await zookeeper.get(path)).stat.czxid


def registry(connect: str) -> KafkaRegistry:
    return KafkaRegistry(Kafka.of(Settings.from_dict({"zookeeper": {"connect": connect}, "group": {"id": "g"}})))


def planned(topic: str, incarnation: int, partition: int = 0) -> SpooledRange:
    return SpooledRange(
        topic=topic, partition=partition, first=0, until=3, incarnation=incarnation, epoch=0, records=3, file=None
    )


def held() -> Lease:
    return Lease(clock.now() + 600)


def write(target: Target, lease: TopicsLease, part: SpooledRange, meanwhile: Callable[[], None]) -> Written:
    """As the worker does; `meanwhile` the executors fetch."""

    def stage(ranges: Sequence[SpooledRange], output: Path) -> list[StagedRange]:
        output.mkdir()
        (output / "rows").write_bytes(b"rows")
        meanwhile()
        return [StagedRange(each, 3, 0, [(output / "rows", f"{each.topic}.parquet")]) for each in ranges]

    lease.begin([part])
    lease.require()
    return TargetWriter(target, lease.require).write([part], stage)


async def test_what_was_fetched_while_a_topic_was_created_again_is_not_published(
    zookeeper: ZooKeeperServer, unique: str, tmp_path: Path
) -> None:
    connect = f"{zookeeper.connect}/{unique}"
    target = Target(tmp_path / "out")
    target.claim(Owner(cluster="c", group="g"))
    lease = TopicsLease(held(), registry(connect))
    path = "/brokers/topics/t"
    async with session(connect) as connected:
        loop = asyncio.get_running_loop()

        async def recreate() -> int:
            await connected.delete(path, -1)
            return await create(connected, path)

        def again() -> None:
            asyncio.run_coroutine_threadsafe(recreate(), loop).result(20)

        first = planned("t", await create(connected, path))
        with pytest.raises(TopicRecreatedError, match=r"^topic t is 0x\w+ now, its ranges were planned when it was 0x"):
            await asyncio.to_thread(write, target, lease, first, again)
        assert target.missing([first]) == [first]
        with pytest.raises(TopicRecreatedError):
            await asyncio.to_thread(write, target, lease, first, pytest.fail)  # nothing is fetched
        second = planned("t", (await connected.get(path)).stat.czxid)
        written = await asyncio.to_thread(write, target, lease, second, lambda: None)
        assert (written, target.missing([first, second])) == (Written(3, 1, 0), [first])


async def test_every_range_that_is_fetched_must_be_of_its_topic(zookeeper: ZooKeeperServer, unique: str) -> None:
    """One batch may have ranges of both topics of a name."""
    connect = f"{zookeeper.connect}/{unique}"
    async with session(connect) as connected:
        there = [await create(connected, f"/brokers/topics/{name}") for name in "ab"]
    known = registry(connect)

    def check() -> None:
        known.require_planned([])
        known.require_planned([planned("a", there[0]), planned("b", there[1])])
        with pytest.raises(TopicRecreatedError, match="topic b is"):
            known.require_planned([planned("a", there[0]), planned("b", there[1], 1), planned("b", 1)])
        with pytest.raises(TopicRecreatedError, match=r"topic c was deleted, its ranges were planned when it was 0x5$"):
            known.require_planned([planned("c", 5)])
        with pytest.raises(TopicRecreatedError, match="topic b is"):
            known.brokers([planned("b", 1)])
        lost = TopicsLease(Lease(clock.now() - 1, patience=0.05), known)
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
    monkeypatch.setattr("kzconsumer.registry.sessions.LIMIT", 0.3)
    assert await asyncio.to_thread(known.brokers) == found
    with pytest.raises(ZooKeeperUnreachableError):
        await asyncio.to_thread(away.brokers)
