"""Experiments made with two original members, repeated with ours: where the behaviour is equal, and where it differs.

Those of the specification (A15) that no other test of ours covers.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import pytest

import kzconsumer
from kzconsumer.registry.group_records import decode_registration
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.members import owners, reader, settings, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session, until


async def send(cluster: Cluster, topic: str, number: int, partitions: int) -> None:
    records = [Sent(n % partitions, None, b"%d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


def lines(capfd: pytest.CaptureFixture[str], text: str) -> list[str]:
    return [line for line in "".join(capfd.readouterr()).splitlines() if text in line]


async def test_rewriting_a_topic_node_with_its_own_content_causes_no_rebalance(
    cluster: Cluster, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Originals release everything and claim it again; ours check, and continue."""
    await create_topic(cluster.connect, unique, 4)
    configured = settings(cluster.connect, unique)
    async with (
        session(cluster.connect) as other,
        reader(configured, {unique: 1}) as first,
        reader(configured, {unique: 1}) as second,
    ):
        await until(lambda: len(first.owned) == len(second.owned) == 2)
        paths = [f"/consumers/{unique}/owners/{unique}/{number}" for number in range(4)]
        before = [(await other.get(path)).stat.czxid for path in paths]
        lines(capfd, "")
        node = await other.get(f"/brokers/topics/{unique}")
        await other.set(f"/brokers/topics/{unique}", node.data, node.stat.version)
        await anyio.sleep(1.0)
        await send(cluster, unique, 400, 4)
        await until(lambda: len(first.messages) + len(second.messages) == 400)
        assert [(await other.get(path)).stat.czxid for path in paths] == before
        assert lines(capfd, "rebalanced ") == []


async def test_three_streams_and_two_commit_everything(cluster: Cluster, unique: str) -> None:
    """100, 50 and 50 records by the range rule; empty partitions have their offset stored too; none is left."""
    full, empty = f"{unique}-full", f"{unique}-empty"
    await create_topic(cluster.connect, full, 4)
    await create_topic(cluster.connect, empty, 2)
    await send(cluster, full, 200, 4)
    configured = settings(cluster.connect, unique, offsets={"commit_interval": "1h"})
    read: Counter[int] = Counter()

    async with kzconsumer.connect(configured) as consumer, anyio.create_task_group() as tasks:
        streams = await consumer.create_message_streams({full: 3, empty: 2})

        async def count(number: int, stream: kzconsumer.KafkaStream) -> None:
            async for _ in stream:
                read[number] += 1

        for number, stream in enumerate(streams[full]):
            tasks.start_soon(count, number, stream)
        await until(lambda: read.total() == 200)
        assert read == {0: 100, 1: 50, 2: 50}
        async with session(cluster.connect) as other:
            me = consumer.consumer
            assert await owners(other, unique, full, 4) == {0: f"{me}-0", 1: f"{me}-0", 2: f"{me}-1", 3: f"{me}-2"}
            assert await owners(other, unique, empty, 2) == {0: f"{me}-0", 1: f"{me}-1"}
        await consumer.leave()  # the iterators end when it closes
    assert await stored_offsets(cluster.connect, unique, full, 4) == [50] * 4
    assert await stored_offsets(cluster.connect, unique, empty, 2) == [0, 0]
    async with session(cluster.connect) as other:
        assert await other.children(f"/consumers/{unique}/ids") == []
        assert await other.children(f"/consumers/{unique}/owners/{full}") == []
        assert await other.children(f"/consumers/{unique}/owners/{empty}") == []


async def test_a_white_list_with_a_backslash(cluster: Cluster, unique: str) -> None:
    dotted = f"{unique}.dotted"
    await create_topic(cluster.connect, dotted, 2)
    await create_topic(cluster.connect, f"{unique}-dotted", 2)
    configured = settings(cluster.connect, unique)
    white_list = kzconsumer.Include(rf"{unique}\.dot.*")
    async with kzconsumer.connect(configured) as consumer, session(cluster.connect) as other:
        await consumer.create_message_streams_by_filter(white_list)
        assert {at.topic for at in consumer.positions()} == {dotted}
        node = await other.get(f"/consumers/{unique}/ids/{consumer.consumer}")
        assert decode_registration(node.data).subscription == {white_list.regex: 1}
        async with reader(configured, {dotted: 1}) as second:  # every reader expands the list in the same way
            await until(lambda: len(second.owned) == len(consumer.positions()) == 1)


async def test_a_registration_is_complete_from_its_creation(cluster: Cluster, unique: str) -> None:
    """A reader woken by the member list never reads a partial registration: its first version is complete."""
    await create_topic(cluster.connect, unique, 1)
    async with session(cluster.connect) as other:
        ids = f"/consumers/{unique}/ids"
        await other.ensure(ids)
        for _ in range(3):
            _, changed = await other.watch_children(ids)
            async with reader(settings(cluster.connect, unique), {unique: 2}) as member:
                await changed.wait()
                node = await other.get(f"{ids}/{member.consumer.consumer}")
                assert (node.stat.version, node.stat.czxid) == (0, node.stat.mzxid)
                assert decode_registration(node.data).subscription == {unique: 2}


@pytest.mark.parametrize("by_list", [False, True], ids=["static", "white list"])
async def test_a_stream_without_a_partition_is_reported_once(
    cluster: Cluster, unique: str, capfd: pytest.CaptureFixture[str], by_list: bool
) -> None:
    """However often the assignment is computed; also if a whole member gets nothing."""
    await create_topic(cluster.connect, unique, 2)
    configured = settings(cluster.connect, unique)
    async with kzconsumer.connect(configured) as consumer:
        if by_list:
            await consumer.create_message_streams_by_filter(kzconsumer.Include(unique), 3)
        else:
            await consumer.create_message_streams({unique: 3})
        assert len(consumer.positions()) == 2
        for _ in range(2):
            async with reader(configured, {unique: 1}):
                pass
        await until(lambda: len(consumer.positions()) == 2)
    output = lines(capfd, "stream has no partition")
    assert sum("stream 2" in line for line in output) == 1, output


async def test_groups_are_independent(cluster: Cluster, unique: str) -> None:
    """Two members share in one group; a third has everything in another, and keeps it when the others leave."""
    await create_topic(cluster.connect, unique, 4)
    shared, alone = settings(cluster.connect, f"{unique}-1"), settings(cluster.connect, f"{unique}-2")
    async with reader(alone, {unique: 1}) as other:
        async with reader(shared, {unique: 1}) as first, reader(shared, {unique: 1}) as second:
            await until(lambda: len(first.owned) == len(second.owned) == 2)
            await send(cluster, unique, 400, 4)
            await until(lambda: len(first.messages) + len(second.messages) == len(other.messages) == 400)
            assert first.messages
            assert second.messages
            assert len(other.owned) == 4
        await send(cluster, unique, 400, 4)
        await until(lambda: len(other.messages) == 800)
    assert len({(m.partition, m.offset) for m in other.messages}) == 800
    assert await stored_offsets(cluster.connect, f"{unique}-1", unique, 4) == [100] * 4
    assert await stored_offsets(cluster.connect, f"{unique}-2", unique, 4) == [200] * 4
