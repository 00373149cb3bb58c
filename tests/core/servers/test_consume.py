"""Every codec a broker version knows, produced by librdkafka and consumed by a group member, byte for byte."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from kzconsumer import Message, TopicPartition
from kzconsumer.records.columns import SCHEMA
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import as_messages, member, take, take_batches
from tests.support.extent import extent, only_nightly
from tests.support.producing import Headers, Sent, produce

ClusterOf = Callable[[str], Cluster]

CODECS = {
    "0.8.2.2": ("none", "gzip", "snappy", "lz4"),
    "0.10.2.2": ("none", "gzip", "snappy", "lz4"),
    "1.1.1": ("none", "gzip", "snappy", "lz4"),
    "2.8.2": ("none", "gzip", "snappy", "lz4", "zstd"),
    "3.9.1": ("none", "gzip", "snappy", "lz4", "zstd"),
}
VERSIONS = [version for version in CODECS if version not in extent(("1.1.1", "2.8.2"), ())]
CODEC_BITS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
WITHOUT_TIMESTAMPS = {"0.8.2.2"}
WITHOUT_HEADERS = {"0.8.2.2", "0.10.2.2"}
PARTITIONS = 2


def records(version: str) -> list[Sent]:
    """Null, empty, small and large; enough ordinary ones that batches hold many and every kernel is used."""
    noise = random.Random(version)
    headers: tuple[Headers, ...] = (
        (),
        (("trace", b"\x00\xff"), ("trace", b""), ("none", None), ("", b"no name"), ("größe", "ü".encode())),
    )
    cells: tuple[bytes | None, ...] = (None, b"", b"k", noise.randbytes(300))
    values = (*cells, b"a" * 70_000, noise.randbytes(400_000))
    odd = [(key, value) for key in cells for value in values]
    ordinary: list[tuple[bytes | None, bytes | None]] = [
        (b"key-%d" % n, b"value %d " % n * noise.randrange(12)) for n in range(400)
    ]
    return [
        Sent(
            number % PARTITIONS,
            key,
            value,
            () if version in WITHOUT_HEADERS else headers[number % 3 == 0],
            None if version in WITHOUT_TIMESTAMPS else 1_700_000_000_000 + 7 * number - 10_000 * (number % 5),
        )
        for number, (key, value) in enumerate(odd + ordinary)
    ]


def expected(topic: str, sent: list[Sent], offsets: list[int]) -> list[Message]:
    return [
        Message(
            topic,
            each.partition,
            offset,
            each.key,
            each.value,
            each.timestamp,
            each.headers,
            timestamp_type=-1 if each.timestamp is None else 0,
        )
        for each, offset in zip(sent, offsets, strict=True)
    ]


def by_partition(found: list[Message]) -> list[list[Message]]:
    """In the order of delivery: there is no order between partitions."""
    return [[message for message in found if message.partition == partition] for partition in range(PARTITIONS)]


def stored_codecs(cluster: Cluster, topic: str) -> set[int]:
    """Of the batches in partition 0's log: producers send uncompressed what compression would not shrink."""
    log = (cluster.brokers[1].folder / "data" / f"{topic}-0" / f"{0:020}.log").read_bytes()
    found = set()
    position = 0
    while position < len(log):
        attributes = log[position + 22] if log[position + 16] == 2 else log[position + 17]
        found.add(attributes & 7)
        position += 12 + int.from_bytes(log[position + 8 : position + 12], "big")
    return found


# By day the format of 0.10.2 in every codec is part of a log of test_log_formats.py.
@pytest.mark.parametrize(
    "version", [pytest.param(each, marks=only_nightly if each == "0.10.2.2" else ()) for each in VERSIONS]
)
async def test_every_codec_byte_for_byte(cluster_of: ClusterOf, unique: str, version: str) -> None:
    cluster = cluster_of(version)
    topics = {f"{unique}-{codec}": codec for codec in CODECS[version]}
    sent = records(version)
    wanted = {}
    for topic, codec in topics.items():
        await create_topic(cluster.connect, topic, PARTITIONS)
        offsets = await asyncio.to_thread(produce, cluster.bootstrap, version, topic, sent, codec)
        wanted[topic] = by_partition(expected(topic, sent, offsets))
        assert CODEC_BITS[codec] in stored_codecs(cluster, topic)
    async with (
        member(cluster, f"{unique}-messages", dict.fromkeys(topics, 1)) as (_, streams),
        member(cluster, f"{unique}-batches", dict.fromkeys(topics, 1)) as (_, batch_streams),
    ):
        for topic in topics:
            assert by_partition(await take(streams[topic][0], len(sent))) == wanted[topic], topic
            batches = await take_batches(batch_streams[topic][0], len(sent))
            assert all(batch.schema == SCHEMA for batch in batches)
            found = [message for batch in batches for message in as_messages(batch)]
            assert by_partition(found) == wanted[topic], topic


@pytest.mark.parametrize("version", [version for version in VERSIONS if version not in WITHOUT_TIMESTAMPS])
@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_timestamps_of_the_brokers_clock(cluster_of: ClusterOf, unique: str, version: str, codec: str) -> None:
    """In a compressed batch only the wrapper has it: the records inside keep the producer's."""
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 1, {"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    sent = [Sent(0, None, b"%d" % number, timestamp=1_600_000_000_000 + number) for number in range(20)]
    await asyncio.to_thread(produce, cluster.bootstrap, version, unique, sent, codec)
    after = int(time.time() * 1000)
    async with member(cluster, unique, {unique: 1}) as (consumer, streams):
        found = await take(streams[unique][0], len(sent))
        begins = [await consumer.offsets_for_times({TopicPartition(unique, 0): at}) for at in (before, after + 1)]
        assert [list(each.values()) for each in begins] == [[0], [None]]
    assert [message.value for message in found] == [each.value for each in sent]
    assert {message.timestamp_type for message in found} == {1}
    for message in found:
        assert message.timestamp is not None
        assert before <= message.timestamp <= after


@pytest.mark.parametrize("version", ["0.8.2.2", "3.9.1"])
@pytest.mark.parametrize("codec", ["none", "snappy"])
async def test_values_larger_than_a_fetch(cluster_of: ClusterOf, unique: str, version: str, codec: str) -> None:
    """Brokers before 0.10.1 truncate them, so that they have to be fetched again with more room."""
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 1)
    noise = random.Random(5)
    sent = [Sent(0, None, noise.randbytes(size)) for size in (10, 200_000, 20, 900_000, 30)]
    await asyncio.to_thread(produce, cluster.bootstrap, version, unique, sent, codec, batch_num_messages=1)
    async with member(cluster, unique, {unique: 1}, fetch={"max_bytes": "4KiB"}) as (_, streams):
        found = await take(streams[unique][0], len(sent))
    assert [message.value for message in found] == [each.value for each in sent]
    assert [message.offset for message in found] == list(range(len(sent)))
