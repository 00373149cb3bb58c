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
from kzconsumer.offsets.progress import Progress
from kzconsumer.offsets.storage import CommittedPosition, OffsetWrite, ZooKeeperOffsetStorage
from kzconsumer.registry.claim_record import Claimed, ClaimRefused, Plan, decode_claim_record
from kzconsumer.registry.claim_transactions import OwnerRegistry
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
) -> tuple[Committer, list[Progress]]:
    await zk.ensure(CONSUMERS)
    owners = OwnerRegistry(zk, PATHS, "range", fingerprint)
    committer = Committer(ZooKeeperOffsetStorage(zk, PATHS), lambda reason: None)
    owned = []
    for partition in partitions:
        claimed = await owners.claim(partition, ConsumerThreadId("g_a", 0), 0x2A)
        assert isinstance(claimed, Claimed)
        progress = Progress(partition, 10, incarnation=0x2A)
        committer.open(
            progress, CommittedPosition(claimed.fence, claimed.record, claimed.stored, claimed.stored_version)
        )
        owned.append(progress)
    return committer, owned


def plan(progress: Progress) -> Plan:
    return Plan(
        id=f"{progress.topic_partition.partition:032x}",
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
        committer, owned = await opened(zk, partitions, "f" * 64)
        taken, deleted = sorted(lost)
        record = await zk.get(PATHS.claim_record(taken))
        await zk.set(PATHS.claim_record(taken), record.data, record.stat.version)
        await zk.delete(PATHS.owner(deleted), -1)

        planned = await committer.plan({progress: plan(progress) for progress in owned})

        assert {progress.topic_partition for progress in owned} - lost == {t.topic_partition for t in planned}
        assert {progress.topic_partition for progress in owned if not progress.open} == lost
        assert [await zk.exists(PATHS.offset(partition)) for partition in lost] == [None, None]
        for progress in planned:
            found = decode_claim_record((await zk.get(PATHS.claim_record(progress.topic_partition))).data)
            offset = await zk.get(PATHS.offset(progress.topic_partition))
            assert found.plan == msgspec.structs.replace(plan(progress), offset_version=offset.stat.version)
            assert offset.data == b"10"
            progress.hand_over(20)
            progress.mark(10, 20)

        await committer.commit()
        closed = await committer.close(owned)

        assert closed.keys() == planned
        for progress, committed in closed.items():
            node = await zk.get(PATHS.claim_record(progress.topic_partition))
            left = decode_claim_record(node.data)
            assert (left.plan, left.committed_until) == (None, 20)
            assert (await zk.get(PATHS.offset(progress.topic_partition))).data == b"20"
            assert committed.fence.record_version == node.stat.version


async def test_a_release_uses_the_fence_of_the_plan(zookeeper: ZooKeeperServer, unique: str) -> None:
    """The plan changed the record's version: a holder of the version from the claim cannot release."""
    partition = TopicPartition("orders", 0)
    async with session(f"{zookeeper.connect}/{unique}") as zk:
        await zk.ensure("/")
        committer, (progress,) = await opened(zk, [partition])
        stored = committer.stored(progress)
        assert stored is not None
        before = stored.fence
        assert await committer.plan({progress: plan(progress)}) == {progress}
        owners = OwnerRegistry(zk, PATHS, "range")
        assert not await owners.release(before)
        after = (await committer.close([progress]))[progress]
        assert after.record.plan is not None  # nothing was marked: the plan stands
        moved = await owners.change_thread(after.fence, ConsumerThreadId("g_a", 1))
        assert await owners.release(moved)
        refused = await owners.claim(partition, ConsumerThreadId("g_b", 0), 0x2A)
        assert isinstance(refused, ClaimRefused)
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
        for progress in (going, lost):
            progress.hand_over(20)
        going.close(settled.set)
        lost.close()
        assert await committer.plan({progress: plan(progress) for progress in (going, lost)}) == {going}
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
        committer, (progress,) = await opened(zk, [TopicPartition("orders", 0)])
        assert await committer.store_start(progress, 10)
        with structlog.testing.capture_logs() as output:
            for first in range(8):
                for second in range(8):
                    for moment in (first, second):
                        progress.hand_over(progress.processed + 1)
                        progress.mark(progress.processed, progress.processed + 1)
                        with anyio.move_on_after(moment * 0.0004):
                            await committer.commit()
                    if second % 2:
                        await committer.commit()
            await committer.commit()
        assert output == []
        assert (await zk.get(PATHS.offset(progress.topic_partition))).data == b"%d" % progress.processed
        planned = plan(progress)
        for moment in range(8):
            committer.open(progress, (await committer.close([progress]))[progress])
            with anyio.move_on_after(moment * 0.0004):
                await committer.plan({progress: msgspec.structs.replace(planned, first=progress.processed)})
        left = (await committer.close([progress]))[progress]
        assert await OwnerRegistry(zk, PATHS, "range").release(left.fence)


async def test_a_claim_whose_last_step_was_cancelled_is_released(zookeeper: ZooKeeperServer, unique: str) -> None:
    async with session(f"{zookeeper.connect}/{unique}") as zk:
        await zk.ensure("/")
        committer, (progress,) = await opened(zk, [TopicPartition("orders", 0)])
        assert await committer.store_start(progress, 10)
        assert await committer.plan({progress: plan(progress)}) == {progress}
        steps = itertools.count()
        made = 0
        while made < 3:
            moment = next(steps)
            with anyio.move_on_after(moment % 8 * 0.0004) as time:
                await committer.record_step([progress], f"step {moment}")
            at = (await committer.close([progress]))[progress]
            assert at.record.plan is not None
            made += time.cancelled_caught and f"step {moment}" in at.record.plan.done
            assert (await zk.get(at.fence.record_path)).stat.version == at.fence.record_version
            committer.open(progress, at)
        left = (await committer.close([progress]))[progress]
        assert await OwnerRegistry(zk, PATHS, "range").release(left.fence)


async def test_a_new_epoch_whose_caller_was_cancelled_keeps_no_offset_of_the_old_one(
    zookeeper: ZooKeeperServer, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session(f"{zookeeper.connect}/{unique}") as zk:
        await zk.ensure("/")
        committer, (progress,) = await opened(zk, [TopicPartition("t", 0)], "f")
        progress.hand_over(1000)
        progress.mark(10, 1000)
        progress.written = 900, 1000
        await committer.plan({progress: plan(progress)})
        await committer.commit()
        write = ZooKeeperOffsetStorage.write

        async def no_reply(self: ZooKeeperOffsetStorage, writes: Sequence[OffsetWrite]) -> None:
            await write(self, writes)
            await anyio.sleep_forever()

        with monkeypatch.context() as fault, anyio.move_on_after(0.3):
            fault.setattr(ZooKeeperOffsetStorage, "write", no_reply)
            await committer.store_start(progress, 500, new_epoch=True)
        await committer.commit()
        await committer.close([progress])
        record = decode_claim_record((await zk.get(PATHS.claim_record(progress.topic_partition))).data)
        assert (await zk.get(PATHS.offset(progress.topic_partition))).data == b"500"
        assert (record.epoch, record.last_written) == (1, None)
