"""Plans, steps, positions and final commits of claims that end, or whose caller gives up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Progress
from kzconsumer.offsets.storage import CommittedPosition, ZooKeeperOffsetStorage
from kzconsumer.registry.claim_record import Claimed, ClaimRecord, decode_claim_record
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.plans import plan_of
from tests.support.simulated.clients import Clients

T = TypeVar("T")
PATHS = GroupPaths("g")
PARTITION = TopicPartition("orders", 0)
INCARNATION = 0x2A
CANCELLED_AFTER = [number / 2000 for number in range(16)]
"""Seconds: before a request is sent, on its way, executed, and answered."""


class Claim:
    """One open claim of a replayable sink's member that begins at offset 0."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.owners = OwnerRegistry(session, PATHS, "range", "f", "read_committed")
        self.committer = Committer(ZooKeeperOffsetStorage(session, PATHS), lambda reason: None)

    async def open(self) -> Progress:
        progress = await self.begin(PARTITION)
        assert await self.committer.store_start(progress, 0)
        return progress

    async def begin(self, partition: TopicPartition) -> Progress:
        """A claim whose start is not stored yet."""
        claimed = await self.owners.claim(partition, ConsumerThreadId("g_a", 0), INCARNATION)
        assert isinstance(claimed, Claimed)
        progress = Progress(partition, 0, incarnation=INCARNATION)
        committed = CommittedPosition(claimed.fence, claimed.record, claimed.stored, claimed.stored_version)
        self.committer.open(progress, committed)
        return progress

    async def close(self, progress: Progress) -> bool:
        """Whether it was released with the fence that the committer knows."""
        (committed,) = (await self.committer.close([progress])).values()
        return await self.owners.release(committed.fence)


def test_a_batch_whose_partition_is_being_released_is_planned() -> None:
    """The release waits for that work."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        claim = Claim(session)
        progress = await claim.open()
        progress.hand_over(5)
        progress.close(lambda: None)
        assert await claim.committer.plan({progress: plan_of(0, 5)}) == {progress}
        record = decode_claim_record(clients.ensemble.tree.nodes[PATHS.claim_record(PARTITION)].data)
        assert record.plan is not None
        assert record.plan.until == 5
        progress.mark(0, 5)
        assert await claim.close(progress)
        assert clients.ensemble.tree.data(PATHS.offset(PARTITION)) == b"5"

    clients.play(script)


def test_a_claim_whose_last_step_was_cancelled_is_released() -> None:
    """The step changes the fence, and no offset: whether it was executed has to be looked up."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        steps = 0
        for seconds in CANCELLED_AFTER:
            claim = Claim(session)
            progress = await claim.open()
            assert await claim.committer.plan({progress: plan_of(0, 5)})
            with anyio.move_on_after(seconds):
                await claim.committer.record_step([progress], "table")
            await session.sync()
            record = decode_claim_record(clients.ensemble.tree.nodes[PATHS.claim_record(PARTITION)].data)
            assert record.plan is not None
            steps += len(record.plan.done)
            assert await claim.close(progress)
            assert PATHS.owner(PARTITION) not in clients.ensemble.tree.nodes
        assert 0 < steps < len(CANCELLED_AFTER), "some were executed, and some were not"

    clients.play(script)


def test_nothing_is_written_of_a_claim_that_is_lost() -> None:
    """By its node it still is ours: the loss may have been found out a moment ago."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        claim = Claim(session)
        progress = await claim.open()
        progress.close()
        assert await claim.committer.plan({progress: plan_of(0, 5)}) == set()
        assert not await claim.committer.store_start(progress, 3)
        record = decode_claim_record(clients.ensemble.tree.nodes[PATHS.claim_record(PARTITION)].data)
        assert record.plan is None
        assert clients.ensemble.tree.data(PATHS.offset(PARTITION)) == b"0"

    clients.play(script)


def test_starts_of_many_claims_are_stored_together_and_a_lost_one_does_not_keep_them() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        claim = Claim(session)
        partitions = [TopicPartition("orders", number) for number in range(20)]
        owned = [await claim.begin(partition) for partition in partitions]
        await session.delete(PATHS.owner(partitions[7]), -1)
        before = len(clients.ensemble.log)
        stored, refused = await claim.committer.store_starts(dict(zip(owned, range(20), strict=True)))
        assert (stored, refused) == ({each for each in owned if each is not owned[7]}, {})
        assert owned[7].lost
        for number, partition in enumerate(partitions):
            offset = clients.ensemble.tree.data(PATHS.offset(partition))
            assert offset == (b"%d" % number if number != 7 else None)
        assert len(clients.ensemble.log) - before == 2, "the one that was refused, and the one without that claim"

    clients.play(script)


Read = Callable[[], bytes | None]
Once = Callable[[ZooKeeperSession, Read, float], Awaitable[T]]


def at_each_moment(once: Once[T]) -> set[T]:
    """What `once` returns for each of the moments. It gets a session, what is stored then, and the seconds."""
    clients = Clients()
    found: set[T] = set()

    async def script(session: ZooKeeperSession) -> None:
        for seconds in CANCELLED_AFTER:
            found.add(await once(session, lambda: clients.ensemble.tree.data(PATHS.offset(PARTITION)), seconds))

    clients.play(script)
    return found


def test_a_commit_does_not_move_back_what_a_cancelled_reset_stored() -> None:
    """The member leaves while the reset waits for ZooKeeper: its progress still is where the claim began."""

    async def once(session: ZooKeeperSession, stored: Read, seconds: float) -> bytes | None:
        claim = Claim(session)
        progress = await claim.open()
        with anyio.move_on_after(seconds):
            await claim.committer.store_start(progress, 7)
            progress.restart(7)
        await session.sync()
        before = stored()
        assert await claim.close(progress)
        assert stored() == before
        return before

    assert at_each_moment(once) == {b"0", b"7"}, "some were executed, and some were not"


def test_a_reset_after_a_seek_is_not_moved_back_when_it_is_cancelled() -> None:
    async def once(session: ZooKeeperSession, stored: Read, seconds: float) -> tuple[bool, bytes | None]:
        claim = Claim(session)
        old, sought = await claim.open(), Progress(PARTITION, 2, incarnation=INCARNATION)
        claim.committer.replace(old, sought)
        with anyio.move_on_after(seconds):
            await claim.committer.store_start(sought, 7)
            sought.restart(7)
        await session.sync()
        executed = stored() == b"7"
        await claim.committer.commit()
        committed = stored()
        assert await claim.close(sought)
        return executed, committed

    assert at_each_moment(once) == {(False, b"2"), (True, b"7")}


def test_a_seek_back_is_stored_though_an_earlier_one_was_cancelled() -> None:
    """Whether the first was executed or not, the second decides."""

    async def once(session: ZooKeeperSession, stored: Read, seconds: float) -> bytes | None:
        claim = Claim(session)
        owned = [await claim.open(), *(Progress(PARTITION, at, incarnation=INCARNATION) for at in (7, 2))]
        claim.committer.replace(owned[0], owned[1])
        with anyio.move_on_after(seconds):
            await claim.committer.store_start(owned[1], 7)
        await session.sync()
        executed = stored()
        claim.committer.replace(owned[1], owned[2])
        await claim.committer.commit()
        assert stored() == b"2"
        assert await claim.close(owned[2])
        return executed

    assert at_each_moment(once) == {b"0", b"7"}, "some were executed, and some were not"


def test_a_new_epoch_begins_a_new_chain() -> None:
    """A position that is stored in the same epoch continues the chain."""

    async def script(session: ZooKeeperSession) -> None:
        claim = Claim(session)
        progress = await claim.open()
        progress.written = 3, 5
        assert await claim.committer.store_start(progress, 7)
        progress.restart(7)
        after = [progress.written]
        assert await claim.committer.store_start(progress, 2, new_epoch=True)
        progress.restart(2)
        assert [*after, progress.written] == [(3, 5), None]
        assert await claim.close(progress)

    Clients().play(script)


def test_an_offset_of_the_epoch_before_is_not_committed_in_a_new_one() -> None:
    """The log was truncated to 2; the caller that began the new epoch was cancelled and knows the old one only."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        found = set()
        for seconds in CANCELLED_AFTER:
            claim = Claim(session)
            progress = await claim.open()
            progress.epoch = epoch = record().epoch
            progress.hand_over(5)
            progress.mark(0, 5)
            with anyio.move_on_after(seconds):
                await claim.committer.store_start(progress, 2, new_epoch=True)
                progress.restart(2)
            await session.sync()
            await claim.committer.commit()
            stored = clients.ensemble.tree.data(PATHS.offset(PARTITION))
            found.add((record().epoch - epoch, stored))
            assert await claim.close(progress)
        assert found == {(0, b"5"), (1, b"2")}

    def record() -> ClaimRecord:
        return decode_claim_record(clients.ensemble.tree.nodes[PATHS.claim_record(PARTITION)].data)

    clients.play(script)
