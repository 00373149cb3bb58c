"""Kafka's own consumer and ours in one group: each joins the other, and each leaves it, under a steady flow."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import anyio
import pytest

import kzconsumer
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.core.original.group import PARTITIONS, mixed_group, our_member
from tests.support.flow import Deliveries
from tests.support.members import settings
from tests.support.original import ORIGINALS, Record, console_consumer
from tests.support.ownership import by_range
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import until


@pytest.mark.parametrize("version", ORIGINALS)
async def test_ours_joins_a_running_original_and_leaves_it(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path, version: str
) -> None:
    async with mixed_group(servers, cluster, unique) as group:
        with group.original(tmp_path, "m", version=version, from_beginning=True) as original:
            await group.settled("original alone", by_range(unique, PARTITIONS, [original.thread()]))
            since = time.monotonic()
            # `a` sorts before the original, which has to move: it releases everything and takes the upper half.
            async with our_member(cluster, unique, {unique: 1}, "a") as ours:
                shared = by_range(unique, PARTITIONS, [original.thread(), ours.thread()])
                await group.settled("ours joins", shared, since=since)
                await group.delivering(original.delivered, ours.delivered)
                since = time.monotonic()
            await group.settled("ours leaves", by_range(unique, PARTITIONS, [original.thread()]), since=since)
            members = Deliveries(**{original.consumer: original.delivered, "ours": ours.delivered})
            await group.drained(members)
            group.check_ours(ours)
            group.check_doubled(members, original)
            assert ours.came


@pytest.mark.parametrize("version", ORIGINALS)
async def test_an_original_that_joins_ours_is_nudged_to_stop(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path, version: str
) -> None:
    async with mixed_group(servers, cluster, unique) as group, our_member(cluster, unique, {unique: 1}, "m") as ours:
        await group.settled("ours alone", by_range(unique, PARTITIONS, [ours.thread()]))
        with group.original(tmp_path, "a", version=version) as original:
            since = await group.registered(original)
            shared = by_range(unique, PARTITIONS, [original.thread(), ours.thread()])
            await group.settled("original joins", shared, since=since)
            await group.delivering(original.delivered, ours.delivered)
            assert not original.logged("can't rebalance")
            original.signal(signal.SIGTERM)
            since = time.monotonic()
            await group.settled("original stops", by_range(unique, PARTITIONS, [ours.thread()]), since=since)
            await original.ended()
        members = Deliveries(**{original.consumer: original.delivered, "ours": ours.delivered})
        await group.drained(members)
        group.check_ours(ours)
        group.check_doubled(members, original)
        assert original.delivered()


async def test_an_original_does_not_give_up_while_ours_has_work_in_hand(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """Its four attempts last 8 s; an application of ours that keeps a record in hand takes less."""
    async with mixed_group(servers, cluster, unique) as group:
        configured = settings(cluster.connect, unique)
        async with kzconsumer.connect(configured) as consumer, anyio.create_task_group() as tasks:
            (stream,) = (await consumer.create_message_streams({unique: 1}))[unique]
            held: list[Record] = []

            async def hold() -> None:
                async for message in stream:
                    held.append(Record(message.topic, message.partition, message.offset))
                    await anyio.sleep_forever()

            tasks.start_soon(hold)
            thread = f"{consumer.consumer}-0"
            await group.settled("ours alone", by_range(unique, PARTITIONS, [thread]))
            await until(lambda: held)
            # Its id makes the record in hand one of a partition that has to move.
            name = "~" if held[0].partition >= PARTITIONS // 2 else "-"
            with console_consumer(servers, cluster, unique, unique, tmp_path / "o", consumer=name) as original:
                since = await group.registered(original)
                owners = by_range(unique, PARTITIONS, [thread, original.thread()])
                await group.settled("original joins", owners, since=since)
                assert not original.logged("can't rebalance")
                assert group.figures["original joins, s"] < 8.0
                await until(lambda: held[0] in original.delivered())
            tasks.cancel_scope.cancel()
