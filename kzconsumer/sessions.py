"""The ZooKeeper sessions of a member, one after another, each with one membership (`member`).

Here is what outlives a session: streams, connections to brokers, lease, pauses and dead letters. Lifetimes nest: these
sessions > one session > membership > claims > fetching. They end in the opposite order.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import cast

import anyio
import msgspec
from anyio.abc import TaskGroup

from kzconsumer.assignors import Assignor
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import ISOLATION_LEVELS, ListedOffset
from kzconsumer.brokers.transport import load_security
from kzconsumer.clock import now
from kzconsumer.counters import Counters
from kzconsumer.end_offsets import EndOffsets
from kzconsumer.errors import (
    ConnectionLostError,
    KzConsumerError,
    OtherClusterError,
    SessionExpiredError,
    UnfitError,
    sole_cause,
)
from kzconsumer.fetcher.fetch_rules import Looking, decoding
from kzconsumer.group.assignment import assignment
from kzconsumer.group.fitness import ELSEWHERE, HoldDown
from kzconsumer.group.membership import new_consumer_id
from kzconsumer.group.rebalance_listener import ListenerCalls, RebalanceListener
from kzconsumer.lag.partition import Why
from kzconsumer.lag.write_times import FetchedTimes
from kzconsumer.logs.logger import facts, get_logger
from kzconsumer.member import ConnectorState, Member
from kzconsumer.model import TopicPartition, Wants, checked_offset
from kzconsumer.offsets.progress import Message, Position, Progress
from kzconsumer.offsets.start_rules import SinkDestination, require_storage
from kzconsumer.plugins import ASSIGNORS, described, load_chosen
from kzconsumer.registry.claim_record import Plan, Spans
from kzconsumer.registry.cluster import ClusterView, open_session
from kzconsumer.registry.group_records import GroupRun, Registration
from kzconsumer.registry.node_topics import OwnCluster, id_of_cluster
from kzconsumer.rejected import rejects_of
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.interface import RangeData
from kzconsumer.streams.cursor import StreamCursor
from kzconsumer.zookeeper.credentials import load_access
from kzconsumer.zookeeper.server_choice import FormerSession
from kzconsumer.zookeeper.session import Lease, ZooKeeperSession

log = get_logger("kzconsumer")


class Sessions:
    """Enter `running`, then `join` once. Implements `sinks.range_plans.OwnedRanges` by the present membership."""

    def __init__(
        self,
        settings: Settings,
        *,
        consumer: str | None = None,
        listener: RebalanceListener | None = None,
        lease: Lease | None = None,
        wants: Wants = "columns",
        destination: SinkDestination | None = None,
        stop_at: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """`consumer`: the id to register, by default a new one. `wants`: the form of the records in the queues,
        `destination` that of a replayable sink.

        Raises PluginError, and ConfigError if offsets must be in ZooKeeper but would not be.
        """
        self.settings = settings
        self.consumer = consumer or new_consumer_id(settings.group.id, settings.group.consumer_id)
        self.lease = lease or Lease()
        self.listener = ListenerCalls(listener)
        self.counters = Counters()
        self.rejects = rejects_of(settings, lambda: self._present().bootstrap(), self.counters.rejected)
        self.published = ""
        """The address of its status page that the registration names."""
        self.cursors: dict[tuple[str | None, int], StreamCursor] = {}
        """Of the streams, by topic (None: of a filter) and thread."""
        self.paused: set[TopicPartition] = set()
        """Paused partitions, owned or not."""
        self.member: Member | None = None
        """The present membership; None between sessions."""
        self.finished = anyio.Event()
        """Set when everything is processed up to where `stop_at` says; the streams have ended then."""
        self.left_uncommitted = False
        """Whether the final commit of the last membership failed."""
        ends = None
        if stop_at is not None:
            ends = {TopicPartition.of(each): checked_offset(offset) for each, offset in stop_at.items()}
        in_run = stop_at is None and settings.subscription.stop_at is not None
        self._end_offsets = EndOffsets(ends) if ends is not None or in_run else None
        require_storage(settings, replayable=destination is not None, in_run=in_run)
        self._security = partial(load_security, settings.brokers, settings.source)
        timeout = settings.fetch.request_timeout
        self.brokers = Brokers(client_id=settings.group.id, timeout=timeout, security=self._security)
        self._tasks: TaskGroup
        self._session: ZooKeeperSession | None = None
        self._former: FormerSession | None = None
        self._let_in = False
        self._hold_down = HoldDown()
        self._away = 0.0  # seconds until the next attempt to join
        self._why_away = ""
        self._fetching = True
        self._joined = anyio.Event()
        self._leaving = anyio.Event()
        self._left = anyio.Event()
        self._connecting = anyio.CancelScope()
        # Shielded: a cancelled application still leaves in order, within the deadline that `leave` sets.
        self._scope = anyio.CancelScope(shield=True)
        looking = Looking(ISOLATION_LEVELS[settings.fetch.isolation], lambda: self.settings.batch.most(wants))
        read = looking if wants == "ranges" else decoding(settings.fetch.largest_body)
        name = settings.group.assignor
        assignor = cast(Assignor, load_chosen(ASSIGNORS, name, f"{settings.source}: [group] assignor"))
        self._state = ConnectorState(
            consumer=self.consumer,
            cursors=self.cursors,
            paused=self.paused,
            brokers=self.brokers,
            own_cluster=OwnCluster(),
            read=read,
            destination=destination,
            end_offsets=self._end_offsets,
            assignor=partial(assignment, described(ASSIGNORS, name), assignor),
            listener=self.listener,
            joined=self._joined,
            finished=self.finished,
            leaving=self._leaving,
            counters=self.counters,
        )

    @property
    def group_run(self) -> GroupRun | None:
        """The group's run that this member is in; None without `[subscription] stop_at`, and until it is known."""
        return self._end_offsets.run if self._end_offsets is not None else None

    @property
    def session(self) -> ZooKeeperSession | None:
        """The session that is begun, held or restored now; None between two."""
        return self._session

    @property
    def task_last_ran(self) -> float:
        """When the task that keeps the ZooKeeper session last ran; the present time without a session."""
        return self._session.task_last_ran if self._session is not None else now()

    @property
    def why_refused(self) -> str:
        """Why no ZooKeeper server is connected, by server; empty if one is."""
        return self._session.why_refused if self._session is not None else ""

    @property
    def postponed(self) -> bool:
        """ZooKeeper does not execute a request yet, though it is connected."""
        return self._session is not None and self._session.postponed is not None

    @property
    def waits_for(self) -> str | None:
        """See `Member.waits_for`; between two memberships `stays_out`, or None."""
        return self.member.waits_for if self.member is not None else self.stays_out or None

    @property
    def stays_out(self) -> str:
        """Why it does not join for a while, or lately did not; empty if it is a member, or is about to join."""
        return self._why_away and (self.why_refused or self._why_away)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Leaving the block commits what is processed and leaves the group. Raises as `consumer.connect`."""
        self._security()
        load_access(self.settings.zookeeper, self.settings.source)
        of_application: BaseException | None = None
        try:
            async with self.brokers, anyio.create_task_group() as self._tasks:
                try:
                    yield
                except BaseException as raised:
                    of_application = raised
                    raise
                finally:
                    with anyio.CancelScope(shield=True):
                        await self.leave()
                    self.rejects.close()
                    self._tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = sole_cause(group)
            ours = isinstance(error, KzConsumerError)
            if not ours and of_application is not None and group.exceptions == (of_application,):
                error = of_application  # as it is, also if it is a group
            raise error from error.__cause__

    async def join(self, registration: Registration, cursors: Mapping[tuple[str | None, int], StreamCursor]) -> None:
        """Join the group; returns after the first rebalance, or when the member has left before it."""
        if self.cursors:
            raise RuntimeError("streams can be created once per connector (MessageStreamsExist)")
        self.cursors.update(cursors)
        self._tasks.start_soon(self._run, msgspec.structs.replace(registration, status=self.published))
        await self._joined.wait()

    async def leave(self, patience: float = 0.0) -> None:
        """Commit and leave within `[stop] deadline`; `patience` seconds of it for acknowledgements. Idempotent."""
        if self.member is not None and not self._leaving.is_set():
            self.member.leave(patience)
        self._leaving.set()
        self._connecting.cancel()
        self._scope.deadline = min(self._scope.deadline, anyio.current_time() + self.settings.stop.deadline)
        if self.cursors and not self.listener.calling:
            await self._left.wait()

    def leave_within(self, seconds: float) -> None:
        """Replace the deadline of `leave`: after `seconds` whatever is not done is given up."""
        self._scope.deadline = anyio.current_time() + seconds

    def stop_fetching(self, since: float = math.inf) -> None:
        """Ask the brokers for nothing more; what is queued may still be taken. `since`: the stop's begin, if before."""
        self._fetching = False
        if self.member is not None:
            self.member.stop_fetching(since)

    def reconfigure(self, settings: Settings) -> None:
        """Apply `[offsets] commit_interval`, `[fetch] rate_limit`, `[batch]` and `[stop] deadline`.

        The rest must be the same.
        """
        self.settings = settings
        if self.member is not None:
            self.member.reconfigure(settings)

    def positions(self) -> list[Position]:
        """Every owned partition's positions; empty without a membership."""
        return self.member.owned.positions() if self.member is not None else []

    async def log_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        """Raises as `ConsumerConnector.offsets_for_times`."""
        if not self.cursors:
            raise RuntimeError("create the streams first: offsets are looked up as a member of the group")
        return await self._present().log_offsets(times)

    async def log_bounds(
        self, partitions: Collection[TopicPartition], within: float
    ) -> dict[TopicPartition, tuple[ListedOffset, ListedOffset] | KzConsumerError]:
        """See `Member.log_bounds`; empty between two memberships."""
        return await self.member.log_bounds(partitions, within) if self.member is not None else {}

    async def written(self, positions: Mapping[TopicPartition, int], within: float) -> dict[TopicPartition, int | Why]:
        """See `Member.written`; empty between two memberships."""
        return await self.member.written(positions, within) if self.member is not None else {}

    def fetched_times(self) -> dict[TopicPartition, FetchedTimes]:
        return self.member.owned.fetched_times() if self.member is not None else {}

    async def lose_recreated(self, owned: Collection[Progress]) -> None:
        if self.member is not None:
            await self.member.owned.lose_recreated(owned)

    async def plan(self, plans: Mapping[Progress, Plan]) -> Collection[Progress]:
        return await self.member.committer.plan(plans) if self.member is not None else ()

    async def record_step(self, owned: Collection[Progress], step: str) -> Collection[Progress]:
        return await self.member.committer.record_step(owned, step) if self.member is not None else ()

    async def record_rejected(self, offsets: Mapping[Progress, Spans]) -> Collection[Progress]:
        return await self.member.committer.record_rejected(offsets) if self.member is not None else ()

    def require_room(self, offsets: Mapping[Progress, Spans]) -> None:
        if self.member is not None:
            self.member.committer.require_room(offsets)

    async def record_contents(self, figures: Mapping[Progress, tuple[int, str]]) -> Collection[Progress]:
        return await self.member.committer.record_contents(figures) if self.member is not None else ()

    async def message(self, partition: TopicPartition, offset: int) -> Message | None:
        return await self._present().message(partition, offset)

    async def fetched(self, part: RangeData) -> RangeData:
        return await self._present().fetched(part)

    async def commit(self) -> None:
        if self.member is not None:
            await self.member.owned.commit()

    def require_membership(self) -> None:
        """Raises SessionExpiredError between two memberships: nothing that was handed out before is owned any more."""
        ends = self._leaving.is_set() or self.finished.is_set()
        if self.member is None and self._joined.is_set() and not ends:
            raise SessionExpiredError("not a member of the group at the moment")

    async def resume_after_replay(self, progress: Progress) -> None:
        if self.member is not None:
            await self.member.owned.resume_after_replay(progress)

    def _present(self) -> Member:
        if self.member is None:
            raise ConnectionLostError("not a member of the group at the moment")
        return self.member

    async def _run(self, registration: Registration) -> None:
        facts().update(group=self.settings.group.id, member=self.consumer)
        try:
            with self._scope:
                while self._fetching and not self._leaving.is_set() and not self.finished.is_set():
                    await self._run_session(registration)
                    if self._away:
                        log.info("waiting before the next attempt to join", seconds=self._away, again=True)
                        with anyio.move_on_after(self._away):
                            await self._leaving.wait()
                        self._away = 0.0
            # If left before the first rebalance. After a failure the task group cancels `join`.
            self._joined.set()
        finally:
            self._left.set()  # first: `leave` must not wait if the rest fails
            for cursor in self.cursors.values():
                cursor.close()

    async def _run_session(self, registration: Registration) -> None:
        async with AsyncExitStack() as exits:
            # If all servers refuse the first session, the settings are wrong, and the member ends. Once one was
            # accepted (`_let_in`) it keeps trying: the servers' passwords may be about to change, and a group must not
            # lose all its members by that.
            session = self._session = open_session(self.settings.zookeeper, insist=self._let_in)
            exits.callback(setattr, self, "_session", None)
            with anyio.CancelScope() as self._connecting:
                await exits.enter_async_context(session)
                self._let_in = True
                # 1. The server that ended the former session may be wrong: others may still have it, and its owner
                #    nodes, which would block our own claims. So it is closed first, once this is our cluster.
                # 2. After it was unfit, a broker has to accept a connection, before partitions are taken from members
                #    that can read them.
                # 3. The lease is this session's from then on: writers that wait for it continue. At the end it is taken
                #    away before the session is closed.
                try:
                    await self._require_own_cluster(session)
                    if self._former is not None:
                        await session.end_former(self._former)
                        self._former = None
                    if not await self._is_fit(session):
                        return
                except SessionExpiredError:
                    return
                except OtherClusterError as other:
                    self._stay_elsewhere(other)
                    return
            if self._connecting.cancelled_caught:
                return
            self.lease.set(session)
            exits.callback(self.lease.set, None)
            try:
                await self._be_member(session, registration)
            except* SessionExpiredError as expired:
                log.warning("session expired, joining again", reason=str(expired.exceptions[0]))
                self._former = session.former
            except* UnfitError as unfit:
                reason = str(sole_cause(unfit))
                log.error("left the group to members that can work", reason=reason)
                self._stay_out(reason, self._hold_down.begin(now()))
            except* OtherClusterError as other:
                self._stay_elsewhere(sole_cause(other))

    async def _be_member(self, session: ZooKeeperSession, registration: Registration) -> None:
        """One membership. Raises an exception group."""
        self._hold_down.end(now())
        self._why_away = ""
        self.member = Member(session, self.settings, registration, self._state)
        if not self._fetching:
            self.member.stop_fetching()
        try:
            await self.member.run()
        finally:
            self.left_uncommitted = self.member.left_uncommitted
            self.member = None

    async def _require_own_cluster(self, session: ZooKeeperSession) -> None:
        """Raises OtherClusterError, SessionExpiredError, ZooKeeperError."""
        while True:
            try:
                found = await id_of_cluster(session.find)
                break
            except ConnectionLostError:
                pass  # each question waits for a connection
        self._state.own_cluster.require(found)

    async def _is_fit(self, session: ZooKeeperSession) -> bool:
        """Whether a broker accepts a connection; checked only after the member was unfit.

        Raises SessionExpiredError.
        """
        if not self._hold_down.seconds:
            return True
        reason = await ClusterView(session, self.settings, self.brokers).unreachable()
        if reason is not None:
            log.warning("no broker is reachable, staying out of the group", reason=reason)
            self._stay_out(f"no broker is reachable: {reason}", self._hold_down.begin(now()))
        return reason is None

    def _stay_elsewhere(self, other: BaseException) -> None:
        log.error("another cluster, staying out of the group", reason=str(other), again=True)
        self._stay_out(str(other), ELSEWHERE)

    def _stay_out(self, reason: str, seconds: float) -> None:
        self._why_away, self._away = reason, seconds
