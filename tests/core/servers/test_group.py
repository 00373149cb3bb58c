"""One group, several members, real servers: who owns what; no record is lost or delivered by two members at once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import kzconsumer
from kzconsumer.group.rebalancer import RebalanceTrigger
from kzconsumer.registry.group_records import decode_registration, encode_registration
from kzconsumer.zookeeper.operations import Node
from kzconsumer.zookeeper.watches import Watches
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import add_partitions, create_topic
from tests.support.members import daemon, owners, reader, settings, stored_offsets
from tests.support.original import tools_verdict
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until

PARTITIONS = 8


async def send(cluster: Cluster, topic: str, number: int, partitions: int = PARTITIONS) -> None:
    records = [Sent(n % partitions, b"%d" % n, b"value %d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def test_a_second_member_takes_half_and_releases_it(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    await send(cluster, unique, 4_000)
    configured = settings(cluster.connect, unique)
    async with reader(configured, {unique: 1}) as first:
        assert len(first.owned) == PARTITIONS
        await until(lambda: len(first.messages) >= 4_000)
        async with reader(configured, {unique: 1}) as second:
            await until(lambda: len(first.owned) == len(second.owned) == PARTITIONS // 2)
            # The range rule: the lower consumer id has the lower partitions.
            low, high = sorted((first, second), key=lambda member: member.consumer.consumer)
            assert {at.partition for at in low.owned} == {0, 1, 2, 3}
            assert {at.partition for at in high.owned} == {4, 5, 6, 7}
            await send(cluster, unique, 4_000)
            await until(lambda: len(first.messages) + len(second.messages) >= 8_000)
        await until(lambda: len(first.owned) == PARTITIONS)
        await send(cluster, unique, 800)
        await until(lambda: len(first.messages) + len(second.messages) >= 8_800)
    seen = Counter((m.partition, m.offset) for m in first.messages + second.messages)
    assert set(seen.values()) == {1}
    assert await stored_offsets(cluster.connect, unique, unique, PARTITIONS) == [1_100] * PARTITIONS


async def test_members_that_join_and_leave_neither_lose_nor_duplicate_records(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    configured = settings(cluster.connect, unique)
    total = 40_000
    seen: Counter[tuple[int, int]] = Counter()
    async with anyio.create_task_group() as tasks, reader(configured, {unique: 2}) as steady:
        tasks.start_soon(send, cluster, unique, total)
        guests = []
        for streams in (1, 3, 2):
            async with reader(configured, {unique: streams}) as guest:
                guests.append(guest)
                await until(lambda guest=guest: len(guest.owned) > 0)  # type: ignore[misc]
                await anyio.sleep(0.3)
        await until(lambda: sum(len(m.messages) for m in (steady, *guests)) >= total, 30)
    for member in (steady, *guests):
        seen.update((m.partition, m.offset) for m in member.messages)
    assert len(seen) == total
    assert set(seen.values()) == {1}


async def test_a_killed_member_is_taken_over_when_its_session_expires(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    await send(cluster, unique, 1_600)
    async with session(cluster.connect) as zookeeper:
        with daemon(tmp_path / "victim", cluster.connect, unique, {unique: 1}) as victim:
            await until(lambda: len(victim.records()) == 1_600, 30)
            async with reader(settings(cluster.connect, unique), {unique: 1}) as survivor:
                await until(lambda: len(survivor.owned) == PARTITIONS // 2)
                victim.signal(signal.SIGKILL)
                killed = time.monotonic()
                await until(lambda: len(survivor.owned) == PARTITIONS, 20)
                # Session timeout, half a second of tickTime, and how long a busy machine may pause.
                assert 4.0 < time.monotonic() - killed < 6.0 + 0.5 + 5.0
                found = await owners(zookeeper, unique, unique, PARTITIONS)
                assert set(found.values()) == {f"{survivor.consumer.consumer}-0"}


async def test_a_member_waits_quietly_for_a_cluster_without_brokers(
    zookeeper: ZooKeeperServer, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0
    wait = RebalanceTrigger.wait

    async def counted(trigger: RebalanceTrigger, timeout: float | None) -> list[str]:
        nonlocal waits
        waits += 1
        return await wait(trigger, timeout)

    monkeypatch.setattr(RebalanceTrigger, "wait", counted)
    async with reader(settings(f"{zookeeper.connect}/{unique}", unique), {unique: 1}):
        await anyio.sleep(0.5)
    assert 1 <= waits < 10


async def test_added_partitions_and_a_topic_created_later_are_picked_up(cluster: Cluster, unique: str) -> None:
    later = f"{unique}-later"
    await create_topic(cluster.connect, unique, 2)
    async with reader(settings(cluster.connect, unique), {unique: 1, later: 1}) as member:
        assert len(member.owned) == 2
        await add_partitions(cluster.connect, unique, 4)
        await until(lambda: len(member.owned) == 4)
        await create_topic(cluster.connect, later, 3)
        await until(lambda: len(member.owned) == 7)
        await send(cluster, unique, 400, 4)
        await send(cluster, later, 300, 3)
        await until(lambda: len(member.messages) == 700)


async def test_more_streams_than_partitions_leaves_streams_idle_and_a_move_keeps_the_owner(
    cluster: Cluster, unique: str
) -> None:
    """Two members of two streams over three partitions: the sorted threads get one each, the last one none."""
    await create_topic(cluster.connect, unique, 3)
    await send(cluster, unique, 300, 3)
    configured = settings(cluster.connect, unique)
    async with reader(configured, {unique: 2}) as first, session(cluster.connect) as zookeeper:
        await until(lambda: len(first.messages) == 300)
        made = {n: await zookeeper.exists(f"/consumers/{unique}/owners/{unique}/{n}") for n in range(3)}
        async with reader(configured, {unique: 2}) as second:
            await until(lambda: len(first.owned) + len(second.owned) == 3 and len(second.owned) in (1, 2))
            await send(cluster, unique, 300, 3)
            await until(lambda: len(first.messages) + len(second.messages) == 600)
            threads = await owners(zookeeper, unique, unique, 3)
            assert len(set(threads.values())) == 3
            for n, text in threads.items():
                stat = await zookeeper.exists(f"/consumers/{unique}/owners/{unique}/{n}")
                before = made[n]
                assert stat is not None
                assert before is not None
                if text.startswith(first.consumer.consumer):
                    # Kept, perhaps by another thread of the same member: the node was never deleted.
                    assert stat.czxid == before.czxid


async def test_the_originals_own_tool_calls_the_group_balanced(cluster: Cluster, servers: Servers, unique: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    configured = settings(cluster.connect, unique)

    async with reader(configured, {unique: 2}) as first, reader(configured, {unique: 1}) as second:
        # The first may have owned all of them.
        await until(lambda: second.owned and len(first.owned) + len(second.owned) == PARTITIONS)
        assert "Rebalance operation successful" in await tools_verdict(servers, cluster, unique)
        # The tool can fail: a member that owns none of its subscribed partitions.
        async with session(cluster.connect) as zookeeper:
            absent = f"{unique}-absent"
            await zookeeper.ensure(f"/consumers/{absent}/ids")
            registration = encode_registration({unique: 1}, 0, "0")
            await zookeeper.create(f"/consumers/{absent}/ids/{absent}_a", registration, ephemeral=True)
            assert "Rebalance operation failed" in await tools_verdict(servers, cluster, absent)


async def test_a_white_list_matches_topics_including_those_created_later(cluster: Cluster, unique: str) -> None:
    first, later, other = f"{unique}-a", f"{unique}-b", f"other-{unique}"
    await create_topic(cluster.connect, first, 2)
    await create_topic(cluster.connect, other, 2)
    await send(cluster, first, 100, 2)
    await send(cluster, other, 100, 2)
    configured = settings(cluster.connect, unique)
    seen: list[kzconsumer.Message] = []

    async def read(stream: kzconsumer.KafkaStream) -> None:
        async for message in stream:
            seen.append(message)  # noqa: PERF401  (an endless stream: nothing would be seen before its end)

    async with kzconsumer.connect(configured) as consumer, anyio.create_task_group() as tasks:
        for stream in await consumer.create_message_streams_by_filter(kzconsumer.Include(f"{unique}.*"), 2):
            tasks.start_soon(read, stream)
        await until(lambda: len(seen) == 100)
        await create_topic(cluster.connect, later, 4)
        await send(cluster, later, 100, 4)
        await until(lambda: len(seen) == 200)
        async with session(cluster.connect) as zookeeper:
            (member,) = await zookeeper.children(f"/consumers/{unique}/ids")
            registration = decode_registration((await zookeeper.get(f"/consumers/{unique}/ids/{member}")).data)
        assert (registration.pattern, registration.subscription) == ("white_list", {f"{unique}.*": 2})
        # Two streams share both topics; another member with a static subscription shares one of them.
        async with reader(configured, {later: 1}) as guest:
            await until(lambda: len(guest.owned) == 1 and len(consumer.positions()) == 5)
        await until(lambda: len(consumer.positions()) == 6)
        tasks.cancel_scope.cancel()
    assert {message.topic for message in seen} == {first, later}
    assert len({(m.topic, m.partition, m.offset) for m in seen}) == len(seen)


async def test_an_owner_that_leaves_before_it_is_watched_does_not_block_its_successor(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves between the refused claim and the watch: the watch finds no node, so the claim is repeated."""
    await create_topic(cluster.connect, unique, 2)
    path = f"/consumers/{unique}/owners/{unique}/1"
    async with session(cluster.connect) as other:
        await other.ensure(path.rpartition("/")[0])
        await other.create(path, b"somebody-0", ephemeral=True)
        listen = Watches.blocking
        gone: list[str] = []

        async def late(watches: Watches, at: str, reason: str) -> Node | None:
            if at == path and not gone:
                gone.append(at)
                await other.delete(path, -1)
            return await listen(watches, at, reason)

        monkeypatch.setattr(Watches, "blocking", late)
        async with reader(settings(cluster.connect, unique), {unique: 1}) as member:
            await until(lambda: len(member.owned) == 2, 5)
            assert gone
