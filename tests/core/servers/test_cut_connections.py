"""Connections to brokers and to ZooKeeper cut at random moments: every record once, every partition one owner."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import count
from typing import cast

import anyio

from kzconsumer.consumer import ConsumerConnector
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import add_partitions, create_topic
from tests.support.extent import extent
from tests.support.members import owners, reader, sessions_of, settings, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.proxy import FaultProxy
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until


async def send(cluster: Cluster, topic: str, number: int, partitions: int) -> None:
    records = [Sent(n % partitions, b"%d" % n, b"v" * 200) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def cut(proxy: FaultProxy, chance: random.Random) -> None:
    while True:
        await anyio.sleep(chance.uniform(0.02, 0.25))
        chance.choice([proxy.reset, proxy.finish])()


async def abort(consumer: ConsumerConnector, chance: random.Random, cuts: Counter[str]) -> None:
    """Abort the member's connections to the broker while they are in use: at every fifth fetch, half of the others.

    It is decided once for each request: an answer that takes long on a busy machine is lost no more often.
    """
    decided: dict[object, int | None] = {}
    fetches = count(1)
    while True:
        await anyio.sleep(0.0005)
        for (_, purpose), connection in list(sessions_of(consumer).brokers.connections.items()):
            transport = connection.transport
            if connection.closed or not transport.in_flight:
                continue
            last = transport.in_flight[-1].correlation
            if decided.get(transport) == last:
                continue
            decided[transport] = last
            if chance.random() < 0.5 if purpose == "control" else next(fetches) % 5 == 0:
                cast(asyncio.Transport, transport._transport).abort()
                cuts[purpose.split()[0]] += 1  # a fetcher's has a number


async def test_cut_broker_connections_neither_lose_nor_duplicate_records(cluster: Cluster, unique: str) -> None:
    """No member leaves the group, so nothing may be redelivered; what was fetched but not delivered is fetched again.

    Newly assigned partitions have their positions resolved between one fetch and the delivery of the last.
    """
    total, partitions, late = extent(24_000, 120_000), 6, f"{unique}-late"
    cuts: Counter[str] = Counter()
    await create_topic(cluster.connect, unique, partitions)
    await create_topic(cluster.connect, late, 1)
    await send(cluster, unique, total, partitions)
    # Small fetches: many responses to lose.
    configured = settings(cluster.connect, unique, fetch={"max_bytes": 20_000, "queue_bytes": 200_000})
    async with reader(configured, {unique: 2, late: 1}) as member, anyio.create_task_group() as tasks:
        tasks.start_soon(abort, member.consumer, random.Random(7), cuts)
        for number in range(2, 8):
            await add_partitions(cluster.connect, late, number)
        await until(lambda: len(member.messages) >= total, 60)
        tasks.cancel_scope.cancel()
    assert cuts["fetch"] > 3
    assert cuts["control"] > 3
    seen = Counter((message.partition, message.offset) for message in member.messages)
    assert len(seen) == total
    assert set(seen.values()) == {1}
    assert await stored_offsets(cluster.connect, unique, unique, partitions) == [total // partitions] * partitions


async def test_cut_zookeeper_connections_while_members_join_and_leave(
    servers: Servers, cluster: Cluster, unique: str
) -> None:
    """The sessions survive; whatever state lost replies left, every partition has one owner that reads it."""
    partitions, chroot = 48, cluster.connect.partition("/")[2]
    await create_topic(cluster.connect, unique, partitions)
    upstream = servers.zookeeper
    async with FaultProxy(upstream.host, upstream.port) as proxy, session(cluster.connect) as watcher:
        configured = settings(f"{proxy.connect}/{chroot}", unique)
        async with reader(configured, {unique: 2}) as first:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cut, proxy, random.Random(11))
                for streams in (1, 2):
                    async with reader(configured, {unique: streams}) as guest:
                        with anyio.move_on_after(3):
                            await until(lambda guest=guest: len(guest.owned) > 10)  # type: ignore[misc]
                tasks.cancel_scope.cancel()
            async with reader(configured, {unique: 2}) as second:
                await until(lambda: len(first.owned) == len(second.owned) == partitions // 2, 15)
                found = await owners(watcher, unique, unique, partitions)
                assert len(found) == partitions
                assert {text.rpartition("-")[0] for text in found.values()} == {
                    first.consumer.consumer,
                    second.consumer.consumer,
                }
                await send(cluster, unique, 4_800, partitions)
                await until(lambda: len(first.messages) + len(second.messages) >= 4_800, 15)
    seen = Counter((m.partition, m.offset) for m in [*first.messages, *second.messages])
    assert len(seen) == 4_800
    assert set(seen.values()) == {1}
