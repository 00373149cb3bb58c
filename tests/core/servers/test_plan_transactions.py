"""Plans and commits of many partitions on a real ZooKeeper: 64 per transaction, each refused individually."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import anyio
import msgspec
import pytest
import structlog

from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import OffsetTracker
from kzconsumer.offsets.storage import Committed, OffsetWrite, ZooKeeperOffsetStorage
from kzconsumer.registry.claim_record import Claimed, Plan, Refused, decode_claim_record
from kzconsumer.registry.owners import OwnerRegistry
from kzconsumer.registry.paths import CONSUMERS, GroupPaths
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import ZooKeeperServer
from tests.support.zookeeper_sessions import session

GROUP = "g" * 200
TOPIC = "t" * 249
"""The longest name that Kafka allows."""
PATHS = GroupPaths(GROUP)


async def opened(
    zk: ZooKeeperSession, partitions: Sequence[TopicPartition], fingerprint: str = ""
) -> tuple[Committer, list[OffsetTracker]]:
    await zk.ensure(CONSUMERS)
    owners = OwnerRegistry(zk, PATHS, "range", fingerprint)
    committer = Committer(ZooKeeperOffsetStorage(zk, PATHS), lambda reason: None)
    trackers = []
    for partition in partitions:
        claimed = await owners.claim(partition, ConsumerThreadId("g_a", 0), 0x2A)
        assert isinstance(claimed, Claimed)
        tracker = OffsetTracker(partition, 10, incarnation=0x2A)
        committer.open(tracker, Committed(claimed.fence, claimed.record, claimed.stored, claimed.stored_version))
        trackers.append(tracker)
    return committer, trackers


def plan(tracker: OffsetTracker) -> Plan:
    return Plan(
        id=f"{tracker.topic_partition.partition:032x}",
        first=10,
        until=1 << 60,
        offset_version=-1,
        records=1 << 60,
        checksum="f" * 32,
        incarnation="0x7fffffffffffffff",
        epoch=1 << 30,
        isolation="read_committed",
        fingerprint="f" * 64,
    )


async def test_the_longest_names_and_two_that_are_lost(zookeeper: ZooKeeperServer, unique: str) -> None:
    partitions = [TopicPartition(TOPIC, number) for number in range(130)]
    lost = {partitions[3], partitions[129]}
    async with session(f"{zookeeper.connect}/{unique}") as zk:
        await zk.ensure("/")
        committer, trackers = await opened(zk, partitions, "f" * 64)
        taken, deleted = sorted(lost)
        record = await zk.get(PATHS.claim_record(taken))
        await zk.set(PATHS.claim_record(taken), record.data, record.stat.version)
        await zk.delete(PATHS.owner(deleted), -1)

        planned = await committer.plan({tracker: plan(tracker) for tracker in trackers})

        assert {tracker.topic_partition for tracker in trackers} - lost == {t.topic_partition for t in planned}
        assert {tracker.topic_partition for tracker in trackers if not tracker.open} == lost
        assert [await zk.exists(PATHS.offset(partition)) for partition in lost] == [None, None]
        for tracker in planned:
            found = decode_claim_record((await zk.get(PATHS.claim_record(tracker.topic_partition))).data)
            offset = await zk.get(PATHS.offset(tracker.topic_partition))
            assert found.plan == msgspec.structs.replace(plan(tracker), offset_version=offset.stat.version)
            assert offset.data == b"10"
            tracker.hand_over(20)
            tracker.mark(10, 20)

        await committer.commit()
        closed = await committer.close(trackers)

        assert closed.keys() == planned
        for tracker, committed in closed.items():
            node = await zk.get(PATHS.claim_record(tracker.topic_partition))
            left = decode_claim_record(node.data)
            assert (left.plan, left.committed_until) == (None, 20)
            assert (await zk.get(PATHS.offset(tracker.topic_partition))).data == b"20"
            assert committed.fence.record_version == node.stat.version


async def test_a_release_uses_the_fence_of_the_plan(zookeeper: ZooKeeperServer, unique: str) -> None:
    """The plan changed the record's version: a holder of the version from the claim cannot release."""
    partition = TopicPartition("orders", 0)
    async with session(f"{zookeeper.connect}/{unique}") as zk:
        await zk.ensure("/")
        committer, (tracker,) = await opened(zk, [partition])
        before = committer._positions[tracker].committed.fence
        assert await committer.plan({tracker: plan(tracker)}) == {tracker}
        owners = OwnerRegistry(zk, PATHS, "range")
        assert not await owners.release(before)
        after = (await committer.close([tracker]))[tracker]
        assert after.record.plan is not None  # nothing was marked: the plan stands
        moved = await owners.change_thread(after.fence, ConsumerThreadId("g_a", 1))
        assert await owners.release(moved)
        refused = await owners.claim(partition, ConsumerThreadId("g_b", 0), 0x2A)
        assert isinstance(refused, Refused)
        assert refused.path == PATHS.claim_record(partition)


async def test_a_release_in_progress_waits_for_ranges_planned_meanwhile(
    zookeeper: ZooKeeperServer, unique: str
) -> None:
    """Their records are already with the sink: they are planned and written, or the release would wait in vain."""
    partitions = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    async with session(f"{zookeeper.connect}/{unique}") as zk:
        await zk.ensure("/")
        committer, (going, lost) = await opened(zk, partitions)
        settled = anyio.Event()
        for tracker in (going, lost):
            tracker.hand_over(20)
        going.close(settled.set)
        lost.close()
        assert await committer.plan({tracker: plan(tracker) for tracker in (going, lost)}) == {going}
        going.mark(10, 20)
        assert settled.is_set()
        closed = await committer.close([going])
        assert (closed[going].offset, closed[going].record.plan) == (20, None)


async def test_commits_cancelled_at_any_moment_are_never_taken_for_foreign_writes(
    zookeeper: ZooKeeperServer, unique: str
) -> None:
    """Two in a row, each cancelled at another time: before it is sent, in flight, while the outcome of the last is
    read.
    """
    async with session(f"{zookeeper.connect}/{unique}") as zk:
        await zk.ensure("/")
        committer, (tracker,) = await opened(zk, [TopicPartition("orders", 0)])
        assert await committer.store_start(tracker, 10)
        with structlog.testing.capture_logs() as output:
            for first in range(8):
                for second in range(8):
                    for moment in (first, second):
                        tracker.hand_over(tracker.processed + 1)
                        tracker.mark(tracker.processed, tracker.processed + 1)
                        with anyio.move_on_after(moment * 0.0004):
                            await committer.commit()
                    if second % 2:
                        await committer.commit()
            await committer.commit()
        assert output == []
        assert (await zk.get(PATHS.offset(tracker.topic_partition))).data == b"%d" % tracker.processed
        planned = plan(tracker)
        for moment in range(8):
            committer.open(tracker, (await committer.close([tracker]))[tracker])
            with anyio.move_on_after(moment * 0.0004):
                await committer.plan({tracker: msgspec.structs.replace(planned, first=tracker.processed)})
        left = (await committer.close([tracker]))[tracker]
        assert await OwnerRegistry(zk, PATHS, "range").release(left.fence)


async def test_a_claim_whose_last_step_was_cancelled_is_released(zookeeper: ZooKeeperServer, unique: str) -> None:
    async with session(f"{zookeeper.connect}/{unique}") as zk:
        await zk.ensure("/")
        committer, (tracker,) = await opened(zk, [TopicPartition("orders", 0)])
        assert await committer.store_start(tracker, 10)
        assert await committer.plan({tracker: plan(tracker)}) == {tracker}
        steps = itertools.count()
        made = 0
        while made < 3:
            moment = next(steps)
            with anyio.move_on_after(moment % 8 * 0.0004) as time:
                await committer.record_step([tracker], f"step {moment}")
            at = (await committer.close([tracker]))[tracker]
            assert at.record.plan is not None
            made += time.cancelled_caught and f"step {moment}" in at.record.plan.done
            assert (await zk.get(at.fence.record_path)).stat.version == at.fence.record_version
            committer.open(tracker, at)
        left = (await committer.close([tracker]))[tracker]
        assert await OwnerRegistry(zk, PATHS, "range").release(left.fence)


async def test_a_new_epoch_whose_caller_was_cancelled_keeps_no_offset_of_the_old_one(
    zookeeper: ZooKeeperServer, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session(f"{zookeeper.connect}/{unique}") as zk:
        await zk.ensure("/")
        committer, (tracker,) = await opened(zk, [TopicPartition("t", 0)], "f")
        tracker.hand_over(1000)
        tracker.mark(10, 1000)
        tracker.written = 900, 1000
        await committer.plan({tracker: plan(tracker)})
        await committer.commit()
        write = ZooKeeperOffsetStorage.write

        async def no_reply(self: ZooKeeperOffsetStorage, writes: Sequence[OffsetWrite]) -> None:
            await write(self, writes)
            await anyio.sleep_forever()

        with monkeypatch.context() as fault, anyio.move_on_after(0.3):
            fault.setattr(ZooKeeperOffsetStorage, "write", no_reply)
            await committer.store_start(tracker, 500, new_epoch=True)
        await committer.commit()
        await committer.close([tracker])
        record = decode_claim_record((await zk.get(PATHS.claim_record(tracker.topic_partition))).data)
        assert (await zk.get(PATHS.offset(tracker.topic_partition))).data == b"500"
        assert (record.epoch, record.last_written) == (1, None)
