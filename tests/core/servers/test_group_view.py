"""The whole group as the status server reads it, of a real member."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from kzconsumer.status import group_watch
from kzconsumer.status.group_watch import GroupPartition, GroupWatch
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.members import Reader, present_member, reader, settings
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until


@asynccontextmanager
async def view_of(member: Reader) -> AsyncIterator[GroupWatch]:
    view = GroupWatch(lambda: present_member(member.consumer))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(view.run)
        yield view
        tasks.cancel_scope.cancel()


async def send(cluster: Cluster, topic: str, number: int) -> None:
    records = [Sent(partition, None, b"x") for partition in range(4) for _ in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
async def test_owner_offsets_and_rate(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    monkeypatch.setattr(group_watch, "INTERVAL", 0.2)
    await create_topic(cluster.connect, unique, 4)
    await send(cluster, unique, 10)
    configured = settings(cluster.connect, unique, offsets={"commit_interval": "100ms", "storage": storage})
    async with reader(configured, {unique: 1}) as member, view_of(member) as view:
        await until(lambda: len(member.messages) == 40, 30)

        async def all_committed(end: int) -> list[GroupPartition]:
            with anyio.fail_after(30):
                while [each.committed for each in (await view.present()).partitions] != [end] * 4:
                    await anyio.sleep(0.05)
            return view.status.partitions

        for each in await all_committed(10):
            assert (each.owner, each.end, each.lag) == (f"{member.consumer.consumer}-0", 10, 0)
        await send(cluster, unique, 5)
        for each in await all_committed(15):
            assert (each.rate or 0) > 0


async def test_it_is_read_only_when_asked_for_and_is_bounded(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_watch, "INTERVAL", 0.1)
    monkeypatch.setattr(group_watch, "MOST", 3)
    await create_topic(cluster.connect, unique, 4)
    async with reader(settings(cluster.connect, unique), {unique: 1}) as member, view_of(member) as view:
        await anyio.sleep(0.5)
        assert view.status.at is None
        found = await view.present()
        assert [each.partition for each in found.partitions] == [0, 1, 2]
        assert found.left_out == 1
        await anyio.sleep(0.3)
        read = view.status.at
        await anyio.sleep(0.5)
        assert view.status.at == read, "nobody has asked again"
        # The wall clock was an hour ahead then, and has been set since.
        view.status = msgspec.structs.replace(view.status, at=time.time() + 3600)
        assert ((await view.present()).at or 0) < time.time() + 1
