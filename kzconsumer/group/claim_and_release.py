"""Claims are opened, moved and released here, in batches, by the rebalancer.

A lost partition is closed at once by the code that detects it; the next sweep removes the rest. The order in which the
ownership of a partition ends is explained at `Claimer._release`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial

import anyio
import msgspec

from kzconsumer.errors import KzConsumerError, NotPermittedError, SessionExpiredError, TopicChangedError, ZooKeeperError
from kzconsumer.fetcher.fetcher_manager import FetcherManager
from kzconsumer.group.owned_partitions import OwnedPartition, OwnedPartitions
from kzconsumer.group.rebalance_listener import ListenerCalls
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.claim_start import Adopter
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.storage import CommittedPosition
from kzconsumer.registry.claim_record import Blocked, Claimed, ClaimRefused
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.nodes import Topic
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Delete
from kzconsumer.zookeeper.watches import Watches, outcomes, repeated, together

log = get_logger("kzconsumer.group")


REVOKE_DEADLINE_WITH_ORIGINALS = 3.5
"""Seconds that a release may take in a group with original members, work in hand and listener included: an original
tries to claim four times, 2 s apart, and gives up then; this leaves it two of the four."""
LEAST_FOR_LISTENER = 0.5
"""Seconds for the listener even if the work in hand has used up the deadline."""


class Claimer:
    """Begins and ends the ownership of partitions."""

    def __init__(
        self,
        owned: OwnedPartitions,
        owners: OwnerRegistry,
        adopter: Adopter,
        watches: Watches,
        paths: GroupPaths,
        committer: Committer,
        fetchers: FetcherManager,
        listener: ListenerCalls,
    ) -> None:
        self._owned = owned
        self._owners = owners
        self._adopter = adopter
        self._watches = watches
        self._paths = paths
        self._committer = committer
        self._fetchers = fetchers
        self._listener = listener
        self.revoke_deadline = REVOKE_DEADLINE_WITH_ORIGINALS
        """Seconds; set by the rebalancer, which knows the other members."""

    async def outdated(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        """Open claims of topics that were deleted and created again since: their offsets mean other records now.

        Nothing more is committed of these and of deleted topics. `topics` also lacks topics whose nodes are unreadable.
        """
        unknown = {partition.topic for partition in self._owned.claims if partition.topic not in topics}
        present = await self._owners.incarnations(unknown)
        recreated = []
        for partition, claim in self._owned.claims.items():
            topic = topics.get(partition.topic)
            present_one = topic.incarnation if topic is not None else present.get(partition.topic)
            if claim.progress.incarnation != present_one:
                claim.progress.retired = True
                if topic is not None:
                    recreated.append(partition)
        return recreated

    async def sweep(self) -> None:
        """Remove what an interrupted rebalance or a lost claim has left: closed claims, owner nodes without claim."""
        # Claims that are lost during these requests stay for the next sweep, as `closed` is what was closed before. No
        # partition becomes doubtful meanwhile: looks and claims, which make them so, are of the task that sweeps. If a
        # request fails, all of this is done again.
        closed = [claim for claim in self._owned.claims.values() if not claim.progress.open]
        await self._listener.lost([claim.topic_partition for claim in closed])
        await self._committer.close([claim.progress for claim in closed])
        left = {claim.topic_partition for claim in closed} | self._owned.doubtful
        for partition in left:
            self._watches.unguard(self._paths.owner(partition))
        await together([self._owners.abandon(partition) for partition in left])
        for claim in closed:
            self._owned.forget(claim)
        self._owned.doubtful.clear()

    async def open(
        self, wanted: Mapping[TopicPartition, ConsumerThreadId], topics: Mapping[str, Topic]
    ) -> dict[TopicPartition, Blocked | ClaimRefused | KzConsumerError]:
        """Claim each partition by itself and begin to fetch it; returns why others failed.

        Raises SessionExpiredError.
        """
        await self._listener.lost(self._owned.claims.keys() & wanted.keys())  # since the last sweep
        await self._owners.prepare({partition.topic for partition in wanted})
        self._owned.doubtful.update(wanted)  # until the outcome of each is known
        results = await outcomes(
            [self._owners.claim(p, thread, topics[p.topic].incarnation) for p, thread in wanted.items()]
        )
        failed: dict[TopicPartition, Blocked | ClaimRefused | KzConsumerError] = {}
        claims = []
        claimed = {p.topic for p, result in zip(wanted, results, strict=True) if isinstance(result, Claimed)}
        # Read after the claims: a claim of a topic that is the same now was made while it was.
        present = await repeated(partial(self._owners.incarnations, claimed))
        for partition, result in zip(wanted, results, strict=True):
            incarnation = topics[partition.topic].incarnation
            if isinstance(result, SessionExpiredError):
                raise result
            if not isinstance(result, Claimed):
                failed[partition] = result
                if not isinstance(result, KzConsumerError) or isinstance(result, NotPermittedError):
                    self._owned.doubtful.discard(partition)  # a sweep would fail at its closed nodes, again and again
            elif present.get(partition.topic) != incarnation:
                failed[partition] = TopicChangedError(partition.topic)  # the next sweep deletes the owner node
            else:
                claims.append((partition, incarnation, result))
        begun, refused = [], []
        for (partition, *_), each in zip(claims, await self._adopter.adopt(claims), strict=True):
            if each.refusal:
                failed[partition] = ClaimRefused(self._paths.claim_record(partition), each.refusal)
                refused.append(each.claimed.fence)
            else:
                owner = each.claimed.fence.owner
                begun.append(self._owned.begin(partition, wanted[partition], owner, each.progress, each.position))
        await outcomes([self._owners.release(fence) for fence in refused])  # the next sweep retries
        self._owned.doubtful.difference_update(claim.topic_partition for claim in begun)
        await self._owned.guard(begun)
        with self._owned.unreported(begun):
            await self._listener.assigned([claim.topic_partition for claim in begun])
        return failed

    async def move(self, moves: Mapping[TopicPartition, ConsumerThreadId]) -> None:
        """Continue partitions on other streams of this member: drained and committed, but never without an owner."""
        until = anyio.current_time() + self.revoke_deadline
        await self._as_drained(self._owned.open(moves), until, partial(self._move, moves=moves))

    async def _move(self, drained: list[OwnedPartition], moves: Mapping[TopicPartition, ConsumerThreadId]) -> None:
        begun = []
        for claim, committed in (await self._close(drained)).items():
            thread = moves[claim.topic_partition]
            self._watches.unguard(claim.owner.path)
            if committed.record.plan is not None:
                # Only a new claim finds out whether the range was written, and replays it if not.
                self._committer.lose(claim.progress, "a planned range was not written in time")
                continue
            # Meanwhile the application may acknowledge more, if its work was not waited for any longer. `going_on` and
            # `processed`, which are read afterwards, have it, and as it is more than what is stored, the next commit
            # stores it. Somebody else may delete the owner node: then the fence does not hold, and the claim is lost.
            try:
                fence = await self._owners.change_thread(committed.fence, thread)
            except ZooKeeperError as error:
                self._committer.lose(claim.progress, str(error))
                continue
            old = claim.progress
            progress = old.going_on()
            self._committer.open(progress, msgspec.structs.replace(committed, fence=fence))
            resume = None if committed.offset is None else old.processed
            old.close()  # unfinished work is dropped: its records are redelivered on the other stream
            begun.append(self._owned.begin(claim.topic_partition, thread, fence.owner, progress, resume))
        self._fetchers.start(claim.fetch for claim in begun)
        await self._owned.guard(begun)

    async def release(self, partitions: Collection[TopicPartition]) -> None:
        """Release partitions for another member, each as soon as the work on it has ended."""
        until = anyio.current_time() + self.revoke_deadline
        await self._as_drained(self._owned.open(partitions), until, partial(self._release, until=until))
        self._fetchers.merge()

    async def _as_drained(
        self, claims: Collection[OwnedPartition], until: float, end: Callable[[list[OwnedPartition]], Awaitable[None]]
    ) -> None:
        """`end` each as soon as the work on it has ended. Raises what the first raised that did, when all are ended."""
        # ZooKeeper may refuse the end of one while the work on another is in hand. The next rebalance sweeps what is
        # closed and not released, without waiting for work. So the other one is waited for, and ended, here.
        failed: KzConsumerError | None = None
        async for drained in drained_claims(claims, until):
            try:
                await end(drained)
            except SessionExpiredError:
                raise
            except KzConsumerError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def _release(self, drained: list[OwnedPartition], until: float) -> None:
        # The end of an ownership, in this order:
        # 1. Nothing more is handed out, and the work in hand has ended or was given up at `until` (`drained_claims`,
        #    before this).
        # 2. The final commit. Until it is made no other member may begin: the new owner reads the stored offset when it
        #    claims, and would begin too early, at records that were processed here.
        # 3. The guard on our owner node is dropped: the deletion is our own, and not a loss.
        # 4. The owner node is deleted. If it were deleted before 1 is over, two members would deliver the partition.
        # Between 2 and 4 another program may take the partition only by deleting our node; then the release is refused,
        # as the fence does not hold, and nothing is left to do.
        with anyio.CancelScope(deadline=until + LEAST_FOR_LISTENER):
            await self._report_end(drained)
        leaving = await self._close(drained)
        for claim in leaving:
            self._watches.unguard(claim.owner.path)
        withdrawn = await self._withdrawn(leaving)
        for claim in withdrawn:
            event, stored = "stored offset of a deleted topic removed", leaving[claim].offset
            log.warning(event, **claim.topic_partition._asdict(), stored=stored)
        releases = [self._delete_owner(claim, at, withdrawn.get(claim)) for claim, at in leaving.items()]
        results = await outcomes(releases)
        for claim, result in zip(leaving, results, strict=True):
            if not isinstance(result, KzConsumerError):
                self._owned.forget(claim)
        for result in results:
            if isinstance(result, KzConsumerError):
                raise result

    async def _delete_owner(self, claim: OwnedPartition, at: CommittedPosition, withdrawn: Delete | None) -> None:
        if not await self._owners.release(at.fence, withdrawn):
            await self._owners.abandon(claim.topic_partition)  # it stands if only its claim record was deleted

    async def _withdrawn(self, leaving: Mapping[OwnedPartition, CommittedPosition]) -> dict[OwnedPartition, Delete]:
        """The stored offsets of deleted topics, which a new topic of that name would begin at."""
        # If it cannot be asked which topics there are, these claims are closed and not released: the sweep deletes
        # their owner nodes and leaves the offsets. The next claim knows them by its record (`is_of_earlier_topic`),
        # also those that were stored when the new topic was there already.
        retired = {claim: at for claim, at in leaving.items() if claim.progress.retired and at.version >= 0}
        there = await self._owners.incarnations({claim.topic_partition.topic for claim in retired})
        return {
            claim: Delete(self._paths.offset(claim.topic_partition), at.version)
            for claim, at in retired.items()
            if there.get(claim.topic_partition.topic) != claim.progress.incarnation
        }

    async def settle(self, patience: float) -> None:
        """Hand out nothing more, and wait up to `patience` seconds until what is handed out is acknowledged."""
        # Also of those whose release was under way when the member began to leave.
        ours = [claim for claim in self._owned.claims.values() if not claim.progress.lost]
        async for _ in drained_claims(ours, anyio.current_time() + patience):
            pass

    async def report_leaving(self) -> None:
        """Report to the listener what ends because the member leaves, whether a release is under way or not."""
        await self._report_end(list(self._owned.claims.values()))

    async def _report_end(self, claims: Collection[OwnedPartition]) -> None:
        """Report each as lost, if it was while its release waited, or as revoked."""
        await self._listener.lost([claim.topic_partition for claim in claims if claim.progress.lost])
        await self._listener.revoked([claim.topic_partition for claim in claims])  # what was reported is left out

    async def lose_all(self) -> None:
        """The session has expired, and every claim with it."""
        lost = list(self._owned.claims)  # also those lost just before, which no sweep has reported yet
        self._owned.close_all()
        await self._listener.lost(lost)

    async def _close(self, claims: Collection[OwnedPartition]) -> dict[OwnedPartition, CommittedPosition]:
        """The final commit of claims. Returns those that are still ours."""
        committed = await self._committer.close([claim.progress for claim in claims])
        return {claim: committed[claim.progress] for claim in claims if claim.progress in committed}


async def drained_claims(claims: Iterable[OwnedPartition], until: float) -> AsyncGenerator[list[OwnedPartition], None]:
    """Hand out nothing more of these claims; yield them in batches as the work on each ends.

    At `until`, in seconds of the event loop's clock, the rest is yielded with its work unfinished.
    """
    busy = dict.fromkeys(claims)  # in their order
    ended: list[OwnedPartition] = []
    change = anyio.Event()

    def done(claim: OwnedPartition) -> None:
        if claim in busy:
            del busy[claim]
            ended.append(claim)
            change.set()

    for claim in list(busy):
        claim.progress.close(partial(done, claim))
    while busy or ended:
        if not ended:
            with anyio.CancelScope(deadline=until):
                await change.wait()
        if not ended:
            for claim in busy:
                log.warning(
                    "work not finished in time, its records will be redelivered",
                    **claim.topic_partition._asdict(),
                    first=claim.progress.processed,
                    until=claim.progress.consumed,
                )
            ended.extend(busy)
            busy.clear()
        part, ended, change = ended, [], anyio.Event()
        yield part
