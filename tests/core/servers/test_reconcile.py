"""Differences that no event shows are found by reconciliation, with real servers.

`test_group_looks` has all cases and the controls. Each test breaks something without an event.
"""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from kzconsumer.group.rebalancer import RebalanceTrigger
from kzconsumer.settings.settings import Settings
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.members import owners, present_member, reader, settings
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session, until

PARTITIONS = 4
OFTEN, SELDOM = "300ms", "1h"


def looking(cluster: Cluster, group: str, interval: str, **more: object) -> Settings:
    return settings(cluster.connect, group, group={"id": group, "reconcile_interval": interval, **more})


async def send(cluster: Cluster, topic: str, number: int) -> None:
    records = [Sent(n % PARTITIONS, None, b"%d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def test_a_claim_whose_owner_node_is_gone_unnoticed_is_claimed_again(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    await send(cluster, unique, 400)
    async with reader(looking(cluster, unique, OFTEN), {unique: 1}) as member, session(cluster.connect) as operator:
        # Everything is committed: a commit would notice.
        await until(lambda: [at.committed for at in member.consumer.positions()] == [100] * PARTITIONS)
        path = f"/consumers/{unique}/owners/{unique}/0"
        present_member(member.consumer).parts.watches.unguard(path)
        await operator.delete(path, -1)
        await until(lambda: len(member.owned) < PARTITIONS, 10)
        await until(lambda: len(member.owned) == PARTITIONS, 10)
        assert 0 in await owners(operator, unique, unique, PARTITIONS)


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


@pytest.mark.parametrize("ownership", ["keep", "eager"])
async def test_eager_releases_everything_and_keep_only_what_moves(
    cluster: Cluster, unique: str, ownership: str
) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    await send(cluster, unique, 400)
    configured = looking(cluster, unique, SELDOM, ownership=ownership)
    async with session(cluster.connect) as zookeeper, reader(configured, {unique: 1}) as first:
        await until(lambda: len(first.messages) == 400)
        made = await nodes(zookeeper, unique)
        async with reader(configured, {unique: 1}) as second:
            await until(lambda: len(first.owned) == len(second.owned) == PARTITIONS // 2)
            now = await nodes(zookeeper, unique)
            kept = {at.partition for at in first.owned if now[at.partition] == made[at.partition]}
            assert kept == ({at.partition for at in first.owned} if ownership == "keep" else set())
            await send(cluster, unique, 400)
            await until(lambda: len(first.messages) + len(second.messages) == 800)
        await until(lambda: len(first.owned) == PARTITIONS)
    seen = {(m.partition, m.offset) for m in first.messages + second.messages}
    assert len(seen) == len(first.messages) + len(second.messages) == 800


async def nodes(zookeeper: Any, group: str) -> dict[int, int]:
    """Partition -> the transaction that created its owner node."""
    stats = {n: await zookeeper.exists(f"/consumers/{group}/owners/{group}/{n}") for n in range(PARTITIONS)}
    return {n: stat.czxid for n, stat in stats.items() if stat is not None}
