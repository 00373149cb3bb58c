"""Stored offsets that others change or delete, writes whose reply is lost, and the size of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import msgspec
import pytest
from structlog.testing import capture_logs

from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.start_rules import WithBrokers
from kzconsumer.offsets.storage import (
    CommitRefused,
    KafkaOffsetStorage,
    Lost,
    OffsetWrite,
    Stored,
    ZooKeeperOffsetStorage,
)
from kzconsumer.registry.claim_record import Claimed, Plan, decode_claim_record, encode_claim_record
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Create, Delete, Operation, SetData
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import repeated
from kzconsumer.zookeeper.wire import multi
from tests.support.plans import plan_of
from tests.support.simulated.clients import Clients

PATHS = GroupPaths("g")
PARTITION = TopicPartition("orders", 0)
OFFSET, RECORD = PATHS.offset(PARTITION), PATHS.claim_record(PARTITION)
INCARNATION = 0x2A
MOST_BYTES = 64 * 1024
"""Of a request, where somebody has set so little: `jute.maxbuffer`. It is 1 MB by default."""


async def write_of(session: ZooKeeperSession, partition: TopicPartition, fingerprint: str = "") -> OffsetWrite:
    """The first offset of a claim made for it: 5."""
    owners = OwnerRegistry(session, PATHS, "range", fingerprint, "read_committed")
    claimed = await owners.claim(partition, ConsumerThreadId("g_a", 0), INCARNATION)
    assert isinstance(claimed, Claimed)
    return OffsetWrite(partition, claimed.fence, claimed.record, claimed.stored_version, 5, None, claimed.record.epoch)


def then(write: OffsetWrite, stored: Stored, offset: int, plan: Plan | None = None) -> OffsetWrite:
    """The next write of the same claim."""
    return msgspec.structs.replace(
        write, fence=stored.fence, record=stored.record, version=stored.version, offset=offset, plan=plan
    )


async def stored(storage: ZooKeeperOffsetStorage, write: OffsetWrite) -> Stored:
    result = (await storage.write([write]))[write.topic_partition]
    assert isinstance(result, Stored)
    return result


@pytest.mark.parametrize(
    ("meddle", "found"),
    [
        ([SetData(OFFSET, b"3", -1)], "3"),
        ([Delete(OFFSET, -1)], None),
        ([Delete(OFFSET, -1), Delete(OFFSET.rpartition("/")[0], -1)], None),
    ],
    ids=["set", "deleted", "deleted with its topic's node"],
)
@pytest.mark.parametrize("planned", [False, True])
def test_an_offset_that_another_program_changes_is_reported_and_restored(
    meddle: Sequence[Operation], found: str | None, planned: bool
) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        storage = ZooKeeperOffsetStorage(session, PATHS)
        first = await write_of(session, PARTITION, "f" if planned else "")
        write = then(first, await stored(storage, first), 7, plan_of(7, 9) if planned else None)
        clients.ensemble.operate(*meddle)
        with capture_logs() as logs:
            result = await stored(storage, write)
        (entry,) = logs
        assert (entry["log_level"], entry["path"], entry["found"], entry["ours"]) == ("error", OFFSET, found, 7)
        assert entry["event"] == "offset changed by a client that does not own the partition, restored"
        node = clients.ensemble.tree.nodes[OFFSET]
        assert (node.data, node.version) == (b"7", result.version)
        with capture_logs() as logs:
            await stored(storage, then(write, result, 8))
        assert not logs

    clients.play(script)


@pytest.mark.parametrize("path", [RECORD, PATHS.owner(PARTITION)], ids=["record", "owner"])
def test_a_claim_whose_fence_was_changed_is_lost_and_another_is_stored(path: str) -> None:
    """Another member's claim changes both versions; either is enough."""
    clients, other = Clients(), TopicPartition("orders", 1)

    async def script(session: ZooKeeperSession) -> None:
        storage = ZooKeeperOffsetStorage(session, PATHS)
        writes = [await write_of(session, PARTITION), await write_of(session, other)]
        clients.ensemble.operate(SetData(path, clients.ensemble.tree.nodes[path].data, -1))
        results = await storage.write(writes)
        assert isinstance(results[PARTITION], Lost)
        assert isinstance(results[other], Stored)
        assert OFFSET not in clients.ensemble.tree.nodes
        assert clients.ensemble.tree.data(PATHS.offset(other)) == b"5"

    clients.play(script)


class Taking:
    """A coordinator that takes the offsets of all partitions but one."""

    def __init__(self, refuses: TopicPartition) -> None:
        self.refuses = refuses
        self.given: dict[TopicPartition, WithBrokers] = {}

    async def store(self, offsets: Mapping[TopicPartition, WithBrokers]) -> dict[TopicPartition, str]:
        self.given.update(offsets)
        return {self.refuses: "too large"} if self.refuses in offsets else {}


@pytest.mark.parametrize("lost", [(), (0,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("path", [PATHS.claim_record, PATHS.owner], ids=["record", "owner"])
def test_brokers_are_given_no_offset_of_a_claim_whose_fence_was_changed(
    path: Callable[[TopicPartition], str], lost: Sequence[int]
) -> None:
    """They would take it: nothing fences what they store."""
    clients, coordinator = Clients(), Taking(TopicPartition("orders", 1))
    partitions = [TopicPartition("orders", number) for number in range(3)]

    async def script(session: ZooKeeperSession) -> None:
        storage = KafkaOffsetStorage(session, cast("GroupCoordinator", coordinator))
        first = [await write_of(session, each) for each in partitions]
        writes = [msgspec.structs.replace(each, offset=n, leader_epoch=n + 5) for n, each in enumerate(first)]
        for number in lost:
            changed = path(partitions[number])
            clients.ensemble.operate(SetData(changed, clients.ensemble.tree.nodes[changed].data, -1))
        results = await storage.write(writes)
        kept = {each: write for n, (each, write) in enumerate(zip(partitions, writes, strict=True)) if n not in lost}
        assert {each for each, result in results.items() if isinstance(result, Lost)} == set(partitions) - kept.keys()
        assert coordinator.given == {
            each: WithBrokers(write.offset, write.epoch, leader_epoch=write.leader_epoch)
            for each, write in kept.items()
        }
        for each, write in kept.items():
            stored = Stored(write.fence, write.record, write.version)
            assert results[each] == (CommitRefused("too large") if each == coordinator.refuses else stored)

    clients.play(script)


@pytest.mark.parametrize("executed", [True, False], ids=["reply lost", "request lost"])
@pytest.mark.parametrize("planned", [False, True])
def test_a_write_whose_reply_is_lost_is_made_once(executed: bool, planned: bool) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        storage = ZooKeeperOffsetStorage(session, PATHS)
        first = await write_of(session, PARTITION, "f" if planned else "")
        write = then(first, await stored(storage, first), 7, plan_of(7, 9) if planned else None)
        clients.lose_the_next_write(executed=executed)
        result = await stored(storage, write)
        nodes = clients.ensemble.tree.nodes
        assert result == write.leaves
        assert (nodes[OFFSET].data, nodes[OFFSET].version) == (b"7", result.version)
        assert (decode_claim_record(nodes[RECORD].data), nodes[RECORD].version) == (
            result.record,
            result.fence.record_version,
        )

    clients.play(script)


def test_the_same_offset_written_by_another_program_is_not_our_write() -> None:
    """Its version is not the one that ours would have left."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        storage = ZooKeeperOffsetStorage(session, PATHS)
        first = await write_of(session, PARTITION)
        write = then(first, await stored(storage, first), 7)
        clients.ensemble.operate(SetData(OFFSET, b"9", -1))
        clients.ensemble.operate(SetData(OFFSET, b"7", -1))
        assert await storage.executed([write]) == {}

    clients.play(script)


@pytest.mark.parametrize("planned", [False, True])
def test_a_record_that_another_program_wrote_is_not_our_write(planned: bool) -> None:
    """A tool's reset, as large a step of the version as our own write: its epoch is another one."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        storage = ZooKeeperOffsetStorage(session, PATHS)
        first = await write_of(session, PARTITION, "f")
        before = await stored(storage, then_planned(first))
        write = then(first, before, 9, plan_of(9, 12) if planned else None)
        leaves = write.leaves
        assert leaves.fence.record_version == before.fence.record_version + 1
        reset = msgspec.structs.replace(leaves.record, epoch=leaves.record.epoch + 1)
        clients.ensemble.operate(SetData(RECORD, encode_claim_record(reset), -1), SetData(OFFSET, b"9", -1))
        assert await storage.executed([write]) == {}
        ours = encode_claim_record(leaves.record)
        clients.ensemble.operate(Delete(RECORD, -1), Create(RECORD, ours))
        for _ in range(leaves.fence.record_version):
            clients.ensemble.operate(SetData(RECORD, ours, -1))
        assert (await storage.executed([write]))[PARTITION].record == leaves.record

    clients.play(script)


def then_planned(write: OffsetWrite) -> OffsetWrite:
    return msgspec.structs.replace(write, plan=plan_of(5, 9))


def test_no_request_is_larger_than_a_server_takes() -> None:
    """Many partitions with plans, under the longest names, of some with long lists of rejected records."""
    clients, partitions = Clients(), [TopicPartition("t" * 249, number) for number in range(200)]
    rejected = plan_of(5, 5000, rejected=" ".join(map(str, range(0, 4000, 2))))

    async def script(session: ZooKeeperSession) -> None:
        writes = [then_planned(await write_of(session, partition, "f")) for partition in partitions]
        writes[::20] = [msgspec.structs.replace(each, plan=rejected) for each in writes[::20]]
        before = len(clients.ensemble.log)
        results = await ZooKeeperOffsetStorage(session, PATHS).write(writes)
        assert [results[each].record.plan.first for each in partitions] == [5] * len(partitions)  # type: ignore[union-attr]
        sizes = [size(entry.operations) for entry in clients.ensemble.log[before:]]
        assert max(sizes) < MOST_BYTES
        assert sum(sizes) > 5 * MOST_BYTES, "one transaction would do for so few"

    clients.play(script)


def size(operations: Sequence[Operation]) -> int:
    """Bytes of a request."""
    return len(multi(operations, str, lambda path: "creator-writes").body)


def test_containers_of_many_topics_fit_into_requests() -> None:
    clients, topics = Clients(), [f"{number:0>249}" for number in range(300)]

    async def script(session: ZooKeeperSession) -> None:
        owners = OwnerRegistry(session, PATHS, "range")
        before = len(clients.ensemble.log)
        await owners.prepare(topics)
        sizes = [size(entry.operations) for entry in clients.ensemble.log[before:]]
        assert max(sizes) < MOST_BYTES < sum(sizes)

    clients.play(script)


@pytest.mark.parametrize("earlier", [True, False], ids=["the claim of before writes first", "the claim of after"])
@pytest.mark.parametrize("planned", [True, False])
def test_of_two_claims_with_the_same_versions_one_writes(earlier: bool, planned: bool) -> None:
    """ZooKeeper was restored from a copy: it lacks a claim of a session that goes on, and another one follows.

    What the first of them stores is true: it has processed, or plans, what comes before or is in it. The other one has
    lost the partition: its plan is refused before its range is published. (Without leader epochs and plans, as from
    brokers before 0.11, the record stays as it is, and both may commit until the first has noticed its owner node.)
    """
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        async with clients.session() as another:
            await another.ensure("/")
            copy = clients.ensemble.tree.zxid
            before = await write_of(session, PARTITION, "f" if planned else "")
            clients.ensemble.restore(copy, elected=True)
            after = await repeated(partial(write_of, another, PARTITION, "f" if planned else ""))
            assert before.fence == after.fence
            writers = [(session, before), (another, after)] if earlier else [(another, after), (session, before)]
            results = []
            for number, (of, write) in enumerate(writers):
                plan = plan_of(5, 9 + number) if planned else None
                storage = ZooKeeperOffsetStorage(of, PATHS)
                due = msgspec.structs.replace(write, plan=plan, leader_epoch=0)
                results.append((await repeated(partial(storage.write, [due])))[PARTITION])
            assert isinstance(results[0], Stored)
            assert isinstance(results[1], Lost)
            assert clients.ensemble.tree.data(OFFSET) == b"5"
            assert decode_claim_record(clients.ensemble.tree.nodes[RECORD].data).plan == results[0].record.plan

    clients.play(script)
