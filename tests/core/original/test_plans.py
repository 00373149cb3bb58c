"""Planned ranges beside Kafka's own tools and members, which do not know them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.servers.test_plan_handover import RECORDS, Slow, owner_of, plans, whole
from tests.core.servers.test_replay import LIMIT, Sink, Target, consume
from tests.support.extent import extent
from tests.support.members import committed, stored_offsets
from tests.support.original import Record, console_consumer, offset_checker, tools_verdict
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.static_original import static_original
from tests.support.zookeeper_sessions import until

MORE = RECORDS
"""So that each batch of both partitions is full, and none waits for its time."""


async def filled(cluster: Cluster, topic: str, first: int, end: int) -> None:
    records = [Sent(p, None, Record(topic, p, offset).value()) for p in range(2) for offset in range(first, end)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def tools_agree(servers: Servers, cluster: Cluster, group: str) -> None:
    """Nothing of the plan is committed: to every reader the planned range is lag."""
    where = "--zookeeper", cluster.connect, "--group", group
    described, checked, verified = await asyncio.gather(
        servers.tool("1.1.1", "kafka.admin.ConsumerGroupCommand", "--describe", *where),
        offset_checker(servers, cluster, group),
        tools_verdict(servers, cluster, group),
    )
    for number in range(2):
        rows = [line.split() for line in described.splitlines() if line.startswith(group)]
        assert [group, str(number), "0", str(RECORDS), str(RECORDS), f"{group}_a"] in rows, described
        rows = [line.split() for line in checked.splitlines() if line.startswith(group)]
        assert [group, group, str(number), "0", str(RECORDS), str(RECORDS), f"{group}_a-0"] in rows, checked
    assert "Rebalance operation successful" in verified, verified


async def test_an_original_that_lost_the_partition_commits_late(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """It owned the partition once, and its commit is not checked. The destination has the records after it."""
    await create_topic(cluster.connect, unique, 1)

    async def more(first: int, end: int) -> None:
        records = [Sent(0, None, Record(unique, 0, offset).value()) for offset in range(first, end)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)

    await more(0, 10)
    target = Target()
    given = {"auto_commit_enable": "false"}
    with static_original(servers, cluster, unique, unique, 1, tmp_path, consumer="z", **given) as original:
        await original.join()
        await until(lambda: len(original.delivered()) == 10, LIMIT)
        await more(10, RECORDS)
        over = asyncio.Event()
        async with asyncio.TaskGroup() as members:
            members.create_task(consume(cluster, unique, Sink(target), over.is_set, group={"consumer_id": "a"}))
            await committed(cluster.connect, unique, unique, [RECORDS], LIMIT)
            await original.commit(0, 10)
            await original.leave()
            over.set()
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [10]
    await more(RECORDS, RECORDS + MORE)
    with capture_logs() as logs:
        await consume(cluster, unique, Sink(target), lambda: whole(target, [0], RECORDS + MORE))
    assert whole(target, [0], RECORDS + MORE)
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [RECORDS + MORE]
    errors = [(each.get("stored"), each.get("continues_at")) for each in logs if each["log_level"] == "error"]
    assert errors == [(10, RECORDS)]


@pytest.mark.parametrize("takes", extent([10], [10, RECORDS]))
async def test_an_original_takes_a_planned_partition_over_and_gives_it_back(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path, takes: int
) -> None:
    """If it stops inside the range, the range is written whole; if it stops behind it, the plan is cleared."""
    await create_topic(cluster.connect, unique, 2)
    await filled(cluster, unique, 0, RECORDS)
    target, over = Target(), asyncio.Event()
    slow = Slow(target, held=True)
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as members:
            full = consume(cluster, unique, slow, over.is_set, 2 * RECORDS, max_time="20s", group={"consumer_id": "a"})
            members.create_task(full)
            await until(slow.writing.is_set, LIMIT)
            if takes == RECORDS:
                await tools_agree(servers, cluster, unique)
            before = await plans(cluster, unique, 2)
            with console_consumer(
                servers, cluster, unique, unique, tmp_path, consumer="m", max_messages=takes
            ) as original:
                await owner_of(cluster, unique, 1, lambda owner: owner == original.thread())
                assert await plans(cluster, unique, 2) == before
                assert await original.ended(LIMIT) == 0
                assert original.delivered() == [Record(unique, 1, offset) for offset in range(takes)]
            await owner_of(cluster, unique, 1, lambda owner: owner.startswith(f"{unique}_a"))
            slow.free.set()
            await filled(cluster, unique, RECORDS, RECORDS + MORE)
            await committed(cluster.connect, unique, unique, [RECORDS + MORE] * 2, LIMIT)
            over.set()
    assert await plans(cluster, unique, 2) == [None, None]
    # The batch in flight when the original took over has been published, too: the destination has everything.
    assert whole(target, (0, 1), RECORDS + MORE)
    replayed = [(part.partition, part.first, part.until) for part in slow.replayed]
    warnings = [each["event"] for each in logs if each["log_level"] == "warning" and each.get("partition") == 1]
    if takes < RECORDS:
        assert replayed == [(1, 0, RECORDS)]
        assert "offset changed without regard to the plan, replaying the planned range" in warnings
    else:
        assert replayed == []
        assert "plan dropped" in warnings
