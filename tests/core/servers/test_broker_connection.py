"""Connections to real brokers of every version: negotiation, and every version of every request that both support."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from msgspec.structs import replace

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.cluster_state import MetadataRequest, MetadataResponse
from kzconsumer.brokers.protocol.groups import (
    CoordinatorOffset,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_LOCAL_VERSION,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    AskedEpoch,
    Diverging,
    EpochEnd,
    FetchedPartition,
    FetchPosition,
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.brokers.protocol.versions import (
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    SPOKEN,
    Versions,
)
from kzconsumer.model import Broker, TopicPartition
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.agreed_versions import agreed
from tests.support.extent import extent
from tests.support.producing import compatibility

ClusterOf = Callable[[str], Cluster]

AGREED = {
    "0.8.2.2": "Fetch 0, ListOffsets 0, Metadata 0, OffsetCommit 1, OffsetFetch 1, FindCoordinator 0, DescribeGroups 0",
    "0.9.0.1": "Fetch 0, ListOffsets 0, Metadata 0, OffsetCommit 1, OffsetFetch 1, FindCoordinator 0, DescribeGroups 0",
    "0.10.2.2": "Fetch 3, ListOffsets 1, Metadata 2, OffsetCommit 2, OffsetFetch 2, FindCoordinator 0, "
    "DescribeGroups 0, ListGroups 0",
    "1.1.1": "Fetch 7, ListOffsets 2, Metadata 5, OffsetCommit 3, OffsetFetch 3, FindCoordinator 1, "
    "DescribeGroups 1, ListGroups 1, OffsetForLeaderEpoch 0, DescribeConfigs none",
    "2.8.2": "Fetch 12, ListOffsets 6, Metadata 10, OffsetCommit 8, OffsetFetch 7, FindCoordinator 3, "
    "DescribeGroups 5, ListGroups 4, OffsetForLeaderEpoch 4, DescribeConfigs 4, ListPartitionReassignments 0",
    "3.9.1": "Fetch 12, ListOffsets 8, Metadata 10, OffsetCommit 8, OffsetFetch 7, FindCoordinator 4, "
    "DescribeGroups 5, ListGroups 5, OffsetForLeaderEpoch 4, DescribeConfigs 4, ListPartitionReassignments 0, "
    "ConsumerGroupDescribe 0",
}
# The three others speak every version of a request that these speak.
VERSIONS = [version for version in AGREED if version not in extent(("0.9.0.1", "0.10.2.2", "2.8.2"), ())]
LIMIT = 20.0


@asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[BrokerConnection]:
    broker = cluster.brokers[1]
    connection = await BrokerConnection.open(Broker(1, broker.host, broker.port), client_id="test", timeout=LIMIT)
    try:
        yield connection
    finally:
        connection.close()


async def produce(cluster: Cluster, topic: str, values: dict[int, list[bytes]]) -> None:
    """The values of each partition; returns when the broker has them, which also waits until it serves the topic."""
    settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "acks": "all"}
    refused: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer(settings | compatibility(cluster.version))
    for partition, each in values.items():
        for value in each:
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
    assert await asyncio.to_thread(producer.flush, 30.0) == 0
    assert refused == []


async def metadata_of(connection: BrokerConnection, topic: str, partitions: int) -> MetadataResponse:
    """The broker's response as soon as it knows all leaders."""
    deadline = time.monotonic() + LIMIT
    while True:
        answer = await connection.call(MetadataRequest((topic,)), timeout=LIMIT)
        known = answer.topics[topic].partitions.values()
        if len(known) == partitions and all(partition.leader >= 0 for partition in known):
            return answer
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.05)


async def fetch(
    connection: BrokerConnection, wanted: dict[TopicPartition, FetchPosition], isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, FetchedPartition]:
    """One fetch that does not wait; the response by partition."""
    request = FetchRequest(0, 0, 1 << 24, wanted, isolation)
    answer = await connection.call(request, timeout=LIMIT)
    assert answer.error == error_codes.NONE
    return {part.topic_partition: part for part in answer.partitions}


@pytest.mark.parametrize("version", VERSIONS)
async def test_negotiated_versions(cluster_of: ClusterOf, version: str) -> None:
    async with connected(cluster_of(version)) as connection:
        assert agreed(connection.versions) == AGREED[version]


def levels(versions: Versions, api_key: int) -> list[int]:
    """Every version of a request that both sides speak."""
    oldest, newest = versions.ranges[api_key]
    return list(range(max(oldest, SPOKEN[api_key].oldest), min(newest, SPOKEN[api_key].newest) + 1))


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_of_every_request(cluster_of: ClusterOf, version: str, unique: str) -> None:
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 2)
    await produce(cluster, unique, {0: [b"value-%d" % number for number in range(3)], 1: [b"other"]})
    async with connected(cluster) as connection:
        agreed = connection.versions
        for level in levels(agreed, METADATA):
            connection.versions = Versions({METADATA: (level, level)})
            await check_metadata(connection, level, unique)
        for level in levels(agreed, LIST_OFFSETS):
            connection.versions = Versions({LIST_OFFSETS: (level, level)})
            await check_list_offsets(connection, level, unique)
        for level in levels(agreed, OFFSET_FOR_LEADER_EPOCH) if OFFSET_FOR_LEADER_EPOCH in agreed.ranges else ():
            connection.versions = Versions({OFFSET_FOR_LEADER_EPOCH: (level, level)})
            await check_epoch_ends(connection, level, unique)
        for level in levels(agreed, FETCH):
            connection.versions = Versions({FETCH: (level, level)})
            await check_fetch(connection, level, unique)
        for level in levels(agreed, FIND_COORDINATOR):
            connection.versions = Versions({FIND_COORDINATOR: (level, level)})
            await check_find_coordinator(connection, level, unique)
        offset = 0
        for commit_level in levels(agreed, OFFSET_COMMIT):
            for fetch_level in levels(agreed, OFFSET_FETCH):
                offset += 1
                connection.versions = Versions(
                    {OFFSET_COMMIT: (commit_level, commit_level), OFFSET_FETCH: (fetch_level, fetch_level)}
                )
                if (commit_level == 0) == (fetch_level == 0):
                    await check_offsets(connection, unique, offset)


async def check_metadata(connection: BrokerConnection, level: int, topic: str) -> None:
    metadata = await metadata_of(connection, topic, 2)
    assert metadata.brokers == {1: replace(connection.broker, cluster=metadata.cluster_id or "")}, level
    assert {each.leader for each in metadata.topics[topic].partitions.values()} == {1}, level
    assert metadata.topics[topic].partitions[0].leader_epoch == (0 if level >= 7 else -1), level
    absent = await connection.call(MetadataRequest((topic + "-not",)), timeout=LIMIT)
    assert absent.topics[topic + "-not"].error == error_codes.UNKNOWN_TOPIC_OR_PARTITION, level
    assert topic in (await connection.call(MetadataRequest(None), timeout=LIMIT)).topics, level
    assert (await connection.call(MetadataRequest(()), timeout=LIMIT)).topics == {}, level


async def check_list_offsets(connection: BrokerConnection, level: int, topic: str) -> None:
    p0, p1, missing = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(topic + "-not", 0)
    earliest = await connection.call(ListOffsetsRequest({p0: EARLIEST, p1: EARLIEST}), timeout=LIMIT)
    assert {where: each.offset for where, each in earliest.items()} == {p0: 0, p1: 0}, level
    wanted = {p0: LATEST, p1: LATEST, missing: LATEST}
    latest = await connection.call(ListOffsetsRequest(wanted, READ_COMMITTED), timeout=LIMIT)
    assert {where: each.offset for where, each in latest.items()} == {p0: 3, p1: 1, missing: -1}, level
    assert latest[missing].error == error_codes.UNKNOWN_TOPIC_OR_PARTITION, level
    if level >= 1:
        by_time = await connection.call(ListOffsetsRequest({p0: 1, p1: 1 << 60}), timeout=LIMIT)
        assert by_time[p0].offset == 0, level
        assert by_time[p0].timestamp > 1_500_000_000_000, level
        assert by_time[p1].offset == -1, level
    if level >= EARLIEST_LOCAL_VERSION:
        local = await connection.call(ListOffsetsRequest({p0: EARLIEST_LOCAL}), timeout=LIMIT)
        assert local[p0].offset == 0, level


async def check_epoch_ends(connection: BrokerConnection, level: int, topic: str) -> None:
    p0, p1, missing = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(topic + "-not", 0)
    wanted = {p0: AskedEpoch(0), p1: AskedEpoch(7, 0), missing: AskedEpoch(0)}
    ends = await connection.call(OffsetForLeaderEpochRequest(wanted), timeout=LIMIT)
    unknown = ends.pop(missing)
    assert unknown.error == error_codes.UNKNOWN_TOPIC_OR_PARTITION, level
    assert ends == {p0: EpochEnd(0, 0 if level >= 1 else -1, 3), p1: EpochEnd(0, -1, -1)}, level
    wanted = {p0: AskedEpoch(0, 1)}
    ends = await connection.call(OffsetForLeaderEpochRequest(wanted), timeout=LIMIT)
    assert ends[p0].error == (error_codes.UNKNOWN_LEADER_EPOCH if level >= 2 else error_codes.NONE), level


async def check_fetch(connection: BrokerConnection, level: int, topic: str) -> None:
    p0, p1, missing = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(topic + "-not", 0)
    wanted = {where: FetchPosition(offset, 1 << 20) for where, offset in ((p0, 1), (missing, 0), (p1, 7))}
    for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
        fetched = await fetch(connection, wanted, isolation)
        assert fetched.keys() == wanted.keys(), level
        assert fetched[p0].error == error_codes.NONE, level
        assert fetched[p0].high_watermark == 3, level
        assert fetched[p0].log_start_offset == (0 if level >= 5 else -1), level
        assert fetched[p0].aborted == (), level
        assert b"value-2" in bytes(fetched[p0].records), level
        assert fetched[p1].error == error_codes.OFFSET_OUT_OF_RANGE, level
        assert fetched[missing].error == error_codes.UNKNOWN_TOPIC_OR_PARTITION, level
        assert len(fetched[missing].records) == 0, level
    # A position beyond the end, one in an epoch that the log does not have, and a leader of another epoch.
    beyond = {p0: FetchPosition(4, 1 << 20, 0, 0), p1: FetchPosition(0, 1 << 20, 1)}
    fetched = await fetch(connection, beyond)
    assert fetched[p0].diverging == (Diverging(0, 3) if level >= 12 else None), level
    assert fetched[p0].error == (error_codes.NONE if level >= 12 else error_codes.OFFSET_OUT_OF_RANGE), level
    assert fetched[p1].error == (error_codes.UNKNOWN_LEADER_EPOCH if level >= 9 else error_codes.NONE), level
    fetched = await fetch(connection, {p0: FetchPosition(1, 1 << 20, 0, 0), p1: FetchPosition(1, 1 << 20, 0, 3)})
    assert fetched[p0].diverging is None, level
    assert b"value-2" in bytes(fetched[p0].records), level
    # Of an epoch that no log has, a broker says nothing but that.
    assert fetched[p1].error == (error_codes.OFFSET_OUT_OF_RANGE if level >= 12 else error_codes.NONE), level


async def check_find_coordinator(connection: BrokerConnection, level: int, group: str) -> None:
    """The first group that asks causes the brokers to create their offsets topic."""
    deadline = time.monotonic() + LIMIT
    while True:
        found = await connection.call(FindCoordinatorRequest(group), timeout=LIMIT)
        if found.error == error_codes.NONE:
            break
        assert found.error == error_codes.COORDINATOR_NOT_AVAILABLE, (level, found)
        assert time.monotonic() < deadline, (level, found)
        await asyncio.sleep(0.05)
    assert found.broker == connection.broker, level


async def check_offsets(connection: BrokerConnection, topic: str, offset: int) -> None:
    """Committed offsets are fetched: in version 0 through ZooKeeper, otherwise through the offsets topic."""
    p0, p1 = TopicPartition(topic, 0), TopicPartition(topic, 1)
    about = agreed(connection.versions)
    deadline = time.monotonic() + LIMIT
    while True:  # until the coordinator has read its part of the offsets topic
        request = OffsetCommitRequest(topic, {p0: offset, p1: 1 << 40}, leader_epochs={p0: 3})
        errors = await connection.call(request, timeout=LIMIT)
        if {error_codes.error_code(code).retriable for code in errors.values()} != {True}:
            break
        assert time.monotonic() < deadline, about
        await asyncio.sleep(0.05)
    assert errors == {p0: error_codes.NONE, p1: error_codes.NONE}, about
    stored = await connection.call(OffsetFetchRequest(topic, (p0, p1)), timeout=LIMIT)
    assert stored.error == error_codes.NONE, about
    kept = connection.versions.choose(OFFSET_COMMIT) >= 6 and connection.versions.choose(OFFSET_FETCH) >= 5
    epoch = 3 if kept else -1
    assert stored.offsets == {p0: CoordinatorOffset(0, offset, "", epoch), p1: CoordinatorOffset(0, 1 << 40)}, about
    other = await connection.call(OffsetFetchRequest(topic + "-other", (p0,)), timeout=LIMIT)
    assert other.offsets[p0].offset == -1, about


async def test_large_responses_and_many_calls_in_flight(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 4)
    large = {number: bytes([65 + number]) * 400_000 for number in range(4)}
    await produce(cluster, unique, {number: [value] for number, value in large.items()})
    await produce(cluster, unique, {0: [b"small"]})
    everything = {TopicPartition(unique, number): FetchPosition(0, 1 << 20) for number in range(4)}
    little = {TopicPartition(unique, 0): FetchPosition(1, 1 << 20)}
    async with connected(cluster) as connection:
        answers = await asyncio.gather(*(fetch(connection, everything if turn % 2 else little) for turn in range(20)))
    for fetched in answers[0::2]:
        assert fetched.keys() == little.keys()
        assert b"small" in bytes(fetched[TopicPartition(unique, 0)].records)
        assert len(fetched[TopicPartition(unique, 0)].records) < 200
    for fetched in answers[1::2]:
        assert all(large[where.partition] in bytes(part.records) for where, part in fetched.items())
        assert fetched.keys() == everything.keys()
        assert all(part.records.readonly for part in fetched.values())
