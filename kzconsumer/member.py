"""One membership: everything that lives as long as one ZooKeeper session, from registration to the last commit.

Every object of it is built in one visible place, `Member.__init__`. The connector makes one for each session and runs
it; streams and connections to brokers outlive it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import anyio
import structlog

from kzconsumer.assignors.interface import Assignor
from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.log_offsets import LogOffsets
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.fetch import ISOLATION_LEVELS
from kzconsumer.counters import Tallies
from kzconsumer.errors import (
    BrokersUnreachable,
    ConnectionLost,
    CoordinatorFailed,
    SessionExpired,
    UnsupportedVersion,
    ZooKeeperError,
)
from kzconsumer.fetcher.fetcher_manager import FetcherManager
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.fetcher.reading import Reading
from kzconsumer.group.claims import Claims
from kzconsumer.group.listener import ListenerCalls
from kzconsumer.group.membership import Membership
from kzconsumer.group.notices import Notices
from kzconsumer.group.rebalancer import Rebalancer
from kzconsumer.group.reconciler import Reconciler
from kzconsumer.group.snapshot import GroupSnapshot
from kzconsumer.group.snapshot_reader import SnapshotReader
from kzconsumer.group.trigger import RebalanceTrigger
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.adopter import Adopter
from kzconsumer.offsets.authority import Authority
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.destination import Destination
from kzconsumer.offsets.kafka_storage import KafkaOffsetStorage
from kzconsumer.offsets.position import Position
from kzconsumer.offsets.storage import OffsetStorage
from kzconsumer.offsets.zookeeper_storage import ZooKeeperOffsetStorage
from kzconsumer.registry.members import ConsumerRegistry
from kzconsumer.registry.owners import OwnerRegistry
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.registration import Registration
from kzconsumer.registry.topics import TopicRegistry
from kzconsumer.runs.end_offsets import Stops
from kzconsumer.runs.runs import Runs
from kzconsumer.settings.settings import Settings
from kzconsumer.streams.kafka_stream import KafkaStream
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches

log = structlog.get_logger("kzconsumer")

# Between two looks whether everything is done, in seconds: many tell how far they are, nobody that all are.
FINISHED_LOOK = 0.1
# The same for a run of the group, which ZooKeeper is asked about.
RUN_LOOK = 0.5


class Member:
    """`run` it once. It sets `joined` after the first rebalance, `finished` when it is at all ends that `stops` sets.

    `leaving` makes it end in order.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        settings: Settings,
        *,
        consumer: str,
        registration: Registration,
        streams: Mapping[tuple[str | None, int], KafkaStream],
        paused: Collection[TopicPartition],
        brokers: Brokers,
        read: Reading,
        destination: Destination | None,
        stops: Stops | None,
        assignor: Assignor,
        listener: ListenerCalls,
        joined: anyio.Event,
        finished: anyio.Event,
        leaving: anyio.Event,
        tallies: Tallies,
    ) -> None:
        self._session = session
        self._settings = settings
        self._streams = streams
        self._stops = stops
        self._joined = joined
        self._finished = finished
        self._leaving = leaving
        self._reconfigured = anyio.Event()
        self._fetching = anyio.CancelScope()
        self.patience = 0.0
        """Seconds that leaving waits for what is handed out to be acknowledged."""
        self.left_uncommitted = False
        """Whether the last commit could not be made: what was processed since the one before comes again."""

        group = settings.group
        paths = GroupPaths(group.id)
        trigger = RebalanceTrigger()
        watches = Watches(session, trigger.fire)
        consumers = ConsumerRegistry(session, watches, paths)
        topics = TopicRegistry(session, watches, settings.brokers)
        self._topics, self._brokers = topics, brokers
        fingerprint = destination.fingerprint if destination is not None else ""
        owners = OwnerRegistry(session, paths, group.assignor, fingerprint, settings.fetch.isolation)
        isolation, timeout = ISOLATION_LEVELS[settings.fetch.isolation], settings.fetch.request_timeout
        authority = Authority.of(settings.offsets, replayable=destination is not None)
        nodes = ZooKeeperOffsetStorage(session, paths)
        storage: OffsetStorage = nodes
        coordinator = None
        if authority is not Authority.ZOOKEEPER:
            coordinator = GroupCoordinator(group.id, topics, brokers, timeout)
            if authority is Authority.KAFKA:
                storage = KafkaOffsetStorage(session, coordinator)
        copies = coordinator if authority.copies else None
        self.committer = committer = Committer(storage, trigger.fire, tallies.commits, copies)
        truncated = settings.offsets.truncated if destination is not None else None
        reset = OffsetReset(settings.offsets.reset, committer, timeout, isolation, truncated)
        notices = Notices(registration)
        leaders = Leaders(topics, brokers, timeout)
        self.log_offsets = LogOffsets(leaders, brokers, timeout, isolation)
        self._fetchers = FetcherManager(leaders, brokers, settings.fetch, reset, read, self.log_offsets, stops, tallies)
        self.claims = Claims(
            owners,
            Adopter(committer, destination, refuses_loss=reset.refuses, authority=authority, coordinator=coordinator),
            watches,
            paths,
            committer,
            self._fetchers,
            streams,
            settings.fetch.max_bytes,
            paused,
            listener,
        )
        self._runs: Runs | None = None
        if stops is not None and stops.of_the_group and settings.subscription.stop_at is not None:
            replayable = destination is not None
            self._runs = Runs(session, settings, registration, leaders, brokers, replayable=replayable)
        self._membership = Membership(session, consumers, paths, consumer, registration)
        self._rebalancer = Rebalancer(
            membership=self._membership,
            reader=SnapshotReader(
                consumers, topics, watches, paths, ignore_unreadable=group.unreadable_members == "ignore"
            ),
            topics=topics,
            watches=watches,
            claims=self.claims,
            trigger=trigger,
            assignor_name=group.assignor,
            assignor=assignor,
            keep=group.ownership == "keep",
            revoke_deadline=group.revoke_deadline,
            listener=listener,
            notices=notices,
            reconciler=Reconciler(
                session=session,
                consumer=consumer,
                consumers=consumers,
                owners=owners,
                storage=nodes,
                claims=self.claims,
                leaders=leaders,
                notices=notices,
                interval=group.reconcile_interval,
                unowned_alarm=group.unowned_alarm,
            ),
            tally=tallies.rebalances,
        )

    def __repr__(self) -> str:
        return f"<Member {self._membership} {self.claims}>"

    @property
    def group(self) -> tuple[GroupSnapshot, Mapping[TopicPartition, ConsumerThreadId]] | None:
        """The group as the last rebalance has read it, and who should own what; None before the first."""
        snapshot = self._rebalancer.snapshot
        return None if snapshot is None else (snapshot, self._rebalancer.assigned)

    async def run(self) -> None:
        """Until `leaving`, the end of the session or a failure. Raises an exception group."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._fetch)
                tasks.start_soon(self._join)
                tasks.start_soon(self._commit_periodically)
                tasks.start_soon(self._raise_on_expiry)
                if self._stops is not None:
                    tasks.start_soon(self._finish, self._stops)
                await self._leaving.wait()
                tasks.cancel_scope.cancel()  # fetching and rebalancing end before the last commit
            for stream in self._streams.values():
                stream.close()
            if self.patience:
                await self.claims.settle(self.patience)
            await self._commit_at_last()
        except* SessionExpired:
            if any(at.committed is not None and at.committed < at.processed for at in self.claims.positions()):
                self._tell_uncommitted("the session is over")
            await self.claims.lose_all()
            raise
        except* Exception:
            await self._commit_at_last()
            raise
        finally:
            self.claims.close_all()

    async def bootstrap(self) -> str:
        """Where the brokers are, as librdkafka wants it. Raises KzConsumerError when none of them keeps headers."""
        found = await self._topics.brokers()
        for broker in found:
            connection = await self._brokers.connection(broker)
            if not connection.versions.keep_headers:
                raise UnsupportedVersion(
                    f"{broker} keeps no headers (before Kafka 0.11), so no dead letters: set [rejected] directory"
                )
            return ",".join(f"[{at.host}]:{at.port}" if ":" in at.host else f"{at.host}:{at.port}" for at in found)
        raise BrokersUnreachable("none is up")

    def reconfigure(self, settings: Settings) -> None:
        self._settings = settings
        self._fetchers.limit(settings.fetch.rate_limit)
        self._reconfigured.set()
        self._reconfigured = anyio.Event()

    def stop_fetching(self) -> None:
        """Ask the brokers for nothing more; what is queued may still be taken."""
        self._fetching.cancel()

    async def _fetch(self) -> None:
        with self._fetching:
            await self._fetchers.run()

    async def _join(self) -> None:
        await self._membership.join()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._rebalancer.run)
            await self._rebalancer.rebalanced_once.wait()
            self._joined.set()

    async def _commit_periodically(self) -> None:
        while True:
            with anyio.move_on_after(self._settings.offsets.commit_interval):
                await self._reconfigured.wait()
            try:
                await self.claims.commit()
            except (CoordinatorFailed, ZooKeeperError) as error:
                log.error("periodic commit failed, trying again at the next", reason=str(error), again=True)

    async def _finish(self, stops: Stops) -> None:
        """End the streams when all has been processed up to its end: what is ours, or all of the group's run."""
        if self._runs is not None:
            await self._end_of_run(self._runs, stops)
        else:
            await self._end_of_ours(stops)
        self._finished.set()
        for stream in self._streams.values():
            stream.close()

    async def _end_of_ours(self, stops: Stops) -> None:
        while True:
            await anyio.sleep(FINISHED_LOOK)
            if self._rebalancer.settled and all(self._at_its_end(stops, at) for at in self.claims.positions()):
                break
        log.info("everything is processed up to its end", partitions=len(self.claims.held))

    async def _end_of_run(self, runs: Runs, stops: Stops) -> None:
        """A member with nothing to do, or nothing more, waits for the others: it may have to take over from them."""
        run = stops.run or await runs.join()
        while True:
            if run != stops.run:
                stops.begin(run)
                self._fetchers.look_for_ends()
            if run.finished is not None:
                return
            await anyio.sleep(RUN_LOOK)
            try:
                ready = (at for at in self.claims.positions() if self._at_its_end(stops, at))
                if any((at.committed or 0) < at.processed for at in ready):
                    await self.claims.commit()
                run = await runs.look(run)
            except (ConnectionLost, CoordinatorFailed, ZooKeeperError) as error:
                log.warning("cannot look how far the run is", reason=str(error))

    @staticmethod
    def _at_its_end(stops: Stops, at: Position) -> bool:
        return stops.passed(at.topic_partition, at.incarnation, at.processed)

    async def _raise_on_expiry(self) -> None:
        await self._session.wait_expired()
        raise SessionExpired("the server ended it")

    async def _commit_at_last(self) -> None:
        """Before the session is closed, which releases; without a trusted one there is only so long to wait for it.

        The listener has as long for itself: a slow one costs no commit.
        """
        patience = self._settings.stop.deadline / 3 if self._session.trusted() else 1.0
        try:
            with anyio.move_on_after(patience):
                await self.claims.tell_leaving()
        finally:  # also when the listener raises
            await self._commit_within(patience)

    async def _commit_within(self, patience: float) -> None:
        reason: object = "there was no time left for it"
        try:
            with anyio.fail_after(patience):
                await self.claims.commit()
                reason = None
        except TimeoutError:
            reason = "ZooKeeper does not answer"
        except (SessionExpired, CoordinatorFailed, ZooKeeperError) as error:
            reason = error
        finally:
            if reason is not None:
                self._tell_uncommitted(reason)

    def _tell_uncommitted(self, reason: object) -> None:
        self.left_uncommitted = True
        log.error("the last commit was not made: records since the one before come again", reason=str(reason))
