"""Offsets in ZooKeeper with a copy at the coordinator, through lost replies and refusals: where the next owner begins.

The product's committer and adopter run on two storages in memory. A commit or seek that returned holds for the next
owner, whatever happened to the ones before it; a failed one is repeated by the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, cast
from unittest import mock

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from kzconsumer.errors import CoordinatorError
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.claim_start import Adopter
from kzconsumer.offsets.committer import STORE_AGAIN, Committer
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.progress import Progress
from kzconsumer.offsets.start_rules import Authority, WithBrokers
from kzconsumer.offsets.storage import CommitRefused, OffsetWrite, Stored
from kzconsumer.registry.claim_record import Claimed, ClaimRecord, Fence, OwnerNode
from tests.support.simulated.virtual_time import World, clock_of

PARTITION = TopicPartition("orders", 0)

Fate = Literal["stored", "answer lost", "request lost", "refused"]


class Step(NamedTuple):
    what: Literal["work", "seek", "commit", "release", "next owner", "reset", "deleted"]
    offset: int
    fate: Fate


STEPS = st.builds(
    Step,
    st.sampled_from(["work", "work", "seek", "commit", "release", "next owner", "reset", "deleted"]),
    st.integers(0, 3),  # few, so that a seek often goes to where something was stored before
    st.sampled_from(["stored", "stored", "answer lost", "request lost", "refused"]),
)


def epoch_before(offset: int) -> int:
    """The leader epoch of the last record before an offset of the log."""
    return 10 + offset


def require_truth(offset: int, leader_epoch: int) -> None:
    assert leader_epoch in (-1, epoch_before(offset)), f"{offset} is stored with leader epoch {leader_epoch}"


class Coordinator:
    """One partition's offset in the brokers, and the outcome of the next request."""

    def __init__(self) -> None:
        self.fate: Fate = "stored"
        self.has: WithBrokers | None = None
        self.in_doubt = False
        """The owner may not know what it has."""
        self.needless = 0
        """Requests that stored what was known to be there."""

    async def store(self, offsets: Mapping[TopicPartition, WithBrokers]) -> dict[TopicPartition, str]:
        if not offsets:
            return {}
        self.needless += self.has is not None and offsets[PARTITION][:2] == self.has[:2] and not self.in_doubt
        require_truth(offsets[PARTITION].offset, offsets[PARTITION].leader_epoch)
        self.in_doubt = self.fate != "stored"
        if self.fate in ("stored", "answer lost"):
            self.has = offsets[PARTITION]
        if self.fate in ("answer lost", "request lost"):
            raise CoordinatorError(self.fate)
        return {PARTITION: "refused"} if self.fate == "refused" else {}

    async def stored(self, partitions: object) -> dict[TopicPartition, WithBrokers]:
        if self.has is None:
            return {}
        return {PARTITION: WithBrokers.read(self.has.offset, self.has.metadata, self.has.leader_epoch)}


class Nodes:
    """The same partition's offset in ZooKeeper, or in the brokers alone."""

    name: Final = "zookeeper"

    def __init__(self, coordinator: Coordinator | None) -> None:
        self.forgets = coordinator is not None
        self.has: int | None = None
        self.record = ClaimRecord(1, "range", "0x1")
        self._coordinator = coordinator

    async def write(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored | CommitRefused]:
        (write,) = writes
        if self._coordinator is not None:
            stored = Stored(write.fence, write.record, write.version)
            copy = WithBrokers(write.offset, write.epoch, leader_epoch=write.leader_epoch)
            refused = await self._coordinator.store({PARTITION: copy})
            return {PARTITION: CommitRefused("refused") if refused else stored}
        require_truth(write.offset, write.leader_epoch)
        self.has, self.record = write.offset, write.leaves.record
        return {PARTITION: write.leaves}

    async def executed(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored]:
        return {}


class Owners:
    """One member after the other, each beginning with what it finds."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.coordinator = Coordinator()
        self.nodes = Nodes(self.coordinator if authority is Authority.KAFKA else None)

    def begins(self) -> int | None:
        return self.authority.begin(self.nodes.has, self.coordinator.has, self.nodes.record.epoch)

    async def claim(self, fate: Fate = "stored") -> None:
        """Raises CoordinatorError if it has to store a start, and `fate` forbids that."""
        brokers = cast(GroupCoordinator, self.coordinator)
        self.coordinator.fate = fate
        copies = None if self.authority is Authority.KAFKA else brokers
        self.committer = Committer(self.nodes, lambda reason: None, copies=copies)
        self.coordinator.in_doubt = False  # it asks
        adopter = Adopter(self.committer, None, authority=self.authority, coordinator=brokers)
        begins, record, copy = self.begins(), self.nodes.record, self.coordinator.has
        fence = Fence(OwnerNode("", 0), "", 0)
        (adopted,) = await adopter.adopt([(PARTITION, 1, Claimed(fence, record, self.nodes.has, 0))])
        assert adopted.position == begins
        if begins is not None:
            assert self.begins() == begins, "the next owner would begin elsewhere"
            known = record.leader_epoch_before(begins) >= 0
            if copy is not None and copy.offset == begins and not copy.before(record.epoch):
                known = known or copy.leader_epoch >= 0
            at = self.committer.stored(adopted.progress)
            assert at is not None
            assert (at.offset, at.leader_epoch) == (begins, epoch_before(begins) if known else -1)
            assert adopted.progress.leader_epochs.before(begins) == at.leader_epoch
        self.coordinator.fate = "stored"
        self.progress = adopted.progress
        if begins is None:  # the reset policy
            assert await self.committer.store_start(self.progress, 0)

    def stored_epoch(self) -> int | None:
        """The leader epoch that is stored with the offset at which the next owner begins."""
        record, copy = self.nodes.record, self.coordinator.has
        in_nodes = record.leader_epoch_before(self.begins())
        return copy.leader_epoch if in_nodes < 0 and copy is not None and copy.offset == self.begins() else in_nodes

    async def do(self, step: Step) -> None:
        if step.what == "work":
            first, until = self.progress.processed, self.progress.processed + step.offset
            epochs = [(offset, epoch_before(offset + 1)) for offset in range(first, until)]
            self.progress.leader_epochs.extend(first, epochs, until, first)
            self.progress.hand_over(until)
            self.progress.mark(first, until)
            return
        if step.what in ("next owner", "reset", "deleted"):
            if step.what == "reset":
                record = self.nodes.record
                self.nodes.has, self.nodes.record = step.offset, replace(record, epoch=record.epoch + 1)
            elif step.what == "deleted":
                self.nodes.has, self.nodes.record = None, ClaimRecord(1, "range", "0x1")
            try:
                await self.claim(step.fate)
            except CoordinatorError:
                assert step.fate != "stored"
                await self.claim()
            if step.what == "reset":
                assert self.progress.processed == step.offset
            return
        self.coordinator.fate = step.fate
        needless = self.coordinator.needless
        try:
            if step.what == "release":
                await self.committer.close([self.progress])
            elif step.what == "seek":
                old = self.progress
                self.progress = Progress(PARTITION, step.offset, epoch=old.epoch)
                self.committer.replace(old, self.progress)
                await self.committer.store_start(self.progress, step.offset)
            else:
                await self.committer.commit()
        except CoordinatorError:
            assert step.fate != "stored"
        else:
            if step.what != "release" or step.fate == "stored":  # the failure of a final commit is logged
                assert self.begins() == self.progress.processed
                known, stored = self.progress.leader_epochs.before(self.progress.processed), self.stored_epoch()
                assert known in (stored, -1), "the next owner can compare the log with less than what was known"
        assert step.what == "seek" or self.coordinator.needless == needless, "brokers have it, and do not forget it yet"
        if step.what == "release":
            await self.claim()


A_COPY_IN_DOUBT = [
    Step("work", 1, "stored"),
    Step("commit", 0, "stored"),
    Step("work", 1, "stored"),
    Step("commit", 0, "answer lost"),
    Step("seek", 1, "request lost"),
]


@pytest.mark.parametrize("authority", [Authority.BOTH, Authority.KAFKA, Authority.ZOOKEEPER_FIRST])
@example(steps=A_COPY_IN_DOUBT)
@given(steps=st.lists(STEPS, max_size=12))
def test_a_commit_that_returned_holds_for_the_next_owner(authority: Authority, steps: list[Step]) -> None:
    async def run() -> None:
        owners = Owners(authority)
        await owners.claim()
        for step in steps:
            await owners.do(step)
        await owners.do(Step("commit", 0, "stored"))

    anyio.run(run)


async def test_a_new_epoch_does_not_wait_for_the_coordinator() -> None:
    """The log was truncated: the coordinator's copy belongs to the earlier epoch and no longer counts."""
    owners = Owners(Authority.ZOOKEEPER_FIRST)
    owners.nodes.has = 9
    await owners.claim()
    await owners.committer.commit()
    assert owners.coordinator.has == WithBrokers(9, 0)
    owners.coordinator.fate = "request lost"
    assert await owners.committer.store_start(owners.progress, 4, new_epoch=True)
    owners.progress.restart(4)
    assert (owners.nodes.has, owners.progress.epoch) == (4, 1)
    with pytest.raises(CoordinatorError):
        await owners.committer.commit()
    owners.coordinator.fate = "stored"
    await owners.committer.commit()
    assert owners.coordinator.has == WithBrokers(4, 1)


async def test_a_position_found_after_a_seek_stays_stored_though_its_copy_fails() -> None:
    """The log begins at 20 by now, and the application has sought to 5, where nothing can be processed."""
    owners = Owners(Authority.BOTH)
    owners.nodes.has, owners.coordinator.has = 50, WithBrokers(50, 0)
    await owners.claim()
    await owners.do(Step("seek", 5, "request lost"))
    with pytest.raises(CoordinatorError):
        await owners.committer.store_start(owners.progress, 20)
    owners.coordinator.fate = "stored"
    await owners.committer.commit()
    assert (owners.nodes.has, owners.begins()) == (20, 20)


async def test_a_start_without_a_copy_is_stored_while_the_coordinator_is_away() -> None:
    """A copy would be too large only for a claim that has one: others begin."""
    owners = Owners(Authority.BOTH)
    await owners.claim()
    owners.coordinator.fate = "request lost"
    assert await owners.committer.store_starts({owners.progress: 3}) == ({owners.progress}, {})
    owners.nodes.has, owners.coordinator.has = 50, WithBrokers(50, 0)
    await owners.claim()
    owners.coordinator.fate = "request lost"
    stored, refused = await owners.committer.store_starts({owners.progress: 3})
    assert (stored, list(refused)) == (set(), [PARTITION])


async def test_what_a_commit_has_stored_that_a_seek_interrupts_is_not_known_yet_and_not_copied() -> None:
    """It was made for the progress before the seek."""
    owners = Owners(Authority.BOTH)
    await owners.claim()
    await owners.do(Step("work", 2, "stored"))
    await owners.do(Step("commit", 0, "request lost"))
    await owners.do(Step("work", 1, "stored"))
    write, sought = owners.nodes.write, Progress(PARTITION, 0)

    async def interrupted(writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored | CommitRefused]:
        owners.committer.replace(owners.progress, sought)
        return await write(writes)

    owners.coordinator.fate = "stored"
    with mock.patch.object(owners.nodes, "write", interrupted):
        await owners.committer.commit()
    assert (owners.nodes.has, owners.coordinator.has) == (3, None)
    assert await owners.committer.store_start(sought, 0)
    assert (owners.nodes.has, owners.coordinator.has) == (0, WithBrokers(0, 0))


async def test_what_a_claim_had_stored_is_known_until_a_later_one_stores_something() -> None:
    """The group's nodes were deleted, and the owner node of the next claim once more."""
    owners = Owners(Authority.ZOOKEEPER_FIRST)
    owners.nodes.has = 9
    await owners.claim()
    at = owners.committer.stored(owners.progress)
    assert at is not None
    owners.committer.lose(owners.progress, "the nodes were deleted")
    again = Progress(PARTITION, 9)
    owners.committer.open(again, replace(at, offset=None))
    owners.committer.lose(again, "the owner node was deleted")
    assert owners.committer.lost(PARTITION) == at
    last = Progress(PARTITION, 9)
    owners.committer.open(last, at)
    assert await owners.committer.store_start(last, 11)
    assert owners.committer.lost(PARTITION) is None


@pytest.mark.parametrize("authority", [Authority.BOTH, Authority.KAFKA])
async def test_an_unchanged_offset_is_stored_again_once_an_hour(authority: Authority) -> None:
    """Brokers forget offsets that are not."""
    world = World(1)
    with clock_of(world):
        owners = Owners(authority)
        owners.nodes.has, owners.coordinator.has = 9, WithBrokers(9, 0)
        await owners.claim()
        for forgotten_after, has in ((STORE_AGAIN - 1, None), (2, WithBrokers(9, 0)), (STORE_AGAIN - 3, None)):
            owners.coordinator.has = None
            world.now += forgotten_after
            await owners.committer.commit()
            assert owners.coordinator.has == has
