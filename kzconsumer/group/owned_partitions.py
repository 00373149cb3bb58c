"""The partitions that a member owns: their positions, commits, pauses, seeks and replays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

import anyio
import msgspec

from kzconsumer.errors import BrokersUnreachableError, ConnectionLostError, NotOwnedError, SessionExpiredError
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.fetcher_manager import FetcherManager
from kzconsumer.lag.write_times import FetchedTimes
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Position, Progress
from kzconsumer.registry.claim_record import OwnerNode
from kzconsumer.registry.claim_transactions import OwnerCounts, OwnerRegistry
from kzconsumer.streams.cursor import StreamCursor
from kzconsumer.zookeeper.operations import Stat
from kzconsumer.zookeeper.watches import Watches, repeated, together

log = get_logger("kzconsumer.group")

T = TypeVar("T")

# Seconds until brokers that did not answer are asked again.
PAUSE: Final = 1.0

# Nodes that are read together. The answers come in one turn of the event loop, for which records wait.
VERIFIED_AT_ONCE = 32


class OwnedPartition(msgspec.Struct, eq=False):
    """One partition owned by us. Its fence changes with each write of an offset, so the committer holds it."""

    topic_partition: TopicPartition
    thread: ConsumerThreadId
    owner: OwnerNode
    fetch: FetchState

    @property
    def progress(self) -> Progress:
        return self.fetch.progress


class OwnedPartitions:
    """The claims of one membership. `paused` is the connector's, since a pause outlives claims."""

    def __init__(
        self,
        owners: OwnerRegistry,
        watches: Watches,
        committer: Committer,
        fetchers: FetcherManager,
        cursors: Mapping[tuple[str | None, int], StreamCursor],
        fetch_bytes: int,
        paused: Collection[TopicPartition],
    ) -> None:
        self.claims: dict[TopicPartition, OwnedPartition] = {}
        """The open ones, and closed ones that are still to be released."""
        self.doubtful: set[TopicPartition] = set()
        """Partitions of which an owner node may exist without a claim."""
        self._owners = owners
        self._watches = watches
        self._committer = committer
        self._fetchers = fetchers
        self._cursors = cursors
        self._fetch_bytes = fetch_bytes
        self._paused = paused
        self._unreported: set[TopicPartition] = set()
        self._restarting: set[FetchState] = set()  # of claims that continue elsewhere, until that is stored
        self._counts: Mapping[str, OwnerCounts | None] = {}  # by topic, when all owner nodes of ours were read
        self._verified = 0  # how many of those that are as before were read in this turn

    @property
    def held(self) -> dict[TopicPartition, ConsumerThreadId]:
        """The open claims."""
        return {partition: claim.thread for partition, claim in self.claims.items() if claim.progress.open}

    def positions(self) -> list[Position]:
        """The positions of every owned partition."""
        self._checkpoint()
        rate_limited = self._fetchers.rate_limited  # of the member, not of one partition
        return [
            Position(
                topic=partition.topic,
                partition=partition.partition,
                thread=str(claim.thread),
                fetched=claim.fetch.position,
                consumed=claim.progress.consumed,
                processed=claim.progress.processed,
                committed=self._committer.committed(claim.progress),
                high_watermark=claim.fetch.high_watermark,
                paused=claim.progress.paused,
                incarnation=claim.progress.incarnation,
                end=claim.fetch.stop,
                led=not self._fetchers.seeks_leader(claim.fetch),
                leader=self._fetchers.leader_of(claim.fetch),
                queue_full=not claim.fetch.queue.has_room,
                verified=claim.fetch.verified,
                throttled=self._fetchers.throttled(claim.fetch),
                failed=claim.fetch.failed,
                high_watermark_at=claim.fetch.high_watermark_at,
                held_back=claim.fetch.held_back,
                rate_limited=rate_limited,
                hole_until=claim.fetch.empty.hole_until,
            )
            for partition, claim in sorted(self.claims.items())
            if claim.progress.open
        ]

    def fetched_times(self) -> dict[TopicPartition, FetchedTimes]:
        """The timestamps of the records that the open claims have fetched."""
        return {partition: claim.fetch.times for partition, claim in self.claims.items() if claim.progress.open}

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching and handing out those of them that are owned."""
        for claim in self.open(partitions):
            if not claim.progress.paused:
                claim.progress.paused = True
                self._cursor(claim.topic_partition, claim.thread).pause(claim.progress)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        for claim in self.open(partitions):
            if claim.progress.paused:
                claim.progress.paused = False
                self._cursor(claim.topic_partition, claim.thread).resume(claim.progress)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Store an offset and read on from there; what is in hand is no longer marked. Raises NotOwnedError."""
        for claim in self.open([partition]):
            old = claim.progress
            led = old.leader_epochs.before(offset)
            progress = Progress(partition, offset, incarnation=old.incarnation, epoch=old.epoch, leader_epoch=led)
            begun = self._restart(claim, progress)
            try:
                await self.guard([begun])
                if await self._committer.store_start(progress, offset, leader_epoch=led):
                    return
            finally:
                # Also after a failure: the partition is still ours, and the next commit stores where it begins.
                self._fetch([begun])
            if self.open([partition]):
                return  # a later seek continues elsewhere
        raise NotOwnedError(partition)

    async def resume_after_replay(self, replayed: Progress) -> None:
        """Read on behind a range that has been replayed and committed, unless the claim was lost."""
        claim = self.claims.get(replayed.topic_partition)
        if claim is None or claim.progress is not replayed or not replayed.open:
            return
        progress = replayed.going_on()  # if its commit failed, the next one stores what was written
        begun = self._restart(claim, progress)
        try:
            await self.guard([begun])
        finally:
            self._fetch([begun])

    async def lose_recreated(self, owned: Collection[Progress]) -> None:
        """Lose those of these claims whose topics were deleted and created again since; all if the session has expired.

        A topic that is missing loses none: what was read is of the topic that was deleted. Waits for a broker if topics
        come from brokers. Raises ZooKeeperError.
        """
        while not all(progress.lost for progress in owned):
            try:
                present = await self._owners.present({progress.topic_partition.topic for progress in owned})
            except ConnectionLostError:
                continue
            except BrokersUnreachableError as error:
                log.info("metadata unavailable", reason=str(error), again=True)
                await anyio.sleep(PAUSE)
                continue
            except SessionExpiredError:  # reported by `sessions`
                for progress in owned:
                    progress.close()
                return
            for progress in owned:
                known = progress.incarnation
                if not progress.lost and present.get(progress.topic_partition.topic, known) != known:
                    progress.retired = True
                    self._committer.lose(progress, "its topic was deleted and created again")
            return

    async def commit(self) -> None:
        """Store what is processed. A claim that turns out to be lost is closed at once."""
        self._checkpoint()
        await self._committer.commit()

    async def verify(self) -> None:
        """A claim whose owner node is missing, another session's or changed is lost. Of many nodes some are read."""
        # Watches report all of this; what they have missed is found here:
        # - An owner node that is missing, or was made again by another session. Either changes the counts of its
        #   container, and then all nodes of the topic are read. The counts are read first: what happens later changes
        #   them again. They are compared within one connection only, as a server that serves it does not go back in
        #   time. An ensemble that was restored from a copy may count once more what it had counted before.
        # - An owner node that was set, which leaves the counts as they are. Its version is half of the fence, so no
        #   commit passes it. Of these nodes a few are read, in turn.
        held = self.open(self.claims)
        counts: dict[str, OwnerCounts | None] = {}
        if len(held) > VERIFIED_AT_ONCE:
            for topics in _slices(sorted({claim.topic_partition.topic for claim in held})):
                read = await together([self._owners.counts(topic) for topic in topics])
                counts.update(zip(topics, read, strict=True))
        as_before = {topic for topic, found in counts.items() if found is not None and found == self._counts.get(topic)}
        known = [claim for claim in held if claim.topic_partition.topic in as_before]
        first = self._verified if self._verified < len(known) else 0
        self._verified = first + VERIFIED_AT_ONCE
        due = [claim for claim in held if claim.topic_partition.topic not in as_before]
        for some in _slices([*due, *known[first : self._verified]]):
            self._lose_changed(some, await together([self._owners.stat(claim.owner) for claim in some]))
        self._counts = counts

    def unfetched(self) -> list[TopicPartition]:
        """Open claims that are not fetched, though no error has ended them and no call is about to start them."""
        return [
            partition
            for partition, claim in self.claims.items()
            if claim.progress.open
            and not (claim.fetch.failed or claim.fetch in self._restarting or partition in self._unreported)
            and claim.fetch not in self._fetchers
        ]

    def repair(self, partition: TopicPartition) -> None:
        """Fetch a claim that is not fetched; an owner node without claim is removed by the next sweep."""
        claim = self.claims.get(partition)
        if claim is None:
            self.doubtful.add(partition)
        elif claim.progress.open:
            self._fetch([claim])

    @contextmanager
    def unreported(self, begun: Collection[OwnedPartition]) -> Iterator[None]:
        """Fetch nothing of these partitions inside the block, and all that are still owned after it.

        For the call of `on_assigned`. A `seek` in it restarts one partition while the others still wait for theirs, and
        an application that iterates its stream must not be given records of a partition that is not reported yet.
        """
        partitions = {claim.topic_partition for claim in begun}
        self._unreported |= partitions
        try:
            yield
        finally:
            self._unreported -= partitions
        self._fetch(self.open(partitions))  # after a seek it is another claim

    def _fetch(self, claims: Collection[OwnedPartition]) -> None:
        self._restarting.difference_update([claim.fetch for claim in claims])
        self._fetchers.start(claim.fetch for claim in claims if claim.topic_partition not in self._unreported)

    def open(self, partitions: Collection[TopicPartition]) -> list[OwnedPartition]:
        """Those of these partitions' claims that are open."""
        return [claim for p in partitions if (claim := self.claims.get(p)) is not None and claim.progress.open]

    def begin(
        self,
        partition: TopicPartition,
        thread: ConsumerThreadId,
        owner: OwnerNode,
        progress: Progress,
        position: int | None,
    ) -> OwnedPartition:
        """A claim whose records go to the stream of `thread`, read from `position` on; None: by the reset policy."""
        cursor = self._cursor(partition, thread)
        progress.paused = partition in self._paused
        progress.when_closed(cursor.drop)
        claim = OwnedPartition(
            partition, thread, owner, FetchState(progress, cursor.queue, position, self._fetch_bytes)
        )
        self.claims[partition] = claim
        return claim

    async def guard(self, begun: list[OwnedPartition]) -> None:
        """Watch the owner nodes: a claim whose node is changed or deleted, now or since it was made, is lost."""
        self._lose_changed(begun, await together([repeated(partial(self._watch_owner, claim)) for claim in begun]))

    def forget(self, claim: OwnedPartition) -> None:
        claim.progress.close()  # unfinished work is dropped: the next owner may be doing it
        self._committer.forget(claim.progress)
        if self.claims.get(claim.topic_partition) is claim:
            del self.claims[claim.topic_partition]

    def close_all(self) -> None:
        """The membership has ended: chunks that are still queued are not delivered any more."""
        for claim in self.claims.values():
            claim.progress.close()
        self.claims.clear()

    def _restart(self, claim: OwnedPartition, progress: Progress) -> OwnedPartition:
        """The same claim from the offset of its progress on; fetching is not started yet."""
        claim.progress.close()
        self._committer.replace(claim.progress, progress)
        begun = self.begin(claim.topic_partition, claim.thread, claim.owner, progress, progress.processed)
        self._restarting.add(begun.fetch)
        return begun

    def _checkpoint(self) -> None:
        for cursor in self._cursors.values():
            cursor.checkpoint()

    def _cursor(self, partition: TopicPartition, thread: ConsumerThreadId) -> StreamCursor:
        # A topic filter has one set of streams for all its topics.
        return self._cursors.get((partition.topic, thread.thread)) or self._cursors[None, thread.thread]

    def _lose_changed(self, claims: Sequence[OwnedPartition], stats: Sequence[Stat | None]) -> None:
        for claim, stat in zip(claims, stats, strict=True):
            if not self._owners.is_ours(stat, claim.owner):
                self._changed(claim)

    async def _watch_owner(self, claim: OwnedPartition) -> Stat | None:
        return await self._watches.guard(claim.owner.path, partial(self._changed, claim))

    def _changed(self, claim: OwnedPartition) -> None:
        if claim.progress.open:
            self._committer.lose(claim.progress, "its owner node was changed or deleted")


def _slices(of_all: Sequence[T]) -> Iterator[Sequence[T]]:
    """VERIFIED_AT_ONCE each."""
    return (of_all[first : first + VERIFIED_AT_ONCE] for first in range(0, len(of_all), VERIFIED_AT_ONCE))
