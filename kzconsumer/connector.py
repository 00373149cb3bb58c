"""`kzconsumer.connect(settings)`: a member of the group, with the original's terms.

Owns the streams, the broker connections and which ZooKeeper session is the present one. Every object of a membership is
built in one visible function, `_member`. Lifetimes nest: connector > session > membership > claims > fetching; leaving
them in order is the shutdown order, for a stop and an expiry alike.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from kzconsumer.assignors.interface import Assignor
from kzconsumer.config import Settings
from kzconsumer.errors import SessionExpired, ZooKeeperError, sole_cause
from kzconsumer.fetcher.fetcher_manager import FetcherManager
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.group.claims import Claims
from kzconsumer.group.membership import Membership, new_consumer_id
from kzconsumer.group.position import Position
from kzconsumer.group.rebalance_listener import ListenerCalls, RebalanceListener
from kzconsumer.group.rebalance_trigger import RebalanceTrigger
from kzconsumer.group.rebalancer import Rebalancer
from kzconsumer.log import to_standard_error
from kzconsumer.network.brokers import Brokers
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.zookeeper_storage import ZooKeeperOffsetStorage
from kzconsumer.plugins import ASSIGNORS, load_chosen
from kzconsumer.records import decode
from kzconsumer.streams.chunk_queue import ByteBudget, ChunkQueue
from kzconsumer.streams.kafka_stream import KafkaStream
from kzconsumer.topic_filter import TopicFilter
from kzconsumer.zookeeper.consumer_registry import ConsumerRegistry
from kzconsumer.zookeeper.lease import Lease
from kzconsumer.zookeeper.owner_registry import OwnerRegistry
from kzconsumer.zookeeper.paths import GroupPaths
from kzconsumer.zookeeper.session import ConnectString, ZooKeeperSession
from kzconsumer.zookeeper.topic_registry import TopicRegistry
from kzconsumer.zookeeper.watches import Watches
from kzconsumer.zookeeper.znodes import STATIC, Registration

log = structlog.get_logger("kzconsumer")


class ConsumerConnector:
    """One member; use `connect`. Methods are called from the event loop that connected."""

    def __init__(
        self, settings: Settings, brokers: Brokers, tasks: TaskGroup, lease: Lease, listener: ListenerCalls
    ) -> None:
        self._settings = settings
        self._brokers = brokers
        self._tasks = tasks
        self._assignor = cast(
            Assignor, load_chosen(ASSIGNORS, settings.group.assignor, f"{settings.source}: [group] assignor")
        )
        self._paths = GroupPaths(settings.group.id)
        self._streams: dict[tuple[str | None, int], KafkaStream] = {}
        self._claims: Claims | None = None
        self._joined = anyio.Event()
        self._leaving = anyio.Event()
        self._left = anyio.Event()
        self._connecting = anyio.CancelScope()
        self._fetching = anyio.CancelScope()
        self._fetches = True
        # Shielded: a cancelled application still leaves in order, within the deadline that `leave` sets.
        self._sessions = anyio.CancelScope(shield=True)
        self.consumer = new_consumer_id(settings.group.id, settings.group.consumer_id)
        self._listener = listener
        self.lease = lease

    def __repr__(self) -> str:
        return f"<ConsumerConnector {self.consumer} {self._claims}>"

    async def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[KafkaStream]]:
        """Join the group with this many streams per topic; at most once per connector.

        Returns topic -> streams after the first rebalance, so what could be claimed at once is owned. Waits for
        ZooKeeper to come up, for as long as that takes. Topics that do not exist yet are picked up when they are made.
        Source: `ZookeeperConsumerConnector.createMessageStreams` (1.1.1).
        """
        if not isinstance(topics, Mapping) or not all(isinstance(number, int) for number in topics.values()):
            raise TypeError('topics are given as a mapping to numbers of streams, such as {"orders": 2}')
        if not topics or any(number < 1 for number in topics.values()):
            raise ValueError("each topic needs at least one stream")
        keys = [(topic, thread) for topic, number in topics.items() for thread in range(number)]
        await self._join_group(keys, Registration(STATIC, dict(topics), ours=True))
        return {topic: [self._streams[topic, n] for n in range(number)] for topic, number in topics.items()}

    async def create_message_streams_by_filter(self, topics: TopicFilter, streams: int = 1) -> list[KafkaStream]:
        """Join the group for every topic that a Whitelist or Blacklist allows, now or later; at most once.

        The streams are shared by all topics. Raises ValueError for an expression that Java would read otherwise.
        Source: `ZookeeperConsumerConnector.createMessageStreamsByFilter` (1.1.1).
        """
        if not isinstance(topics, TopicFilter):
            raise TypeError('topics are given as a list, such as kzconsumer.Whitelist("orders.*")')
        topics.portable()
        if streams < 1:
            raise ValueError("there must be at least one stream")
        keys = [(None, thread) for thread in range(streams)]
        await self._join_group(keys, Registration(topics.pattern, {topics.regex: streams}, ours=True))
        return list(self._streams.values())

    async def _join_group(self, keys: Sequence[tuple[str | None, int]], registration: Registration) -> None:
        if self._streams:
            raise RuntimeError("streams can be created once per connector (MessageStreamsExist)")
        total = ByteBudget(self._settings.fetch.total_queue_bytes)
        for topic, thread in keys:
            queue = ChunkQueue(self._settings.fetch.queue_bytes, total)
            self._streams[topic, thread] = KafkaStream(topic, thread, queue, self.lease)
        self._tasks.start_soon(self._load_kernels)
        self._tasks.start_soon(self._run_sessions, registration)
        await self._joined.wait()

    async def _load_kernels(self) -> None:
        """Beside the first fetches, which do without. Abandoned when cancelled: a first compilation lasts seconds."""
        await self._joined.wait()
        await to_thread.run_sync(decode.warm, abandon_on_cancel=True)
        if (used := decode.kernels_in_use()) != "numba":
            log.warning("records are decoded slowly, or compiled at every start", kernels=used)

    async def commit_offsets(self) -> None:
        """Store what is processed. The message or batch in hand is not, unless `stream.ack()` said so.

        Raises SessionExpired, ZooKeeperError. Without a membership at the moment nothing is ours to commit.
        """
        if self._claims is not None:
            await self._claims.commit()

    def positions(self) -> list[Position]:
        """How far each owned partition has come; empty while there is no membership."""
        return self._claims.positions() if self._claims is not None else []

    def stop_fetching(self) -> None:
        """Ask the brokers for nothing more; what is queued may still be taken."""
        self._fetches = False
        self._fetching.cancel()

    async def leave(self) -> None:
        """Commit what is processed and leave the group; streams end. Idempotent, bounded by `[stop] deadline`."""
        if not self._streams:
            return
        self._leaving.set()
        self._connecting.cancel()
        self._sessions.deadline = min(self._sessions.deadline, anyio.current_time() + self._settings.stop.deadline)
        with anyio.CancelScope(shield=True):
            await self._left.wait()

    def hurry(self, seconds: float) -> None:
        """Leave within `seconds`, whatever is not done by then."""
        self._sessions.deadline = anyio.current_time() + seconds

    async def _run_sessions(self, registration: Registration) -> None:
        """One ZooKeeper session after the other, until `leave`."""
        try:
            with self._sessions:
                while self._fetches and not self._leaving.is_set():
                    await self._run_session(registration)
        finally:
            self._left.set()  # first: whatever else goes wrong here, nobody waits for ever
            for stream in self._streams.values():
                stream.close()

    async def _run_session(self, registration: Registration) -> None:
        connect_string = ConnectString.parse(self._settings.zookeeper.connect)
        async with AsyncExitStack() as exits:
            with anyio.CancelScope() as self._connecting:
                session = await exits.enter_async_context(
                    ZooKeeperSession(connect_string, self._settings.zookeeper.session_timeout)
                )
            if self._connecting.cancelled_caught:
                return
            self.lease.set(session)
            exits.callback(self.lease.set, None)
            try:
                await self._be_member(session, registration)
            except* SessionExpired as expired:
                log.warning("the ZooKeeper session is over, joining anew", reason=str(expired.exceptions[0]))

    async def _be_member(self, session: ZooKeeperSession, registration: Registration) -> None:
        """One membership, from registration to the last commit. Raises an exception group."""
        settings = self._settings
        trigger = RebalanceTrigger()
        watches = Watches(session, trigger.fire)
        consumers = ConsumerRegistry(session, watches, self._paths)
        topics = TopicRegistry(session, watches)
        committer = Committer(ZooKeeperOffsetStorage(session, self._paths), trigger.fire)
        reset = OffsetReset(settings.offsets.reset, committer, settings.fetch.request_timeout)
        fetchers = FetcherManager(topics, self._brokers, settings.fetch, reset)
        owners = OwnerRegistry(session, self._paths, settings.group.assignor)
        claims = Claims(
            owners, watches, self._paths, committer, fetchers, self._streams, settings.fetch.max_bytes, self._listener
        )
        membership = Membership(session, consumers, self._paths, self.consumer, registration)
        rebalancer = Rebalancer(
            membership=membership,
            consumers=consumers,
            topics=topics,
            watches=watches,
            claims=claims,
            trigger=trigger,
            assignor_name=settings.group.assignor,
            assignor=self._assignor,
            listener=self._listener,
            unreadable=settings.group.unreadable_members,
        )
        self._claims = claims
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._fetch, fetchers)
                tasks.start_soon(self._join, membership, rebalancer)
                tasks.start_soon(self._commit_periodically, claims)
                tasks.start_soon(_raise_on_expiry, session)
                await self._leaving.wait()
                tasks.cancel_scope.cancel()  # fetching and rebalancing end before the last commit
            for stream in self._streams.values():
                stream.close()
            await self._commit_at_last(session, claims)
        except* SessionExpired:
            await claims.lose_all()
            raise
        except* Exception:
            await self._commit_at_last(session, claims)
            raise
        finally:
            self._claims = None
            claims.close_all()

    async def _fetch(self, fetchers: FetcherManager) -> None:
        with anyio.CancelScope() as self._fetching:
            if self._fetches:
                await fetchers.run()

    async def _join(self, membership: Membership, rebalancer: Rebalancer) -> None:
        await membership.join()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rebalancer.run)
            await rebalancer.rebalanced_once.wait()
            self._joined.set()

    async def _commit_periodically(self, claims: Claims) -> None:
        while True:
            await anyio.sleep(self._settings.offsets.commit_interval)
            try:
                await claims.commit()
            except ZooKeeperError as error:
                log.error("periodic commit failed, trying again at the next", reason=str(error))

    async def _commit_at_last(self, session: ZooKeeperSession, claims: Claims) -> None:
        """Before the session is closed; without a trusted session there is only so long to wait for one."""
        patience = self._settings.stop.deadline / 3 if session.trusted() else 1.0
        reason: object = "ZooKeeper does not answer"
        try:
            with anyio.fail_after(patience):
                await claims.leave()
                return
        except TimeoutError:
            pass
        except (SessionExpired, ZooKeeperError) as error:
            reason = error
        log.error("the last commit was not made: records since the one before come again", reason=str(reason))


async def _raise_on_expiry(session: ZooKeeperSession) -> None:
    await session.wait_expired()
    raise SessionExpired("the server ended it")


@asynccontextmanager
async def connect(
    settings: Settings, *, listener: RebalanceListener | None = None, lease: Lease | None = None
) -> AsyncIterator[ConsumerConnector]:
    """A connector; leaving the block commits what is processed and leaves the group.

    `listener` is told of partitions that come, go and are lost. `lease` is for callers that must know it before there
    is a connector.

    Raises, out of the block, what ends a member for good: PluginError, OffsetLost, CorruptRecord (from its stream).
    """
    to_standard_error()
    try:
        async with (
            Brokers(client_id=settings.group.id, timeout=settings.fetch.request_timeout) as brokers,
            anyio.create_task_group() as tasks,
        ):
            connector = ConsumerConnector(settings, brokers, tasks, lease or Lease(), ListenerCalls(listener))
            try:
                yield connector
            finally:
                await connector.leave()
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error = sole_cause(group)
        raise error from error.__cause__
