"""The claims of one membership: opened, moved, released and lost in batches.

Owns which partitions are ours, each with its fence, tracker and fetch state, from claim to release. The rebalancer
opens, moves and releases; a commit that finds a claim lost closes it here at once. The order at the end of a claim is
the invariant: nothing more is handed out, what is in hand may end, commit, release. Committing later would let the new
owner start behind; releasing earlier would let two members deliver the same partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import anyio
import msgspec
import structlog

from kzconsumer.errors import KzConsumerError, MultiFailed, SessionExpired
from kzconsumer.fetcher.fetcher_manager import FetcherManager
from kzconsumer.fetcher.partition_fetch_state import PartitionFetchState
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.streams.kafka_stream import KafkaStream
from kzconsumer.zookeeper.owner_registry import Blocked, Claimed, Fence, OwnerRegistry, Refused
from kzconsumer.zookeeper.round_trips import outcomes, together
from kzconsumer.zookeeper.znodes import Topic

log = structlog.get_logger("kzconsumer.group")

# How long a partition that must go waits for the work in hand. Original members give up after 8 s of waiting for it.
REVOKE_DEADLINE = 5.0


class Claim(msgspec.Struct, eq=False):
    """One partition owned by us."""

    topic_partition: TopicPartition
    thread: ConsumerThreadId
    fence: Fence
    fetch: PartitionFetchState

    @property
    def tracker(self) -> OffsetTracker:
        return self.fetch.tracker


class Position(msgspec.Struct, frozen=True):
    """How far one owned partition has come; None is "not known yet"."""

    topic: str
    partition: int
    thread: str
    fetched: int | None
    consumed: int
    processed: int
    committed: int | None
    high_watermark: int | None


class Claims:
    """Which partitions are ours."""

    def __init__(
        self,
        owners: OwnerRegistry,
        committer: Committer,
        fetchers: FetcherManager,
        streams: Mapping[tuple[str, int], KafkaStream],
        fetch_bytes: int,
    ) -> None:
        self._owners = owners
        self._committer = committer
        self._fetchers = fetchers
        self._streams = streams
        self._fetch_bytes = fetch_bytes
        self._claims: dict[TopicPartition, Claim] = {}

    def __repr__(self) -> str:
        return f"<Claims {len(self._claims)} of {len({claim.thread for claim in self._claims.values()})} threads>"

    @property
    def held(self) -> dict[TopicPartition, ConsumerThreadId]:
        return {partition: claim.thread for partition, claim in self._claims.items()}

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
            )
            for partition, claim in sorted(self._claims.items())
        ]

    async def open(
        self, wanted: Mapping[TopicPartition, ConsumerThreadId], topics: Mapping[str, Topic]
    ) -> dict[TopicPartition, Blocked | Refused | KzConsumerError]:
        """Claim what can be claimed and begin to fetch it; returns what stood in the way of the rest.

        Each partition is claimed for itself: one that is blocked costs the group no other. Raises SessionExpired.
        """
        results = await outcomes(
            [self._owners.claim(p, thread, topics[p.topic].incarnation) for p, thread in wanted.items()]
        )
        failed: dict[TopicPartition, Blocked | Refused | KzConsumerError] = {}
        begun = []
        for (partition, thread), result in zip(wanted.items(), results, strict=True):
            if isinstance(result, SessionExpired):
                raise result
            if not isinstance(result, Claimed):
                failed[partition] = result
                continue
            tracker = OffsetTracker(
                partition,
                result.stored or 0,
                incarnation=topics[partition.topic].incarnation,
                epoch=result.record.epoch,
            )
            self._committer.open(tracker, result.fence, result.stored, result.stored_version)
            begun.append(self._begin(partition, thread, result.fence, tracker, result.stored))
        self._fetchers.start(begun)
        return failed

    async def move(self, moves: Mapping[TopicPartition, ConsumerThreadId]) -> None:
        """Let partitions go on under other threads of ours: settled and committed, but never without owner."""
        leaving = await self._settle([self._claims[p] for p in moves if p in self._claims])
        begun = []
        for claim in leaving:
            thread = moves[claim.topic_partition]
            try:
                fence = await self._owners.change_thread(claim.fence, thread)
            except MultiFailed as error:
                self._lose(claim, str(error))
                continue
            old = claim.tracker
            tracker = OffsetTracker(claim.topic_partition, old.processed, incarnation=old.incarnation, epoch=old.epoch)
            self._committer.reopen(old, tracker, fence)
            resume = None if claim.fetch.position is None else old.processed
            begun.append(self._begin(claim.topic_partition, thread, fence, tracker, resume))
        self._fetchers.start(begun)

    async def release(self, partitions: Collection[TopicPartition]) -> None:
        """Give partitions up for another member."""
        leaving = await self._settle([self._claims[p] for p in partitions if p in self._claims])
        await together([self._owners.release(claim.fence) for claim in leaving])
        for claim in leaving:
            self._forget(claim)

    async def commit(self) -> None:
        """Store what is processed. A claim that turns out to be lost is closed at once."""
        self._checkpoint()
        self._close_lost(await self._committer.commit())

    def lose_all(self, reason: str) -> None:
        """The session is gone and every claim with it: hand out nothing more, write nothing."""
        for claim in list(self._claims.values()):
            self._lose(claim, reason)

    def close_all(self) -> None:
        """The membership ended: nothing that still holds a chunk of ours may deliver it."""
        for claim in self._claims.values():
            claim.tracker.close()
        self._claims.clear()

    def _begin(
        self,
        partition: TopicPartition,
        thread: ConsumerThreadId,
        fence: Fence,
        tracker: OffsetTracker,
        position: int | None,
    ) -> PartitionFetchState:
        queue = self._streams[partition.topic, thread.thread].queue
        fetch = PartitionFetchState(tracker, queue, position, self._fetch_bytes)
        self._claims[partition] = Claim(partition, thread, fence, fetch)
        return fetch

    async def _settle(self, leaving: list[Claim]) -> list[Claim]:
        """Hand out nothing more, wait for the work in hand, commit. Returns the claims that are still ours."""
        settled = anyio.Event()
        busy = set(leaving)

        def done(claim: Claim) -> None:
            busy.discard(claim)
            if not busy:
                settled.set()

        for claim in leaving:
            self._stream_of(claim).drop(claim.tracker)
            claim.tracker.close(lambda claim=claim: done(claim))  # type: ignore[misc]
        if busy:
            with anyio.move_on_after(REVOKE_DEADLINE):
                await settled.wait()
            for claim in busy:
                log.warning(
                    "work in hand did not end in time; its records will be delivered again",
                    partition=str(claim.topic_partition),
                    first=claim.tracker.processed,
                    until=claim.tracker.consumed,
                )
        self._close_lost(await self._committer.commit([claim.tracker for claim in leaving]))
        return [claim for claim in leaving if self._claims.get(claim.topic_partition) is claim]

    def _checkpoint(self) -> None:
        for stream in self._streams.values():
            stream.checkpoint()

    def _close_lost(self, lost: Mapping[OffsetTracker, str]) -> None:
        for tracker, reason in lost.items():
            claim = self._claims.get(tracker.topic_partition)
            if claim is not None and claim.tracker is tracker:
                self._lose(claim, reason)

    def _lose(self, claim: Claim, reason: str) -> None:
        log.warning("partition lost", partition=str(claim.topic_partition), reason=reason)
        self._stream_of(claim).drop(claim.tracker)
        claim.tracker.close()
        self._forget(claim)

    def _forget(self, claim: Claim) -> None:
        self._committer.forget(claim.tracker)
        if self._claims.get(claim.topic_partition) is claim:
            del self._claims[claim.topic_partition]

    def _stream_of(self, claim: Claim) -> KafkaStream:
        return self._streams[claim.topic_partition.topic, claim.thread.thread]
