"""One membership: everything that lives as long as one ZooKeeper session, from registration to the final commit.

`Member.__init__` builds every object of it. `sessions` runs one membership for each session; streams and connections to
brokers outlive it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import anyio
import msgspec

from kzconsumer.assignors import Assignor
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import EARLIEST, ISOLATION_LEVELS, LATEST, ListedOffset
from kzconsumer.clock import now
from kzconsumer.counters import Attempts, Counters
from kzconsumer.end_offsets import EndOffsets, owned_finished, run_finished
from kzconsumer.errors import (
    CoordinatorError,
    KzConsumerError,
    NotFoundError,
    SessionExpiredError,
    UnfitError,
    ZooKeeperError,
)
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy
from kzconsumer.fetcher.fetch_rules import FetchForm
from kzconsumer.fetcher.fetcher_manager import FetcherManager
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.fetcher.record_times import RecordTimes
from kzconsumer.group.assignment import GroupSnapshot
from kzconsumer.group.claim_and_release import Claimer
from kzconsumer.group.group_overview import Overview
from kzconsumer.group.membership import ConsumerRegistry, Membership, SnapshotReader
from kzconsumer.group.owned_partitions import OwnedPartitions
from kzconsumer.group.rebalance_listener import ListenerCalls
from kzconsumer.group.rebalancer import Rebalancer, RebalanceTrigger
from kzconsumer.group.reconciler import Notices, Reconciler
from kzconsumer.lag.partition import Why
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import ConsumerThreadId, OffsetRange, TopicPartition
from kzconsumer.offsets.claim_start import Adopter
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.progress import Message, Progress
from kzconsumer.offsets.start_rules import Authority, SinkDestination
from kzconsumer.offsets.storage import KafkaOffsetStorage, OffsetStorage, ZooKeeperOffsetStorage
from kzconsumer.records.forms import ColumnRecords
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.cluster import ClusterView, bootstrap
from kzconsumer.registry.group_records import Registration
from kzconsumer.registry.node_topics import OwnCluster
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.runs import Runs
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.interface import RangeData
from kzconsumer.streams.cursor import StreamCursor
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches

log = get_logger("kzconsumer")

_LOST: Final = "partitions were lost"


class ConnectorState(msgspec.Struct, frozen=True, kw_only=True):
    """What outlives a session: `Sessions` makes it once, and each of its memberships uses it."""

    consumer: str
    cursors: Mapping[tuple[str | None, int], StreamCursor]
    paused: Collection[TopicPartition]
    brokers: Brokers
    own_cluster: OwnCluster
    read: FetchForm
    destination: SinkDestination | None
    end_offsets: EndOffsets | None
    assignor: Assignor
    listener: ListenerCalls
    counters: Counters
    joined: anyio.Event
    """Set after the first rebalance."""
    finished: anyio.Event
    """Set when all the ends that `end_offsets` sets are reached."""
    leaving: anyio.Event
    """Once it is set, the membership ends in order, and no other follows."""


class MemberParts(NamedTuple):
    """What a member has built and others may look at: the observer, and tests that make faults happen."""

    trigger: RebalanceTrigger
    watches: Watches
    fetchers: FetcherManager


class Unsuccessful(NamedTuple):
    since: float
    """`kzconsumer.clock`"""
    reason: str


class Member:
    """`run` it once; it ends in order when `leaving` of the state is set."""

    def __init__(
        self,
        session: ZooKeeperSession,
        settings: Settings,
        registration: Registration,
        state: ConnectorState,
    ) -> None:
        self._session = session
        self._settings = settings
        self._state = state
        self._reconfigured = anyio.Event()
        self._fetching = anyio.CancelScope()
        self._settling = anyio.CancelScope()
        self._patience = 0.0  # seconds that leaving waits for acknowledgements of what is handed out
        self.left_uncommitted = False
        """Whether the final commit failed: what was processed since the previous one will be redelivered."""
        self._stopping_since = math.inf
        self._commits_at_end = False

        group = settings.group
        brokers, destination, end_offsets = state.brokers, state.destination, state.end_offsets
        paths = GroupPaths(group.id)
        trigger = RebalanceTrigger()
        cluster = ClusterView(session, settings, brokers, trigger.fire)
        watches, topics, leaders = cluster.watches, cluster.topics, cluster.leaders
        consumers = ConsumerRegistry(session, watches, paths)
        self._topics, self._brokers = topics, brokers
        fingerprint = destination.fingerprint if destination is not None else ""
        isolation = settings.fetch.isolation
        owners = OwnerRegistry(session, paths, group.assignor, fingerprint, isolation, topics=topics, watches=watches)
        level, timeout = ISOLATION_LEVELS[isolation], settings.fetch.request_timeout
        authority = Authority.of(settings.offsets, replayable=destination is not None)
        nodes = ZooKeeperOffsetStorage(session, paths)
        uses_brokers = authority is not Authority.ZOOKEEPER
        coordinator = GroupCoordinator(group.id, topics, brokers, timeout) if uses_brokers else None
        in_brokers = coordinator if authority is Authority.KAFKA else None
        storage: OffsetStorage = nodes if in_brokers is None else KafkaOffsetStorage(session, in_brokers)
        copies = coordinator if authority.copies else None
        self.committer = committer = Committer(storage, trigger.fire, state.counters.commits, copies)
        truncated = settings.offsets.truncated if destination is not None else None
        set_aside = destination.set_aside if destination is not None else None
        reset = OffsetReset(
            settings.offsets.reset, committer, timeout, level, truncated, set_aside, self._lose_recreated
        )
        self.notices = notices = Notices(registration)
        self._log_offsets = cluster.logs(level)
        self._record_times = RecordTimes(leaders, brokers, timeout)
        self.overview = Overview(owners, in_brokers or nodes, self._log_offsets)
        self._fetchers = FetcherManager(
            leaders,
            brokers,
            settings.fetch,
            reset,
            state.read,
            self._log_offsets,
            end_offsets,
            state.counters,
            settings.brokers.client_rack or "",
        )
        self.owned = OwnedPartitions(
            owners, watches, committer, self._fetchers, state.cursors, settings.fetch.max_bytes, state.paused
        )
        self._claims = Claimer(
            self.owned,
            owners,
            Adopter(committer, destination, refuses_loss=reset.refuses, authority=authority, coordinator=coordinator),
            watches,
            paths,
            committer,
            self._fetchers,
            state.listener,
        )
        self._runs: Runs | None = None
        if end_offsets is not None and end_offsets.of_the_group and settings.subscription.stop_at is not None:
            self._runs = Runs(ClusterView(session, settings, brokers), registration, replayable=destination is not None)
        self._membership = Membership(session, consumers, paths, state.consumer, registration)
        self.parts = MemberParts(trigger, watches, self._fetchers)
        self._rebalancer = Rebalancer(
            membership=self._membership,
            reader=SnapshotReader(
                consumers, topics, watches, paths, ignore_unreadable=group.unreadable_members == "ignore"
            ),
            topics=topics,
            brokers=brokers,
            own_cluster=state.own_cluster,
            watches=watches,
            owned=self.owned,
            claims=self._claims,
            trigger=trigger,
            assignor=state.assignor,
            keep=group.ownership == "keep",
            revoke_deadline=group.revoke_deadline,
            listener=state.listener,
            notices=notices,
            reconciler=Reconciler(
                session=session,
                consumer=state.consumer,
                consumers=consumers,
                owners=owners,
                storage=nodes,
                owned=self.owned,
                leaders=leaders,
                notices=notices,
                interval=group.reconcile_interval,
                unowned_alarm=group.unowned_alarm,
            ),
            counters=state.counters.rebalances,
        )

    @property
    def group(self) -> tuple[GroupSnapshot, Mapping[TopicPartition, ConsumerThreadId]] | None:
        """The group as the last rebalance has read it, and its assignment; None before the first rebalance."""
        snapshot = self._rebalancer.snapshot
        return None if snapshot is None else (snapshot, self._rebalancer.assigned)

    @property
    def misplaced(self) -> Mapping[TopicPartition, str]:
        """See `Misplaced.lasting`."""
        return self._rebalancer.misplaced

    @property
    def waits_for(self) -> str | None:
        """What it waits for before its first rebalance is complete; None after it."""
        if self._rebalancer.rebalanced_once.is_set() and self._rebalancer.snapshot is not None:
            return None
        return self._membership.waits_for or self._rebalancer.failure or "the first rebalance"

    async def run(self) -> None:
        """Until `leaving`, an expired session or a failure. Raises an exception group."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._fetch)
                tasks.start_soon(self._join)
                tasks.start_soon(self._topics.poll)
                tasks.start_soon(self._commit_periodically)
                tasks.start_soon(self._report_hanging)
                tasks.start_soon(self._raise_on_expiry)
                if self._state.end_offsets is not None:
                    tasks.start_soon(self._finish, self._state.end_offsets)
                await self._state.leaving.wait()
                self._stopping_since = min(self._stopping_since, now())
                tasks.cancel_scope.cancel()  # fetching and rebalancing end before the final commit
            for cursor in self._state.cursors.values():
                cursor.close()
            if self._patience:
                await self._claims.settle(self._patience)
            await self._final_commit()
        except* SessionExpiredError:
            self._commits_at_end = True  # it cannot, and says so
            if self._leaves_uncommitted():
                self._log_uncommitted("session expired")
            await self._claims.lose_all()
            raise
        except* UnfitError:
            # Nothing is wrong with the session, so the work in hand is waited for as at a release: other members would
            # do it again. A stop ends the wait.
            with self._settling:
                await self._claims.settle(self._claims.revoke_deadline)
            await self._final_commit()
            raise
        except* Exception:
            await self._final_commit()
            raise
        finally:
            # Cancelled before the final commit: the deadline of the stop had passed when the member was to leave, as
            # that of a process that was suspended meanwhile.
            if not self._commits_at_end and self._leaves_uncommitted():
                self._log_uncommitted("no time left")
            self.owned.close_all()

    def leave(self, patience: float) -> None:
        """Before `leaving` is set: `patience` seconds are for acknowledgements. A wait for work in hand ends."""
        self._patience = patience
        self._settling.cancel()

    async def bootstrap(self) -> str:
        """See `registry.cluster.bootstrap`."""
        return await bootstrap(self._topics, self._brokers)

    async def message(self, partition: TopicPartition, offset: int) -> Message | None:
        """Fetch one record; None if the log does not have it. Raises as `RangeReader.read`."""
        from kzconsumer.fetcher.range_reader import RangeReader  # loads Arrow, which most members need not

        reader = RangeReader(self._settings.fetch, self._topics, self._brokers)
        async with aclosing(reader.read([OffsetRange(*partition, offset, offset + 1)])) as found:
            async for _, records in found:
                return next(iter(ColumnRecords(records).messages()), None)
        return None

    async def fetched(self, part: RangeData) -> RangeData:
        """The range with its records. Raises as `RangeReader.read`, and as `CorruptPolicy.way_over`."""
        from kzconsumer.fetcher.range_reader import RangeReader  # as above

        settings = self._settings.fetch
        reader = RangeReader(settings, self._topics, self._brokers, on_corrupt=CorruptPolicy(settings))
        async with aclosing(reader.read(part.spans)) as found:
            pieces = [ColumnRecords(records) async for _, records in found]
        return msgspec.structs.replace(part, pieces=tuple(pieces), left_out=()).without(part.left_out)

    async def log_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        """See `brokers.leaders.LogOffsets.look_up`. Raises NotFoundError for a partition that does not exist."""
        return await self._log_offsets.look_up(times, self._topics.require)

    async def log_bounds(
        self, partitions: Collection[TopicPartition], within: float
    ) -> dict[TopicPartition, tuple[ListedOffset, ListedOffset] | KzConsumerError]:
        """Where each log begins and ends, or why that is unknown, after `within` seconds at the latest."""
        found: dict[TopicPartition, tuple[ListedOffset, ListedOffset] | KzConsumerError] = {}
        by_topic: dict[str, list[TopicPartition]] = {}
        for partition in partitions:
            by_topic.setdefault(partition.topic, []).append(partition)
        try:
            for led in by_topic.values():
                found |= await self._missing(led)  # brokers before 0.11 create a topic that is named
            rest = [each for each in partitions if each not in found]
            if rest:
                begins = await self._log_offsets.once(dict.fromkeys(rest, EARLIEST), within=within / 2)
                ends = await self._log_offsets.once(dict.fromkeys(rest, LATEST), within=within / 2)
                for partition in rest:
                    begin, end = begins[partition], ends[partition]
                    if not isinstance(begin, ListedOffset):
                        found[partition] = begin
                    else:
                        found[partition] = (begin, end) if isinstance(end, ListedOffset) else end
        except KzConsumerError as error:
            found |= dict.fromkeys((each for each in partitions if each not in found), error)
        return found

    async def _missing(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, NotFoundError]:
        """Those of one topic that do not exist."""
        try:
            await self._topics.require(partitions)
        except NotFoundError as error:
            if len(partitions) == 1:
                return {partitions[0]: error}
            found = [await self._missing([each]) for each in partitions]  # others of the topic may exist
            return {each: why for one in found for each, why in one.items()}
        return {}

    async def written(self, positions: Mapping[TopicPartition, int], within: float) -> dict[TopicPartition, int | Why]:
        """See `fetcher.record_times.RecordTimes.written`. For partitions that exist."""
        return await self._record_times.written(positions, within=within)

    def reconfigure(self, settings: Settings) -> None:
        self._settings = settings
        self._fetchers.limit(settings.fetch.rate_limit)
        self._reconfigured.set()
        self._reconfigured = anyio.Event()

    def stop_fetching(self, since: float = math.inf) -> None:
        """Ask the brokers for nothing more: a stop has begun, now or at `since`. What is queued may still be taken."""
        self._stopping_since = min(self._stopping_since, now(), since)
        self._fetching.cancel()

    async def _lose_recreated(self, claims: Sequence[Progress]) -> None:
        await self.owned.lose_recreated(claims)

    async def _fetch(self) -> None:
        with self._fetching:
            await self._fetchers.run()

    async def _join(self) -> None:
        await self._membership.join()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._rebalancer.run)
            await self._rebalancer.rebalanced_once.wait()
            self._state.joined.set()

    async def _commit_periodically(self) -> None:
        while True:
            with anyio.move_on_after(self._settings.offsets.commit_interval):
                await self._reconfigured.wait()
            try:
                await self.owned.commit()
            except (CoordinatorError, ZooKeeperError) as error:
                log.error("periodic commit failed, the next one retries", reason=str(error), again=True)

    async def _report_hanging(self) -> None:
        """What hangs raises nothing that could be logged."""
        counters = self._state.counters
        while True:
            limit = self._settings.status.stalled_after
            with anyio.move_on_after(limit):
                await self._reconfigured.wait()
                continue
            for event, found, attempts in (
                ("commit hangs, offsets are not stored", self.commits_fail, counters.commits.attempts),
                ("rebalance hangs", self.rebalances_fail, counters.rebalances.attempts),
            ):
                began = attempts.under_way_since
                if found is not None and began is not None and now() - began >= limit:
                    log.error(event, seconds=round(now() - began), reason=found.reason)

    @property
    def commits_fail(self) -> Unsuccessful | None:
        """Since when no commit has succeeded; None if one has within `[status] stalled_after`, or had no reason to."""
        return self._unsuccessful(self._state.counters.commits.attempts, self._settings.status.stalled_after)

    @property
    def rebalances_fail(self) -> Unsuccessful | None:
        """The same of rebalances, which may have to wait for work in hand."""
        limit = self._settings.status.stalled_after + self._settings.group.revoke_deadline
        return self._unsuccessful(self._state.counters.rebalances.attempts, limit)

    def _unsuccessful(self, attempts: Attempts, limit: float) -> Unsuccessful | None:
        since, began = attempts.unsuccessful_since, attempts.under_way_since
        if since is None or now() - since < limit:
            return None
        silent = self._session.why_unanswered(began) if began is not None else None
        return Unsuccessful(since, silent or attempts.failure or "no answer")

    async def _finish(self, end_offsets: EndOffsets) -> None:
        """End the streams when all has been processed up to its end: what is owned, or all of the group's run."""
        positions = self.owned.positions
        if self._runs is None:
            await owned_finished(end_offsets, positions, lambda: self._rebalancer.settled)
        else:
            await run_finished(end_offsets, self._runs, positions, self.owned.commit, self._fetchers.look_for_ends)
        self._state.finished.set()
        for cursor in self._state.cursors.values():
            cursor.close()

    async def _raise_on_expiry(self) -> None:
        await self._session.wait_expired()
        raise SessionExpiredError("expired by the server")

    async def _final_commit(self) -> None:
        """Commit before the session is closed, which releases the partitions.

        The listener gets a time limit of its own, so that a slow one costs no commit.
        """
        self._commits_at_end = True
        patience = self._settings.stop.deadline / 3 if self._session.trusted() else 1.0
        try:
            with anyio.move_on_after(patience):
                await self._claims.report_leaving()
        finally:  # also when the listener raises
            await self._commit_within(patience)

    async def _commit_within(self, patience: float) -> None:
        reason: object = "no time left"
        try:
            with anyio.fail_after(patience):
                await self.owned.commit()
                reason = None
        except TimeoutError:
            reason = "no answer from ZooKeeper"
        except (SessionExpiredError, CoordinatorError, ZooKeeperError) as error:
            reason = error
        finally:
            # A commit that was given up had perhaps nothing to store.
            if isinstance(reason, Exception) or (reason and (self.committer.pending or self._leaves_uncommitted())):
                self._log_uncommitted(reason)
            elif self._lost_work:
                self._log_uncommitted(_LOST)

    @property
    def _lost_work(self) -> bool:
        """Whether partitions were lost during the stop before their work was committed.

        Servers announce the end of a session by its owner nodes: each claim may be lost before the session is. There is
        nothing left to commit then, and no commit fails.
        """
        return self.committer.lost_work_at >= self._stopping_since

    def _leaves_uncommitted(self) -> bool:
        """At the end of the session. During a stop what is in hand counts, too: the sink is closed, and may have it."""
        stopping = now() >= self._stopping_since
        return self._lost_work or any(
            at.committed is not None and at.committed < (at.consumed if stopping else at.processed)
            for at in self.owned.positions()
        )

    def _log_uncommitted(self, reason: object) -> None:
        self.left_uncommitted = True
        self._state.counters.commits.attempts.failed(str(reason), now())
        log.error("final commit failed: records since the previous commit will be redelivered", reason=str(reason))
