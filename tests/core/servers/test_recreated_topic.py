"""A topic that was deleted and created again and has outgrown its old offset: it is consumed by the reset policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.claim_record import Claimed
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.paths import CONSUMERS, GroupPaths
from kzconsumer.zookeeper.operations import Delete
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.members import committed, reader, settings, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.recreation import recreate_topic
from tests.support.zookeeper_sessions import session, until

LIMIT = 40.0
PARTITION = TopicPartition("t", 0)
PATHS = GroupPaths("g")
OFFSET = PATHS.offset(PARTITION)


@pytest.fixture
async def zk(zookeeper: ZooKeeperServer, unique: str) -> AsyncIterator[ZooKeeperSession]:
    async with session(f"{zookeeper.connect}/{unique}") as connected:
        await connected.ensure("/")
        await connected.ensure(CONSUMERS)
        yield connected


async def make_topic(zk: ZooKeeperSession) -> int:
    """The incarnation of the topic's new node."""
    path = "/brokers/topics/t"
    await zk.ensure("/brokers/topics")
    if await zk.exists(path):
        await zk.delete(path, -1)
    await zk.create(path, b"{}")
    return (await zk.get(path)).stat.czxid


async def claimed(zk: ZooKeeperSession, incarnation: int) -> Claimed:
    """What a claim finds; it is released at once."""
    owners = OwnerRegistry(zk, PATHS, "range")
    found = await owners.claim(PARTITION, ConsumerThreadId("g_a", 0), incarnation)
    assert isinstance(found, Claimed)
    assert await owners.release(found.fence)
    return found


async def store(zk: ZooKeeperSession, offset: int) -> None:
    await zk.ensure(OFFSET.rpartition("/")[0])
    if await zk.exists(OFFSET):
        await zk.set(OFFSET, b"%d" % offset, -1)
    else:
        await zk.create(OFFSET, b"%d" % offset)


async def test_an_offset_older_than_the_topic_belongs_to_an_earlier_one(zk: ZooKeeperSession) -> None:
    before = await claimed(zk, await make_topic(zk))
    await store(zk, 7)
    incarnation = await make_topic(zk)
    with capture_logs() as logs:
        found = await claimed(zk, incarnation)
    assert (found.stored, found.stored_version, await zk.exists(OFFSET)) == (None, -1, None)
    assert (found.record.incarnation, found.record.epoch) == (f"{incarnation:#x}", before.record.epoch + 1)
    (output,) = [each for each in logs if each["log_level"] == "error"]
    assert (output["topic"], output["partition"], output["stored"], output["was"]) == (
        "t",
        0,
        7,
        before.record.incarnation,
    )
    again = await claimed(zk, incarnation)  # the member that claimed it was killed before it had stored anything
    assert (again.stored, again.record) == (None, found.record)


async def test_an_offset_stored_since_then_belongs_to_this_topic(zk: ZooKeeperSession) -> None:
    """By an original member that has read the new topic meanwhile."""
    await claimed(zk, await make_topic(zk))
    await store(zk, 7)
    incarnation = await make_topic(zk)
    await store(zk, 3)
    with capture_logs() as logs:
        assert (await claimed(zk, incarnation)).stored == 3
    assert [each["log_level"] for each in logs if "recreated" in each["event"]] == ["warning"]


async def test_a_group_without_claim_records_continues_at_its_offset(zk: ZooKeeperSession) -> None:
    incarnation = await make_topic(zk)
    await store(zk, 7)
    assert (await claimed(zk, incarnation)).stored == 7


async def test_an_offset_older_than_the_topic_in_a_group_without_claim_records(zk: ZooKeeperSession) -> None:
    """As one of original members is: the first member of ours begins as [offsets] reset says."""
    await store(zk, 7)
    with capture_logs() as logs:
        assert (await claimed(zk, await make_topic(zk))).stored is None
    (line,) = [each for each in logs if each["event"] == "topic recreated"]
    assert (line["log_level"], line["stored"], line["was"]) == ("error", 7, None)


async def test_an_offset_that_is_stored_while_it_is_being_claimed(
    zk: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await claimed(zk, await make_topic(zk))
    await store(zk, 7)
    incarnation = await make_topic(zk)
    find = ZooKeeperSession.find

    async def slow(self: ZooKeeperSession, path: str) -> object:
        found = await find(self, path)
        if path == OFFSET:
            monkeypatch.undo()
            await store(zk, 3)
        return found

    monkeypatch.setattr(ZooKeeperSession, "find", slow)
    assert (await claimed(zk, incarnation)).stored == 3


@pytest.mark.parametrize("written_since", [False, True])
async def test_a_late_commit_of_ours_is_deleted_by_the_release(zk: ZooKeeperSession, written_since: bool) -> None:
    """It was stored after the new topic was created and before the member knew that."""
    owners, incarnation = OwnerRegistry(zk, PATHS, "range"), await make_topic(zk)
    found = await owners.claim(PARTITION, ConsumerThreadId("g_a", 0), incarnation)
    assert isinstance(found, Claimed)
    assert await owners.incarnations(["t", "other"]) == {"t": incarnation}
    new = await make_topic(zk)
    assert await owners.incarnations(["t"]) == {"t": new}
    await store(zk, 7)
    late = Delete(OFFSET, (await zk.get(OFFSET)).stat.version)
    if written_since:
        await store(zk, 3)
    assert await owners.release(found.fence, late)
    assert await zk.exists(PATHS.owner(PARTITION)) is None
    assert (await claimed(zk, new)).stored == (3 if written_since else None)


async def produced(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    records = [Sent(0, None, value) for value in values]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


OLD, NEW = [b"old %d" % n for n in range(10)], [b"new %d" % n for n in range(25)]


@pytest.mark.parametrize("reset", ["smallest", "largest"])
async def test_a_group_that_rejoins(cluster: Cluster, unique: str, reset: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await produced(cluster, unique, OLD)
    offsets = {"reset": reset, "commit_interval": "500ms"}
    async with reader(settings(cluster.connect, unique), {unique: 1}) as member:
        await until(lambda: len(member.messages) == len(OLD), LIMIT)
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [len(OLD)]
    await recreate_topic(cluster, unique, 1)
    await produced(cluster, unique, NEW)
    async with reader(settings(cluster.connect, unique, offsets=offsets), {unique: 1}) as member:
        if reset == "largest":
            await committed(cluster.connect, unique, unique, [len(NEW)], LIMIT)
            await produced(cluster, unique, [b"last"])
        expected = NEW if reset == "smallest" else [b"last"]
        await until(lambda: len(member.messages) >= len(expected), LIMIT)
    assert [message.value for message in member.messages] == expected


async def test_a_topic_whose_node_cannot_be_read_for_a_while_is_committed(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(
        produce, cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"%d" % n) for n in range(10)]
    )
    path = f"/brokers/topics/{unique}"
    configured = settings(cluster.connect, unique, offsets={"commit_interval": "1h"})
    async with reader(configured, {unique: 1}) as member, session(cluster.connect) as operator:
        await until(lambda: len(member.messages) == 10, LIMIT)
        node = await operator.get(path)
        await operator.set(path, b'{"version":1,"partitions":{"x":[1]}}', -1)
        await until(lambda: not member.owned, LIMIT)
        assert await stored_offsets(cluster.connect, unique, unique, 1) == [10]
        await operator.set(path, node.data, -1)
