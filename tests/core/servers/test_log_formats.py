"""Logs that brokers have modified: a format that changed within the log, and compaction."""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from kzconsumer import Message
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic, topic_config
from tests.support.consuming import member, take
from tests.support.extent import extent, only_nightly
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.transactions import ABORT, COMMIT, History
from tests.support.zookeeper_sessions import session

ClusterOf = Callable[[str], Cluster]

# What `message.format.version` is set to, one after the other, and the magic it means. 3.9 writes magic 2 only.
FORMATS = {
    "0.10.2.2": {"0.9.0": 0, "0.10.2": 1},
    "1.1.1": {"0.9.0": 0, "0.10.2": 1, "1.1": 2, "0.10.1": 1},
    "2.8.2": {"0.9.0": 0, "0.10.2": 1, "2.8": 2, "0.10.1": 1},
}
CODECS = ("none", "gzip", "snappy", "lz4")
LIMIT = 60.0
NOW = int(time.time() * 1000)


def folder(cluster: Cluster, topic: str) -> Path:
    return cluster.brokers[1].folder / "data" / f"{topic}-0"


def stored_magics(cluster: Cluster, topic: str) -> list[tuple[int, int]]:
    """(last offset, magic) of the batches and messages of the log's only segment."""
    log = (folder(cluster, topic) / f"{0:020}.log").read_bytes()
    found = []
    position = 0
    while position < len(log):
        base, size = struct.unpack_from(">qi", log, position)
        magic = log[position + 16]
        last = base + (int.from_bytes(log[position + 23 : position + 27], "big") if magic == 2 else 0)
        found.append((last, magic))
        position += 12 + size
    return found


async def set_format(cluster: Cluster, topic: str, version: str) -> None:
    """As Kafka's own tools do (`kafka.admin.AdminUtils.changeTopicConfig`): the setting, and a note that it changed."""
    note = msgspec.json.encode({"version": 2, "entity_path": f"topics/{topic}"})
    async with session(cluster.connect) as zookeeper:
        await zookeeper.set(f"/config/topics/{topic}", topic_config({"message.format.version": version}), -1)
        # Kafka lets ZooKeeper number them; it matters only that the numbers grow.
        await zookeeper.create(f"/config/changes/config_change_{time.time_ns()}", note)


@pytest.mark.parametrize("version", extent(["1.1.1"], [*FORMATS]))
async def test_a_format_that_changed_within_the_log(cluster_of: ClusterOf, unique: str, version: str) -> None:
    cluster = cluster_of(version)
    topics = {f"{unique}-{codec}": codec for codec in CODECS}
    sent: dict[str, list[Sent]] = {topic: [] for topic in topics}
    for topic in topics:
        await create_topic(cluster.connect, topic, 1)
    for number, (format_version, magic) in enumerate(FORMATS[version].items()):
        for topic, codec in topics.items():
            await set_format(cluster, topic, format_version)
            with anyio.fail_after(LIMIT):
                while True:  # until the broker has noticed it: records sent before that count, too
                    records = [
                        Sent(0, b"key" if n % 3 else None, b"%s %d %d " % (codec.encode(), number, n) * 9, (), NOW + n)
                        for n in range(5)
                    ]
                    await asyncio.to_thread(produce, cluster.bootstrap, version, topic, records, codec)
                    sent[topic] += records
                    if stored_magics(cluster, topic)[-1][1] == magic:
                        break
    for size, isolation in (("1MiB", "read_uncommitted"), ("100B", "read_committed")):
        fetch = {"max_bytes": size, "isolation": isolation}
        async with member(cluster, f"{unique}-{size}", dict.fromkeys(topics, 1), fetch=fetch) as (_, streams):
            for topic in topics:
                magics = stored_magics(cluster, topic)
                runs = [magic for magic, _ in itertools.groupby(magic for _, magic in magics)]
                assert runs[-len(FORMATS[version]) :] == list(FORMATS[version].values())
                wanted = []
                for offset, each in enumerate(sent[topic]):
                    timed = next(magic for last, magic in magics if last >= offset) > 0
                    wanted.append(
                        Message(
                            topic,
                            0,
                            offset,
                            each.key,
                            each.value,
                            each.timestamp if timed else None,
                            (),
                            timestamp_type=0 if timed else -1,
                        )
                    )
                assert await take(streams[topic][0], len(wanted)) == wanted, (topic, size)


def cleaned_until(cluster: Cluster, topic: str) -> int:
    """The offset below which the broker has compacted the log."""
    checkpoint = cluster.brokers[1].folder / "data" / "cleaner-offset-checkpoint"
    lines = [line.split() for line in checkpoint.read_text().splitlines()] if checkpoint.exists() else []
    return next((int(line[2]) for line in lines if line[:2] == [topic, "0"]), 0)


def active_segment(cluster: Cluster, topic: str) -> int:
    """Its first offset; the cleaner does not touch it."""
    return max(int(path.stem) for path in folder(cluster, topic).glob("*.log"))


def compacted(records: list[tuple[Sent, int]], until: int) -> list[tuple[Sent, int]]:
    """Below `until` only the last record of each key."""
    latest = {each.key: offset for each, offset in records if offset < until}
    return [(each, offset) for each, offset in records if offset >= until or latest[each.key] == offset]


@only_nightly  # the newest version: test_consume_positions.py; older messages: tests/core/plain/test_records_decode.py
@pytest.mark.parametrize("version", ["0.8.2.2", "0.10.2.2", "1.1.1", "2.8.2", "3.9.1"])
async def test_compacted_topics(servers: Servers, unique: str, version: str) -> None:
    eager = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": 50, "log.cleaner.threads": 1}
    cluster = servers.cluster(f"compacting-{version}", version, config=eager)
    settings = {"cleanup.policy": "compact", "segment.bytes": 12_000, "min.cleanable.dirty.ratio": 0.01}
    timed = version != "0.8.2.2"
    written: dict[str, list[tuple[Sent, int]]] = {}
    for codec in ("none", "lz4"):
        topic = f"{unique}-{codec}"
        await create_topic(cluster.connect, topic, 1, settings)
        sent = [
            Sent(0, b"key-%d" % (n * n % 37), None if n % 41 == 0 else b"%d " % n * 30, (), NOW + n if timed else None)
            for n in range(600)
        ]
        offsets = await asyncio.to_thread(
            produce, cluster.bootstrap, version, topic, sent, codec, batch_num_messages=20
        )
        written[topic] = list(zip(sent, offsets, strict=True))
    if version not in ("0.8.2.2", "0.10.2.2"):
        topic = f"{unique}-transactions"
        await create_topic(cluster.connect, topic, 1, settings)
        history = History(cluster.bootstrap, topic)
        for n in range(12):
            records = [Sent(0, b"key-%d" % (n * k % 11), b"%d " % n * 30, (), NOW + n) for k in range(20)]
            await asyncio.to_thread(
                history.write, [("a", records), ("b", records), ("a", ABORT if n % 3 else COMMIT), ("b", COMMIT)]
            )
        written[topic] = [(each.sent, each.offset) for each in history.written if each.committed]
    with anyio.fail_after(LIMIT):
        while any(cleaned_until(cluster, topic) < active_segment(cluster, topic) for topic in written):
            await asyncio.sleep(0.1)
    for size in ("1MiB", "100B"):
        async with member(
            cluster,
            f"{unique}-{size}",
            dict.fromkeys(written, 1),
            fetch={"max_bytes": size, "isolation": "read_committed"},
        ) as (_, streams):
            for topic, in_log in written.items():
                left = compacted(in_log, cleaned_until(cluster, topic))
                assert len(left) < len(in_log) * 2 // 3, topic
                wanted = [
                    Message(
                        topic, 0, offset, each.key, each.value, each.timestamp, (), timestamp_type=0 if timed else -1
                    )
                    for each, offset in left
                ]
                assert await take(streams[topic][0], len(wanted)) == wanted, (topic, size)
    cluster.kill()
