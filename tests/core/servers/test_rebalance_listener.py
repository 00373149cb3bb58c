"""When a listener is called, with what, and what it cannot delay."""

from __future__ import annotations

import asyncio

import anyio
import pytest
import structlog

import kzconsumer
from kzconsumer.group.membership import SnapshotReader
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import stored_offset, take
from tests.support.members import present_member, reader, sessions_of, settings
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import expire, session, until


class Recorder(kzconsumer.RebalanceListener):
    def __init__(self, zookeeper_path: str = "") -> None:
        self.calls: list[tuple[str, int, set[int]]] = []

    def _record(self, name: str, generation: int, partitions: frozenset[kzconsumer.TopicPartition]) -> None:
        self.calls.append((name, generation, {at.partition for at in partitions}))

    async def on_assigned(self, generation: int, partitions: frozenset[kzconsumer.TopicPartition]) -> None:
        self._record("assigned", generation, partitions)

    async def on_revoked(self, generation: int, partitions: frozenset[kzconsumer.TopicPartition]) -> None:
        self._record("revoked", generation, partitions)

    async def on_lost(self, generation: int, partitions: frozenset[kzconsumer.TopicPartition]) -> None:
        self._record("lost", generation, partitions)


async def test_assigned_revoked_and_lost_are_separate_calls(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 4)
    listener = Recorder()
    async with kzconsumer.connect(settings(cluster.connect, unique), listener=listener) as consumer:
        await consumer.create_message_streams({unique: 1})
        await until(lambda: len(listener.calls) == 1)
        assert listener.calls == [("assigned", 1, {0, 1, 2, 3})]
        async with reader(settings(cluster.connect, unique), {unique: 1}) as other:
            await until(lambda: len(other.owned) == 2)
            await until(lambda: len(listener.calls) == 2)
            name, generation, partitions = listener.calls[1]
            assert (name, generation, len(partitions)) == ("revoked", 2, 2)
        await until(lambda: len(listener.calls) == 3)
        assert listener.calls[2] == ("assigned", 3, partitions)
        owned = sessions_of(consumer).lease.session
        assert owned is not None
        await expire(owned, cluster.connect)
        await until(lambda: len(listener.calls) == 5, 15)
        assert [(name, partitions) for name, _, partitions in listener.calls[3:]] == [
            ("lost", {0, 1, 2, 3}),
            ("assigned", {0, 1, 2, 3}),
        ]
    assert listener.calls[-1][0] == "revoked"
    assert listener.calls[-1][2] == {0, 1, 2, 3}


async def test_assigned_precedes_the_first_record_and_revoked_precedes_the_release(
    cluster: Cluster, unique: str
) -> None:
    await create_topic(cluster.connect, unique, 2)
    records = [Sent(n % 2, None, b"%d" % n) for n in range(100)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    seen: list[kzconsumer.Message] = []
    order: list[str] = []

    class Listener(kzconsumer.RebalanceListener):
        async def on_assigned(self, generation: int, partitions: frozenset[kzconsumer.TopicPartition]) -> None:
            await anyio.sleep(0.3)
            order.append(f"assigned after {len(seen)} records")

        async def on_revoked(self, generation: int, partitions: frozenset[kzconsumer.TopicPartition]) -> None:
            async with session(cluster.connect) as zookeeper:
                owners = await zookeeper.children(f"/consumers/{unique}/owners/{unique}")
            order.append(f"revoked with {len(owners)} owners")

    async def read(stream: kzconsumer.KafkaStream) -> None:
        async for message in stream:
            seen.append(message)  # noqa: PERF401  (an endless stream: nothing would be seen before its end)

    async with (
        kzconsumer.connect(settings(cluster.connect, unique), listener=Listener()) as consumer,
        anyio.create_task_group() as tasks,
    ):
        (stream,) = (await consumer.create_message_streams({unique: 1}))[unique]
        tasks.start_soon(read, stream)
        await until(lambda: len(seen) == 100)
        tasks.cancel_scope.cancel()
    assert order == ["assigned after 0 records", "revoked with 2 owners"]


async def test_an_exception_of_a_listener_ends_the_member(cluster: Cluster, unique: str) -> None:
    class Raising(kzconsumer.RebalanceListener):
        async def on_assigned(self, generation: int, partitions: frozenset[kzconsumer.TopicPartition]) -> None:
            raise LookupError("no such shard")

    await create_topic(cluster.connect, unique, 1)

    async def be_a_member() -> None:
        async with kzconsumer.connect(settings(cluster.connect, unique), listener=Raising()) as consumer:
            await consumer.create_message_streams({unique: 1})
            await anyio.sleep(10)

    with pytest.raises(LookupError, match="no such shard"):
        await be_a_member()
    async with session(cluster.connect) as zookeeper:
        assert await zookeeper.children(f"/consumers/{unique}/ids") == []


async def test_the_end_of_every_partition_is_reported_even_during_its_release(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 2)
    records = [Sent(n % 2, None, b"%d" % n) for n in range(20)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    listener = Recorder()
    async with kzconsumer.connect(settings(cluster.connect, unique), listener=listener) as consumer:
        for stream in (await consumer.create_message_streams({unique: 2}))[unique]:
            await take(stream, 1)  # in hand for good: the release waits for it
        sorts_first = settings(cluster.connect, unique, group={"id": unique, "consumer_id": "a"})
        async with reader(sorts_first, {unique: 2}):
            await until(lambda: not consumer.positions())
            await consumer.leave()
    ends = [partitions for name, _, partitions in listener.calls if name != "assigned"]
    assert sorted(partition for partitions in ends for partition in partitions) == [0, 1], listener.calls


async def test_a_slow_listener_does_not_prevent_the_last_commit(cluster: Cluster, unique: str) -> None:
    class Slow(kzconsumer.RebalanceListener):
        async def on_revoked(self, generation: int, partitions: frozenset[kzconsumer.TopicPartition]) -> None:
            await anyio.sleep(4)

    await create_topic(cluster.connect, unique, 1)
    records = [Sent(0, None, b"%d" % n) for n in range(20)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    configured = settings(cluster.connect, unique, offsets={"commit_interval": "1h"}, stop={"deadline": "6s"})
    async with kzconsumer.connect(configured, listener=Slow()) as consumer:
        (stream,) = (await consumer.create_message_streams({unique: 1}))[unique]
        await take(stream, 10)
        stream.ack()
    assert not sessions_of(consumer).left_uncommitted
    assert await stored_offset(cluster, unique, unique) == 10


@pytest.mark.parametrize("fails", [False, True])
async def test_an_exception_of_a_listener_during_leaving_prevents_no_commit(
    cluster: Cluster, unique: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Raising(kzconsumer.RebalanceListener):
        async def on_revoked(self, generation: int, partitions: frozenset[kzconsumer.TopicPartition]) -> None:
            raise LookupError("no such shard")

    await create_topic(cluster.connect, unique, 1)
    records = [Sent(0, None, b"%d" % n) for n in range(20)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    configured = settings(cluster.connect, unique, offsets={"commit_interval": "1h"})

    async def be_a_member() -> None:
        async with kzconsumer.connect(configured, listener=Raising()) as consumer:
            (stream,) = (await consumer.create_message_streams({unique: 1}))[unique]
            await take(stream, 10)
            stream.ack()
            if fails:  # the member ends by its own failure, before it is asked to leave
                member = present_member(consumer)
                monkeypatch.setattr(SnapshotReader, "members", None)
                member.parts.trigger.fire("test")
                await anyio.sleep(10)

    with structlog.testing.capture_logs() as output, pytest.raises((LookupError, ExceptionGroup, TypeError)):
        await be_a_member()
    assert await stored_offset(cluster, unique, unique) == 10
    assert [line for line in output if line["event"].startswith("final commit failed")] == []


async def test_a_partition_that_is_lost_in_the_middle_of_a_rebalance_is_reported_as_lost(
    cluster: Cluster, unique: str
) -> None:
    await create_topic(cluster.connect, unique, 1)
    listener = Recorder()
    async with (
        kzconsumer.connect(settings(cluster.connect, unique), listener=listener) as consumer,
        session(cluster.connect) as operator,
    ):
        await consumer.create_message_streams({unique: 1})
        member = present_member(consumer)
        async with member.committer.one_at_a_time:  # a commit for which the rebalance waits
            member.parts.trigger.fire("test")
            await until(lambda: not member.parts.trigger.fired)
            await operator.delete(f"/consumers/{unique}/owners/{unique}/0", -1)
            await until(lambda: not consumer.positions())
        await until(lambda: [name for name, _, _ in listener.calls] == ["assigned", "lost", "assigned"])
