"""Offsets in the group's coordinator, alone or beside ZooKeeper's: where they are stored, and which one counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kzconsumer.errors import CoordinatorError, SinkError
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.servers import test_replay as replay
from tests.support.command_line import CommandLine
from tests.support.consuming import LIMIT, member, stored_offset, take
from tests.support.kafka_consumer import kafka_member
from tests.support.kafka_offsets import kafka_offset, move_kafka_offset
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session, until

# The application makes the first commit itself.
KAFKA: Mapping[str, object] = {"storage": "kafka", "dual_commit": False, "commit_interval": "1h"}
DUAL: Mapping[str, object] = {"storage": "kafka", "commit_interval": "1h"}
VERSIONS = ("0.8.2.2", "1.1.1", "3.9.1")


async def fill(cluster: Cluster, topic: str, records: int = 30, partitions: int = 1) -> None:
    await create_topic(cluster.connect, topic, partitions)
    sent = [Sent(number % partitions, None, b"%d" % number) for number in range(records)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, sent)


async def consume(cluster: Cluster, name: str, count: int, offsets: Mapping[str, object]) -> list[int]:
    """A member that joins, takes so many records of the topic of that name, and leaves; returns their offsets."""
    async with member(cluster, name, {name: 1}, offsets=offsets) as (_, streams):
        taken = await take(streams[name][0], count)
        streams[name][0].ack()
    return [message.offset for message in taken]


async def store_in_zookeeper(cluster: Cluster, name: str, offset: int) -> None:
    async with session(cluster.connect) as zookeeper:
        await zookeeper.set(f"/consumers/{name}/offsets/{name}/0", b"%d" % offset, -1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_with_the_brokers_alone(cluster_of: Callable[[str], Cluster], unique: str, version: str) -> None:
    cluster = cluster_of(version)
    name = unique.replace(".", "-")
    await fill(cluster, name)
    assert await consume(cluster, name, 7, KAFKA) == list(range(7))
    assert await kafka_offset(cluster, name, name) == 7
    assert await stored_offset(cluster, name, name) is None
    assert await consume(cluster, name, 5, KAFKA) == list(range(7, 12))
    assert await kafka_offset(cluster, name, name) == 12


@pytest.mark.parametrize("version", VERSIONS)
async def test_with_both_the_larger_offset_counts(
    cluster_of: Callable[[str], Cluster], unique: str, version: str
) -> None:
    cluster = cluster_of(version)
    name = unique.replace(".", "-")
    await fill(cluster, name)
    assert await consume(cluster, name, 3, DUAL) == [0, 1, 2]
    assert (await kafka_offset(cluster, name, name), await stored_offset(cluster, name, name)) == (3, 3)
    await move_kafka_offset(cluster, name, name, 10)
    assert await consume(cluster, name, 2, DUAL) == [10, 11]
    assert (await kafka_offset(cluster, name, name), await stored_offset(cluster, name, name)) == (12, 12)
    await store_in_zookeeper(cluster, name, 20)
    assert await consume(cluster, name, 2, DUAL) == [20, 21]
    assert (await kafka_offset(cluster, name, name), await stored_offset(cluster, name, name)) == (22, 22)


async def test_a_group_goes_to_the_brokers_and_back(cluster: Cluster, unique: str) -> None:
    """ZooKeeper, both, the brokers alone, both, ZooKeeper: nothing is skipped, and nothing is redelivered."""
    await fill(cluster, unique)
    came: list[int] = []
    for offsets in ({"storage": "zookeeper"}, DUAL, KAFKA, DUAL, {"storage": "zookeeper"}):
        came += await consume(cluster, unique, 4, offsets)
    assert came == list(range(20))


@pytest.mark.parametrize("offsets", [KAFKA, DUAL], ids=["kafka", "dual"])
async def test_a_refused_commit_is_raised_and_repeated(
    cluster: Cluster, unique: str, offsets: Mapping[str, object]
) -> None:
    await fill(cluster, unique)
    async with member(cluster, unique, {unique: 1}, offsets=offsets) as (consumer, streams):
        await take(streams[unique][0], 5)
        async with kafka_member(cluster, unique, unique):
            with pytest.raises(CoordinatorError, match="newer consumer"):
                await consumer.commit()
        stored = 4 if offsets is DUAL else None
        assert await stored_offset(cluster, unique, unique) == stored
        await consumer.commit()
        assert await kafka_offset(cluster, unique, unique) == 4


@pytest.mark.parametrize("offsets", [KAFKA, DUAL], ids=["kafka", "dual"])
async def test_a_coordinator_that_refuses_does_not_delay_a_handover(
    cluster: Cluster, unique: str, offsets: Mapping[str, object]
) -> None:
    await fill(cluster, unique, partitions=2)
    async with member(cluster, unique, {unique: 1}, offsets=offsets) as (first, streams):
        await take(streams[unique][0], 30)
        streams[unique][0].ack()  # whichever partition moves has something to store
        async with (
            kafka_member(cluster, unique, unique),
            member(cluster, unique, {unique: 1}, offsets=offsets) as (second, _),
        ):
            await until(lambda: len(first.positions()) == len(second.positions()) == 1, LIMIT)


@pytest.mark.parametrize("offsets", [KAFKA, DUAL], ids=["kafka", "dual"])
async def test_a_reset_by_our_tool_counts_though_the_brokers_have_more(
    cluster: Cluster, unique: str, capsys: pytest.CaptureFixture[str], offsets: Mapping[str, object], tmp_path: Path
) -> None:
    """It sets ZooKeeper's offset and raises the reset epoch; the coordinator's offset has the epoch of its commit."""
    await fill(cluster, unique)
    assert await consume(cluster, unique, 10, offsets) == list(range(10))
    command = CommandLine(capsys, "--zookeeper", cluster.connect)
    undo = ("--undo", str(tmp_path / "undo.jsonl"))
    done = await command("offsets", "reset", unique, "--to-offset", "3", "--topic", unique, "--execute", *undo)
    assert done.status == 0, done
    assert await kafka_offset(cluster, unique, unique) == 10
    assert await consume(cluster, unique, 2, offsets) == [3, 4]
    assert await kafka_offset(cluster, unique, unique) == 5
    # An offset without epoch, as the original stores it, counts.
    await move_kafka_offset(cluster, unique, unique, 8)
    assert await consume(cluster, unique, 1, offsets) == [8]


async def test_a_member_that_lost_a_partition_stores_nothing(cluster: Cluster, unique: str) -> None:
    await fill(cluster, unique)
    async with member(cluster, unique, {unique: 1}, offsets=KAFKA) as (consumer, streams):
        await take(streams[unique][0], 5)
        async with session(cluster.connect) as zookeeper:
            path = f"/consumers/{unique}/claims/{unique}/0"
            node = await zookeeper.find(path)
            assert node is not None
            await zookeeper.set(path, node.data, -1)  # as the next owner's claim does; no member watches this one
        await consumer.commit()
        assert await kafka_offset(cluster, unique, unique) == 0  # where it began, stored before anything was delivered
        await until(lambda: consumer.positions() and consumer.positions()[0].processed == 0)


async def test_with_a_replayable_sink_the_coordinator_has_a_copy(cluster: Cluster, unique: str) -> None:
    """The range in flight is written as planned, and the records after it follow, whatever the copy is."""
    await fill(cluster, unique)
    target = replay.Target()
    with pytest.raises(SinkError):
        await replay.consume(cluster, unique, replay.Sink(target, "before"), lambda: False, storage="kafka")
    assert await replay.plan_of(cluster, unique) is not None
    await replay.produced(cluster, unique, 30)
    await move_kafka_offset(cluster, unique, unique, 45)
    following = replay.Sink(target)
    await replay.consume(cluster, unique, following, lambda: replay.tiled(target, 60), storage="kafka")
    assert [part.range[2:] for batch in following.batches for part in batch.ranges] == [(0, 30), (30, 60)]
    assert (await kafka_offset(cluster, unique, unique), await stored_offset(cluster, unique, unique)) == (60, 60)
