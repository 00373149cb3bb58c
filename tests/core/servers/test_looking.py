"""A member whose consumer fetches for itself, with real brokers: it learns where logs end, without their records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from kzconsumer.consumer import ConsumerConnector
from kzconsumer.fetcher.fetch_rules import LOOK_BYTES
from kzconsumer.sessions import Sessions
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.members import settings
from tests.support.producing import Sent, produce

LIMIT = 60.0
ROUNDS = 3
VALUE = bytes(200_000)


@pytest.mark.parametrize("version", ["0.8.2.2", "3.9.1"])
async def test_ranges_reach_the_end_of_the_log_and_at_most_one_batch_comes_with_each(
    cluster_of: Callable[[str], Cluster], version: str, unique: str
) -> None:
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 2)
    configured = settings(cluster.connect, unique, batch={"max_bytes": 10_000_000})
    sessions, most = Sessions(configured, wants="ranges"), 10_000_000 / 10 / len(VALUE)
    found: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    async with sessions.running():
        await ConsumerConnector(sessions).create_message_streams({unique: 1})
        (cursor,) = sessions.cursors.values()
        for number in range(ROUNDS):
            if number == ROUNDS - 1:  # a reload; what was asked before it has come
                batch, most = msgspec.structs.replace(configured.batch, max_records=20), 2
                sessions.reconfigure(msgspec.structs.replace(configured, batch=batch))
            sent = [Sent(n % 2, None, VALUE) for n in range(100)]
            await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent, batch_size=1)
            async with asyncio.timeout(LIMIT):
                while any(not ranges or ranges[-1][1] < 50 * (number + 1) for ranges in found.values()):
                    chunk = await cursor.queue.get()
                    assert not chunk.records.fetched
                    assert len(chunk.records) == chunk.until - chunk.first <= most
                    found[chunk.progress.topic_partition.partition].append((chunk.first, chunk.until))
        (counted,) = sessions.counters.fetches.values()
    for ranges in found.values():
        assert [first for first, _ in ranges] == [0, *(until for _, until in ranges[:-1])]
    # The head of a message of each partition, or one whole batch.
    most = 2 * LOOK_BYTES if version == "0.8.2.2" else len(VALUE) + 200
    assert counted.bytes <= most * counted.requests.count
