"""What no event tells is found by looking: nodes and claims that do not agree, partitions without owner.

Each test breaks something behind the member's back. Where the look is what repairs it, a member that hardly ever looks
is the control.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from kzconsumer.group.trigger import RebalanceTrigger
from kzconsumer.model import TopicPartition
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.session import Create, Delete
from kzconsumer_sandbox.servers.cluster import Cluster
from kzconsumer_sandbox.servers.topics import create_topic
from kzconsumer_sandbox.servers.zookeeper_server import ZooKeeperServer
from tests.support.members import owners, present_member, reader, settings
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session, until

PARTITIONS = 4
OFTEN, SELDOM = "300ms", "1h"
# Longer than a difference has to last, and than a look takes.
LONG_ENOUGH = 4.0


def looking(cluster: Cluster, group: str, interval: str, **more: object) -> Settings:
    return settings(cluster.connect, group, group={"id": group, "reconcile_interval": interval, **more})


async def send(cluster: Cluster, topic: str, number: int) -> None:
    records = [Sent(n % PARTITIONS, None, b"%d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


@pytest.mark.parametrize("interval", [OFTEN, SELDOM])
async def test_an_owner_node_of_ours_that_no_claim_stands_for_is_given_up(
    cluster: Cluster, unique: str, interval: str
) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    configured = looking(cluster, unique, interval)
    async with reader(configured, {unique: 1}) as first, reader(configured, {unique: 1}) as second:
        await until(lambda: len(first.owned) == len(second.owned) == PARTITIONS // 2)
        taken = min(second.owned)
        path = f"/consumers/{unique}/owners/{unique}/{taken.partition}"
        stray = f"{first.consumer.consumer}-0".encode()
        await present_member(first.consumer)._session.multi([Delete(path, 1), Create(path, stray, ephemeral=True)])
        await until(lambda: taken not in second.owned)
        if interval == SELDOM:
            await anyio.sleep(LONG_ENOUGH)
            assert taken not in second.owned
        else:
            await until(lambda: taken in second.owned, 10)


@pytest.mark.parametrize("interval", [OFTEN, SELDOM])
async def test_a_claim_whose_owner_node_is_gone_unnoticed_is_claimed_anew(
    cluster: Cluster, unique: str, interval: str
) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    await send(cluster, unique, 400)
    async with reader(looking(cluster, unique, interval), {unique: 1}) as member, session(cluster.connect) as operator:
        # Everything is committed: a commit would notice.
        await until(lambda: [at.committed for at in member.consumer.positions()] == [100] * PARTITIONS)
        path = f"/consumers/{unique}/owners/{unique}/0"
        present_member(member.consumer)._rebalancer._watches.unguard(path)
        await operator.delete(path, -1)
        if interval == SELDOM:
            await anyio.sleep(LONG_ENOUGH)
            assert 0 not in await owners(operator, unique, unique, PARTITIONS)
        else:
            await until(lambda: len(member.owned) < PARTITIONS, 10)
            await until(lambda: len(member.owned) == PARTITIONS, 10)
            assert 0 in await owners(operator, unique, unique, PARTITIONS)


@pytest.mark.parametrize("interval", [OFTEN, SELDOM])
async def test_a_claim_that_nobody_fetches_is_fetched_again(cluster: Cluster, unique: str, interval: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    await send(cluster, unique, 400)
    async with reader(looking(cluster, unique, interval), {unique: 1}) as member:
        await until(lambda: len(member.messages) == 400)
        fetchers = present_member(member.consumer)._fetchers
        ((fetcher, _),) = fetchers._fetchers.values()
        fetcher._forget(list(fetcher._states.values()))
        await anyio.sleep(0.5)  # what was asked for before may still come
        await send(cluster, unique, 400)
        if interval == SELDOM:
            await anyio.sleep(LONG_ENOUGH)
            assert len(member.messages) == 400
        else:
            await until(lambda: len(member.messages) == 800, 10)


@pytest.mark.parametrize("interval", [OFTEN, SELDOM])
async def test_another_assignment_that_no_event_told_of_is_carried_out(
    cluster: Cluster, unique: str, interval: str
) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    configured = looking(cluster, unique, interval)
    async with reader(configured, {unique: 1}) as first:
        present_member(first.consumer)._rebalancer._trigger.fire = lambda reason: None  # type: ignore[method-assign]
        present_member(first.consumer)._rebalancer._watches._notify = lambda reason: None
        async with reader(configured, {unique: 1}):
            if interval == SELDOM:
                await anyio.sleep(LONG_ENOUGH)
                assert len(first.owned) == PARTITIONS
            else:
                del present_member(first.consumer)._rebalancer._trigger.fire  # watches stay dumb, the look may speak
                await until(lambda: len(first.owned) == PARTITIONS // 2, 10)


def told(logs: Sequence[Mapping[str, Any]], event: str) -> list[Mapping[str, Any]]:
    return [entry for entry in logs if entry["event"] == event]


async def test_a_partition_without_owner_is_told_as_an_error_and_its_end_as_well(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    record = f"/consumers/{unique}/claims/{unique}/1"
    configured = looking(cluster, unique, OFTEN, unowned_alarm="1500ms")
    async with session(cluster.connect) as operator:
        await operator.ensure(record.rpartition("/")[0])
        await operator.create(record, b'{"version": 99}')  # of a version that knows more: the partition is not claimed
        with capture_logs() as logs:
            async with reader(configured, {unique: 1}) as member:
                await until(lambda: told(logs, "partitions without owner"), 10)
                (alarm,) = told(logs, "partitions without owner")
                assert alarm["log_level"] == "error"
                assert alarm["partitions"] == {f"{unique}-1": member.consumer.consumer}
                assert member.owned == {TopicPartition(unique, n) for n in (0, 2, 3)}
                await operator.delete(record, -1)
                await until(lambda: told(logs, "partitions have an owner again"), 15)
            assert len(told(logs, "partitions without owner")) == 1


async def test_a_partition_that_another_member_tells_of_has_no_owner_again(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    record = f"/consumers/{unique}/claims/{unique}/1"
    more: dict[str, object] = {"unowned_alarm": "500ms"}
    async with session(cluster.connect) as operator:
        await operator.ensure(record.rpartition("/")[0])
        await operator.create(record, b'{"version": 99}')
        with capture_logs() as logs:
            async with reader(looking(cluster, unique, OFTEN, **more), {unique: 1}):
                await until(lambda: told(logs, "partitions without owner"), 10)
                first = looking(cluster, unique, OFTEN, consumer_id="a", **more)  # sorts before: gets that partition
                async with reader(first, {unique: 1}):
                    await until(lambda: len(told(logs, "partitions without owner")) == 2, 15)
                    await until(lambda: told(logs, "unowned partitions are assigned to other members"), 15)
            assert not told(logs, "partitions have an owner again")


async def test_an_owner_node_that_stands_for_no_member_is_told_once(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    path = f"/consumers/{unique}/owners/{unique}/2"
    async with session(cluster.connect) as operator:
        await operator.ensure(path.rpartition("/")[0])
        await operator.create(path, b"somebody-0")
        with capture_logs() as logs:
            async with reader(looking(cluster, unique, OFTEN), {unique: 1}) as member:
                await until(lambda: [entry for entry in logs if "stands for no member" in entry["event"]], 10)
                await anyio.sleep(1.0)
            (entry,) = (entry for entry in logs if "stands for no member" in entry["event"])
        assert (entry["about"], entry["reason"]) == (path, "nobody's session: only an operator may delete the node")
        assert len(member.messages) == 0


async def test_a_cluster_without_brokers_is_waited_for_in_peace(
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
async def test_eager_gives_all_back_and_keep_touches_nothing_that_stays(
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
    """Partition -> the transaction that made its owner node."""
    stats = {n: await zookeeper.exists(f"/consumers/{group}/owners/{group}/{n}") for n in range(PARTITIONS)}
    return {n: stat.czxid for n, stat in stats.items() if stat is not None}
