"""The claims of one membership: opened, moved, released and lost in batches.

Owns which partitions are ours, each with its owner node, tracker and fetch state, from claim to release. The rebalancer
sweeps, opens, moves and releases; a lost claim is closed at once, by whoever finds it lost, and the next sweep clears
up. The order at the end of a claim is the invariant: nothing more is handed out, what is in hand may end, commit,
release. Committing later would let the new owner start behind; releasing earlier would let two members deliver the
same partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import anyio
import msgspec
import structlog

from kzconsumer.errors import KzConsumerError, NotOwned, SessionExpired, ZooKeeperError
from kzconsumer.fetcher.fetcher_manager import FetcherManager
from kzconsumer.fetcher.partition_state import PartitionFetchState
from kzconsumer.group.claim import Claim, settled_parts
from kzconsumer.group.listener import ListenerCalls
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.adopter import Adopter
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.position import Position
from kzconsumer.offsets.storage import Committed
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.registry.claim_record import Plan
from kzconsumer.registry.nodes import Topic
from kzconsumer.registry.owners import OwnerRegistry
from kzconsumer.registry.ownership import Blocked, Claimed, OwnerNode, Refused
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.streams.kafka_stream import KafkaStream
from kzconsumer.zookeeper.round_trips import outcomes, repeated, together
from kzconsumer.zookeeper.session import Delete, Stat
from kzconsumer.zookeeper.watches import Watches

log = structlog.get_logger("kzconsumer.group")

# Most seconds that a partition that must go waits, beside original members, for the work in hand and for the listener:
# an original tries four times, 2 s apart, and then gives up; this leaves it two of the four.
REVOKE_DEADLINE_WITH_ORIGINALS = 3.5
# What a listener gets even when the work in hand has used the deadline up.
LEAST_FOR_LISTENER = 0.5


class Claims:
    """Which partitions are ours."""

    def __init__(
        self,
        owners: OwnerRegistry,
        adopter: Adopter,
        watches: Watches,
        paths: GroupPaths,
        committer: Committer,
        fetchers: FetcherManager,
        streams: Mapping[tuple[str | None, int], KafkaStream],
        fetch_bytes: int,
        paused: Collection[TopicPartition],
        listener: ListenerCalls,
    ) -> None:
        """`paused` is kept by the connector, for a pause outlives claims."""
        self._owners = owners
        self._adopter = adopter
        self._watches = watches
        self._paths = paths
        self._committer = committer
        self._fetchers = fetchers
        self._streams = streams
        self._fetch_bytes = fetch_bytes
        self._paused = paused
        self._listener = listener
        self._claims: dict[TopicPartition, Claim] = {}
        self.revoke_deadline = REVOKE_DEADLINE_WITH_ORIGINALS  # set by the rebalancer, who knows whom we share with
        self._doubtful: set[TopicPartition] = set()  # an owner node may have been made without a claim

    def __repr__(self) -> str:
        return f"<Claims {len(self._claims)} of {len({claim.thread for claim in self._claims.values()})} threads>"

    @property
    def held(self) -> dict[TopicPartition, ConsumerThreadId]:
        """The open claims."""
        return {partition: claim.thread for partition, claim in self._claims.items() if claim.tracker.open}

    async def outdated(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        """Open claims of a topic that was deleted and created again since: their positions mean other records.

        Of these, and of topics that do not exist, nothing is committed any more. `topics` lacks those whose nodes
        cannot be read, too.
        """
        unknown = {partition.topic for partition in self._claims if partition.topic not in topics}
        present = await self._owners.incarnations(unknown)
        recreated = []
        for partition, claim in self._claims.items():
            topic = topics.get(partition.topic)
            present_one = topic.incarnation if topic is not None else present.get(partition.topic)
            if claim.tracker.incarnation != present_one:
                claim.tracker.retired = True
                if topic is not None:
                    recreated.append(partition)
        return recreated

    def positions(self) -> list[Position]:
        """Every owned partition's positions, as they are now."""
        self._checkpoint()
        return [
            Position(
                topic=partition.topic,
                partition=partition.partition,
                thread=str(claim.thread),
                fetched=claim.fetch.position,
                consumed=claim.tracker.consumed,
                processed=claim.tracker.processed,
                committed=self._committer.committed(claim.tracker),
                high_watermark=claim.fetch.high_watermark,
                paused=claim.tracker.paused,
                incarnation=claim.tracker.incarnation,
                stop=claim.fetch.stop,
                led=not self._fetchers.seeks_leader(claim.fetch),
                leader=self._fetchers.leader_of(claim.fetch),
                queue_full=not claim.fetch.queue.has_room,
                failed=claim.fetch.failed,
            )
            for partition, claim in sorted(self._claims.items())
            if claim.tracker.open
        ]

    async def sweep(self) -> None:
        """Finish what an attempt that broke off, or the loss of a claim, has left: closed claims, nodes without one."""
        closed = [claim for claim in self._claims.values() if not claim.tracker.open]
        await self._listener.lost([claim.topic_partition for claim in closed])
        await self._committer.close([claim.tracker for claim in closed])
        left = {claim.topic_partition for claim in closed} | self._doubtful
        for partition in left:
            self._watches.unguard(self._paths.owner(partition))
        await together([self._owners.abandon(partition) for partition in left])
        for claim in closed:
            self._forget(claim)
        self._doubtful.clear()

    async def open(
        self, wanted: Mapping[TopicPartition, ConsumerThreadId], topics: Mapping[str, Topic]
    ) -> dict[TopicPartition, Blocked | Refused | KzConsumerError]:
        """Claim what can be claimed and begin to fetch it; returns what stood in the way of the rest.

        Each partition is claimed for itself: one that is blocked costs the group no other. Raises SessionExpired.
        """
        await self._listener.lost(self._claims.keys() & wanted.keys())  # since the last sweep
        self._doubtful.update(wanted)  # until it is known what became of each
        results = await outcomes(
            [self._owners.claim(p, thread, topics[p.topic].incarnation) for p, thread in wanted.items()]
        )
        failed: dict[TopicPartition, Blocked | Refused | KzConsumerError] = {}
        claims = []
        for partition, result in zip(wanted, results, strict=True):
            if isinstance(result, SessionExpired):
                raise result
            if isinstance(result, Claimed):
                claims.append((partition, topics[partition.topic].incarnation, result))
                continue
            failed[partition] = result
            if not isinstance(result, KzConsumerError):
                self._doubtful.discard(partition)
        begun, refused = [], []
        for (partition, *_), each in zip(claims, await self._adopter.adopt(claims), strict=True):
            if each.refusal:
                failed[partition] = Refused(self._paths.claim_record(partition), each.refusal)
                refused.append(each.claimed.fence)
            else:
                owner = each.claimed.fence.owner
                begun.append(self._begin(partition, wanted[partition], owner, each.tracker, each.position))
        await outcomes([self._owners.release(fence) for fence in refused])  # what is left of it the next sweep finds
        self._doubtful.difference_update(claim.topic_partition for claim in begun)
        await self._guard(begun)
        await self._listener.assigned([claim.topic_partition for claim in begun])
        self._fetchers.start(claim.fetch for claim in begun)
        return failed

    async def move(self, moves: Mapping[TopicPartition, ConsumerThreadId]) -> None:
        """Let partitions go on under other threads of ours: settled and committed, but never without owner."""
        async for settled in settled_parts(self._open(moves), anyio.current_time() + self.revoke_deadline):
            await self._move(settled, moves)

    async def _move(self, settled: list[Claim], moves: Mapping[TopicPartition, ConsumerThreadId]) -> None:
        begun = []
        for claim, committed in (await self._close(settled)).items():
            thread = moves[claim.topic_partition]
            self._watches.unguard(claim.owner.path)
            if committed.record.plan is not None:
                # Only the next claim finds out what has become of the range; it replays it if need be.
                self._committer.lose(claim.tracker, "a planned range was not written in time")
                continue
            try:
                fence = await self._owners.change_thread(committed.fence, thread)
            except ZooKeeperError as error:
                self._committer.lose(claim.tracker, str(error))
                continue
            old = claim.tracker
            tracker = OffsetTracker(claim.topic_partition, old.processed, incarnation=old.incarnation, epoch=old.epoch)
            self._committer.open(tracker, msgspec.structs.replace(committed, fence=fence))
            resume = None if committed.offset is None else old.processed
            old.close()  # work that did not end in time is given up: its records come again on the other stream
            begun.append(self._begin(claim.topic_partition, thread, fence.owner, tracker, resume))
        self._fetchers.start(claim.fetch for claim in begun)
        await self._guard(begun)

    async def release(self, partitions: Collection[TopicPartition]) -> None:
        """Give partitions up for another member, each as soon as the work on it has ended."""
        until = anyio.current_time() + self.revoke_deadline
        async for settled in settled_parts(self._open(partitions), until):
            await self._release(settled, until)

    async def _release(self, settled: list[Claim], until: float) -> None:
        with anyio.CancelScope(deadline=until + LEAST_FOR_LISTENER):
            await self._listener.revoked([claim.topic_partition for claim in settled])
        leaving = await self._close(settled)
        for claim in leaving:
            self._watches.unguard(claim.owner.path)
        withdrawn = await self._withdrawn(leaving)
        for claim in withdrawn:
            event = "topic is gone: its stored offset was removed"
            log.warning(event, **claim.topic_partition._asdict(), stored=leaving[claim].offset)
        results = await outcomes([self._owners.release(at.fence, withdrawn.get(each)) for each, at in leaving.items()])
        for claim, result in zip(leaving, results, strict=True):
            if not isinstance(result, KzConsumerError):
                self._forget(claim)
        for result in results:
            if isinstance(result, KzConsumerError):
                raise result

    async def _withdrawn(self, leaving: Mapping[Claim, Committed]) -> dict[Claim, Delete]:
        """The stored offsets of topics that are gone: one that we stored late would be taken for the next topic's."""
        retired = {claim: at for claim, at in leaving.items() if claim.tracker.retired and at.version >= 0}
        there = await self._owners.incarnations({claim.topic_partition.topic for claim in retired})
        return {
            claim: Delete(self._paths.offset(claim.topic_partition), at.version)
            for claim, at in retired.items()
            if there.get(claim.topic_partition.topic) != claim.tracker.incarnation
        }

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch and hand out nothing more of those that are ours."""
        for claim in self._open(partitions):
            if not claim.tracker.paused:
                claim.tracker.paused = True
                self._stream(claim.topic_partition, claim.thread).pause(claim.tracker)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        for claim in self._open(partitions):
            if claim.tracker.paused:
                claim.tracker.paused = False
                self._stream(claim.topic_partition, claim.thread).resume(claim.tracker)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at an offset, which is stored first. What is in hand is marked no more. Raises NotOwned."""
        for claim in self._open([partition]):
            old = claim.tracker
            tracker = OffsetTracker(partition, offset, incarnation=old.incarnation, epoch=old.epoch)
            old.close()
            self._committer.replace(old, tracker)
            begun = self._begin(partition, claim.thread, claim.owner, tracker, offset)
            try:
                await self._guard([begun])
                if await self._committer.store_start(tracker, offset):
                    return
            finally:
                # Also when that was given up: we still own the partition, and the next commit stores where it begins.
                self._fetchers.start([begun.fetch])
            if self._open([partition]):
                return  # a later seek goes on elsewhere
        raise NotOwned(partition)

    async def plan(self, plans: Mapping[OffsetTracker, Plan]) -> Collection[OffsetTracker]:
        """Have these ranges stand as in flight; returns the claims that are still ours."""
        return await self._committer.plan(plans)

    async def record_step(self, trackers: Collection[OffsetTracker], step: str) -> Collection[OffsetTracker]:
        """Have the plans of these ranges say that a step is done; returns the claims that are still ours."""
        return await self._committer.record_step(trackers, step)

    async def go_on(self, replayed: OffsetTracker) -> None:
        """Fetch on behind a range that has been replayed and committed. Nothing happens to a claim that was lost."""
        claim = self._claims.get(replayed.topic_partition)
        if claim is None or claim.tracker is not replayed or not replayed.open:
            return
        tracker = OffsetTracker(
            claim.topic_partition, replayed.processed, incarnation=replayed.incarnation, epoch=replayed.epoch
        )
        tracker.written = replayed.written  # its commit may have failed: the next one says so, too
        replayed.close()
        self._committer.replace(replayed, tracker)
        begun = self._begin(claim.topic_partition, claim.thread, claim.owner, tracker, tracker.processed)
        try:
            await self._guard([begun])
        finally:
            self._fetchers.start([begun.fetch])

    async def verify(self) -> None:
        """Look at every owner node of ours: a claim without one is closed at once."""
        held = self._open(self._claims)
        stats = await together([self._owners.stat(claim.owner) for claim in held])
        for claim, stat in zip(held, stats, strict=True):
            if not self._owners.is_ours(stat, claim.owner):
                self._touched(claim)

    def unfetched(self) -> list[TopicPartition]:
        """Open claims that nobody fetches, though no error has ended them."""
        return [
            partition
            for partition, claim in self._claims.items()
            if claim.tracker.open and not claim.fetch.failed and claim.fetch not in self._fetchers
        ]

    def repair(self, partition: TopicPartition) -> None:
        """Fetch a claim again; an owner node that no claim stands for goes with the next sweep."""
        claim = self._claims.get(partition)
        if claim is None:
            self._doubtful.add(partition)
        elif claim.tracker.open:
            self._fetchers.start([claim.fetch])

    async def settle(self, patience: float) -> None:
        """Hand out nothing more of anything, and let what is handed out be acknowledged, for so many seconds."""
        async for _ in settled_parts(self._open(self._claims), anyio.current_time() + patience):
            pass

    async def tell_leaving(self) -> None:
        """The member leaves, its streams have ended: of what is ours, a release under way or not, and what was lost."""
        lost = {partition for partition, claim in self._claims.items() if claim.tracker.lost}
        await self._listener.lost(lost)
        await self._listener.revoked(self._claims.keys() - lost)

    async def lose_all(self) -> None:
        """The session is gone, and every claim with it."""
        lost = list(self._claims)  # also those found lost just before, which no sweep has told of yet
        self.close_all()
        await self._listener.lost(lost)

    async def commit(self) -> None:
        """Store what is processed. A claim that turns out to be lost is closed at once."""
        self._checkpoint()
        await self._committer.commit()

    def close_all(self) -> None:
        """The membership ended: nothing that still holds a chunk of ours may deliver it."""
        for claim in self._claims.values():
            claim.tracker.close()
        self._claims.clear()

    def _begin(
        self,
        partition: TopicPartition,
        thread: ConsumerThreadId,
        owner: OwnerNode,
        tracker: OffsetTracker,
        position: int | None,
    ) -> Claim:
        stream = self._stream(partition, thread)
        tracker.paused = partition in self._paused
        tracker.when_closed(lambda: stream.drop(tracker))
        claim = Claim(partition, thread, owner, PartitionFetchState(tracker, stream.queue, position, self._fetch_bytes))
        self._claims[partition] = claim
        return claim

    def _stream(self, partition: TopicPartition, thread: ConsumerThreadId) -> KafkaStream:
        # A white or black list has one set of streams for all its topics.
        return self._streams.get((partition.topic, thread.thread)) or self._streams[None, thread.thread]

    async def _guard(self, begun: list[Claim]) -> None:
        """Whoever touches an owner node of ours, from now on or since the claim, ends that claim."""
        stats = await together([repeated(partial(self._watch_owner, claim)) for claim in begun])
        for claim, stat in zip(begun, stats, strict=True):
            if not self._owners.is_ours(stat, claim.owner):
                self._touched(claim)

    async def _watch_owner(self, claim: Claim) -> Stat | None:
        return await self._watches.guard(claim.owner.path, partial(self._touched, claim))

    def _touched(self, claim: Claim) -> None:
        if claim.tracker.open:
            self._committer.lose(claim.tracker, "its owner node was changed or deleted")

    async def _close(self, claims: Collection[Claim]) -> dict[Claim, Committed]:
        """Commit for the last time. Returns the claims that are still ours."""
        committed = await self._committer.close([claim.tracker for claim in claims])
        return {claim: committed[claim.tracker] for claim in claims if claim.tracker in committed}

    def _open(self, partitions: Collection[TopicPartition]) -> list[Claim]:
        return [claim for p in partitions if (claim := self._claims.get(p)) is not None and claim.tracker.open]

    def _checkpoint(self) -> None:
        for stream in self._streams.values():
            stream.checkpoint()

    def _forget(self, claim: Claim) -> None:
        claim.tracker.close()  # work that did not end in time is given up: the next owner may be doing it
        self._committer.forget(claim.tracker)
        if self._claims.get(claim.topic_partition) is claim:
            del self._claims[claim.topic_partition]
