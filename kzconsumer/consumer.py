"""`kzconsumer.connect(settings)`: a member of the group, with the original's terms.

Owns the streams, the broker connections and which ZooKeeper session is the present one. Lifetimes nest: connector >
session > membership (`member`) > claims > fetching; leaving them in order is the shutdown order, for a stop and an
expiry alike.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Literal, TypeAlias, cast, get_args

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from kzconsumer.assignors.interface import Assignor
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.list_offsets import EARLIEST, LATEST, ListedOffset
from kzconsumer.brokers.security import load_security
from kzconsumer.clock import now
from kzconsumer.counters import Tallies
from kzconsumer.errors import ConnectionLost, KzConsumerError, NotOwned, SessionExpired, Unfit, sole_cause
from kzconsumer.fetcher.reading import Reading, reading
from kzconsumer.group.fitness import HoldDown
from kzconsumer.group.listener import ListenerCalls, RebalanceListener
from kzconsumer.group.membership import new_consumer_id
from kzconsumer.group.snapshot import GroupSnapshot
from kzconsumer.logs.facts import facts
from kzconsumer.logs.setup import to_standard_error
from kzconsumer.member import Member
from kzconsumer.model import ConsumerThreadId, Form, TopicPartition
from kzconsumer.offsets.authority import require_storage
from kzconsumer.offsets.destination import Destination
from kzconsumer.offsets.position import Position
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.plugins import ASSIGNORS, load_chosen
from kzconsumer.records import decode
from kzconsumer.registry.claim_record import Plan
from kzconsumer.registry.registration import Registration
from kzconsumer.registry.run_record import GroupRun
from kzconsumer.registry.sessions import open_session
from kzconsumer.registry.topics import TopicRegistry
from kzconsumer.rejected.rejects import RejectedRecord, rejects_of
from kzconsumer.runs.end_offsets import Stops
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.topic_filter import TopicFilter
from kzconsumer.settings.values import read_topic
from kzconsumer.streams.chunk_queue import ByteBudget, ChunkQueue
from kzconsumer.streams.kafka_stream import KafkaStream
from kzconsumer.streams.message import Message
from kzconsumer.streams.unacknowledged import Unacknowledged
from kzconsumer.zookeeper.access import load_access
from kzconsumer.zookeeper.lease import Lease
from kzconsumer.zookeeper.session import FormerSession, ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches

log = structlog.get_logger("kzconsumer")

Acknowledge: TypeAlias = Literal["implicit", "explicit"]

# Seconds for the first messages before the kernels load: that holds the GIL so much that it would double their delay.
HEAD_START = 0.15


class ConsumerConnector:
    """One member; use `connect`. Methods are called from the event loop that connected."""

    def __init__(
        self,
        settings: Settings,
        brokers: Brokers,
        read: Reading,
        destination: Destination | None,
        stops: Stops | None,
        tasks: TaskGroup,
        lease: Lease,
        listener: ListenerCalls,
        acknowledge: Acknowledge,
    ) -> None:
        self._settings = settings
        self._acknowledge = acknowledge
        self._brokers = brokers
        self._read = read
        self._destination = destination
        self._stops = stops
        self._tasks = tasks
        self._assignor = cast(
            Assignor, load_chosen(ASSIGNORS, settings.group.assignor, f"{settings.source}: [group] assignor")
        )
        self._streams: dict[tuple[str | None, int], KafkaStream] = {}
        self._paused: set[TopicPartition] = set()
        self._session: ZooKeeperSession | None = None
        self._former: FormerSession | None = None
        self._member: Member | None = None
        self._hold_down = HoldDown()
        self._let_in = False
        self._joined = anyio.Event()
        self.finished = anyio.Event()
        """Set when everything is processed up to where `stop_at` says; the streams have ended then."""
        self._leaving = anyio.Event()
        self._left = anyio.Event()
        self._connecting = anyio.CancelScope()
        self._fetches = True
        # Shielded: a cancelled application still leaves in order, within the deadline that `leave` sets.
        self._sessions = anyio.CancelScope(shield=True)
        self.consumer = new_consumer_id(settings.group.id, settings.group.consumer_id)
        self._listener = listener
        self.tallies = Tallies()
        self.rejects = rejects_of(settings, self._bootstrap, self.tallies.rejected)
        self.lease = lease
        self.left_uncommitted = False
        """Whether the last membership ended without its last commit."""

    def __repr__(self) -> str:
        return f"<ConsumerConnector {self.consumer} {self._member}>"

    async def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[KafkaStream]]:
        """Join the group with this many streams per topic; at most once per connector.

        Returns topic -> streams after the first rebalance, so what could be claimed at once is owned. Waits for
        ZooKeeper to come up, for as long as that takes, or for `leave`, which ends the streams. Topics that do not
        exist yet are picked up when they are made.
        Source: `ZookeeperConsumerConnector.createMessageStreams` (1.1.1).
        """
        # What is registered must be right: a registration that is not stops every original member of the group.
        if not isinstance(topics, Mapping) or not all(type(number) is int for number in topics.values()):
            raise TypeError('topics are given as a mapping to numbers of streams, such as {"orders": 2}')
        if not topics or any(number < 1 for number in topics.values()):
            raise ValueError("each topic needs at least one stream")
        for topic in topics:
            try:
                read_topic(topic)
            except ValueError as error:
                raise ValueError(f"{topic!r} {error}") from None
            if topic == self._settings.rejected.topic:
                raise ValueError(f"{topic!r} is where dead letters of this group go: it would reject them for ever")
        keys = [(topic, thread) for topic, number in topics.items() for thread in range(number)]
        await self._join_group(keys, Registration.of_topics(topics))
        return {topic: [self._streams[topic, n] for n in range(number)] for topic, number in topics.items()}

    async def create_message_streams_by_filter(self, topics: TopicFilter, streams: int = 1) -> list[KafkaStream]:
        """Join the group for every topic that a Whitelist or Blacklist allows, now or later; at most once.

        The streams are shared by all topics. Raises ValueError for an expression that Java would read otherwise.
        Source: `ZookeeperConsumerConnector.createMessageStreamsByFilter` (1.1.1).
        """
        if not isinstance(topics, TopicFilter):
            raise TypeError('topics are given as a list, such as kzconsumer.Whitelist("orders.*")')
        topics.portable()
        if type(streams) is not int:
            raise TypeError(f"the number of streams is a whole number, not {streams!r}")
        if streams < 1:
            raise ValueError("there must be at least one stream")
        if (letters := self._settings.rejected.topic) is not None and topics.allows(letters):
            raise ValueError(f"{letters!r} is where dead letters of this group go: it would reject them for ever")
        keys = [(None, thread) for thread in range(streams)]
        await self._join_group(keys, Registration.of_filter(topics, streams))
        return list(self._streams.values())

    async def _join_group(self, keys: Sequence[tuple[str | None, int]], registration: Registration) -> None:
        if self._streams:
            raise RuntimeError("streams can be created once per connector (MessageStreamsExist)")
        total = ByteBudget(self._settings.fetch.total_queue_bytes)
        for topic, thread in keys:
            queue = ChunkQueue(self._settings.fetch.queue_bytes, total)
            counted = Unacknowledged(self._settings.offsets.most_unacknowledged) if self._explicit else None
            self._streams[topic, thread] = KafkaStream(topic, thread, queue, self.lease, counted, self._set_aside)
        self._tasks.start_soon(self._load_kernels)
        self._tasks.start_soon(self._run_sessions, registration)
        await self._joined.wait()

    async def _set_aside(self, message: Message, error_class: str, reason: str, lost: Callable[[], bool]) -> bool:
        return await self.rejects.settle([RejectedRecord(message, error_class, reason)], lost)

    async def _bootstrap(self) -> str:
        """The brokers that are up, for a producer of records with headers. Raises KzConsumerError."""
        if self._member is None:
            raise ConnectionLost("not a member of the group at the moment")
        return await self._member.bootstrap()

    async def _load_kernels(self) -> None:
        """After the first messages, which do without. Abandoned when cancelled: a first compilation lasts seconds."""
        await self._joined.wait()
        await anyio.sleep(HEAD_START)
        await to_thread.run_sync(decode.warm, abandon_on_cancel=True)
        if (used := decode.kernels_in_use()) != "numba":
            log.warning("records are decoded slowly, or compiled at every start", kernels=used)

    @property
    def _explicit(self) -> bool:
        return self._acknowledge == "explicit"

    async def commit_offsets(self) -> None:
        """Store what is processed. The message or batch in hand is not, unless `stream.ack()` said so.

        With explicit acknowledgement: up to the first of each partition that is not acknowledged.

        Raises SessionExpired, ZooKeeperError, CoordinatorFailed; then the next commit stores it, at the latest that of
        `[offsets] commit_interval`. Without a membership at the moment nothing is ours to commit.
        """
        if self._member is not None:
            await self._member.claims.commit()

    async def plan(self, plans: Mapping[OffsetTracker, Plan]) -> Collection[OffsetTracker]:
        """For the sink runner: have ranges stand as in flight; returns the claims that are still ours.

        Raises SessionExpired, ZooKeeperError.
        """
        return await self._member.claims.plan(plans) if self._member is not None else ()

    async def record_step(self, trackers: Collection[OffsetTracker], step: str) -> Collection[OffsetTracker]:
        """For the sink runner: have the plans of ranges in flight say that a step of the work is done.

        Returns the claims that are still ours. Raises SessionExpired, ZooKeeperError.
        """
        return await self._member.claims.record_step(trackers, step) if self._member is not None else ()

    async def go_on(self, replayed: OffsetTracker) -> None:
        """For the sink runner: a planned range has been written again and is committed."""
        if self._member is not None:
            await self._member.claims.go_on(replayed)

    def positions(self) -> list[Position]:
        """How far each owned partition has come; empty while there is no membership."""
        return self._member.claims.positions() if self._member is not None else []

    @property
    def group(self) -> tuple[GroupSnapshot, Mapping[TopicPartition, ConsumerThreadId]] | None:
        """The group as last read, and who should own what of it; None while that is not known."""
        return self._member.group if self._member is not None else None

    @property
    def queues(self) -> dict[tuple[str | None, int], ChunkQueue]:
        """By topic (None: those of a white or black list) and thread."""
        return {key: stream.queue for key, stream in self._streams.items()}

    @property
    def run(self) -> GroupRun | None:
        """The group's run that this member is in; None without `[subscription] stop_at`, and until it is known."""
        return self._stops.run if self._stops is not None else None

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing more of these until `resume`; the message or batch in hand is not touched.

        They stay paused when they go and come back, and may be paused before they come. What was fetched is kept; the
        other partitions of their streams go on. Source: `KafkaConsumer.pause`, which forgets at a rebalance.
        """
        named = [TopicPartition.of(partition) for partition in partitions]
        self._paused.update(named)
        if self._member is not None:
            self._member.claims.pause(named)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """The end of a pause; without one nothing happens."""
        named = [TopicPartition.of(partition) for partition in partitions]
        self._paused.difference_update(named)
        if self._member is not None:
            self._member.claims.resume(named)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._paused)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`, forwards or back, and store that at once: its next owner would begin there too.

        Nothing fetched before is handed out any more; what is in hand no longer counts. An offset outside the log is up
        to `[offsets] reset`. When it is cancelled the partition goes on at `offset` all the same, and the next commit
        stores it. Raises NotOwned, SessionExpired, ZooKeeperError, CoordinatorFailed, and ValueError beside a
        replayable sink: its destination would have the same records twice, in other ranges.
        Source: `KafkaConsumer.seek`.
        """
        if self._destination is not None:
            raise ValueError("a member with a replayable sink goes on where its ranges ended: it cannot seek")
        partition = TopicPartition.of(partition)
        if offset < 0:
            raise ValueError(f"{offset} is not an offset")
        if self._member is None:
            raise NotOwned(partition)
        await self._member.claims.seek(partition, offset)

    async def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each log. Raises as `offsets_for_times`."""
        return {p: at.offset for p, at in (await self._log_offsets(dict.fromkeys(partitions, EARLIEST))).items()}

    async def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where what can be read now ends: the high watermark, with `isolation = "read_committed"` what is stable."""
        return {p: at.offset for p, at in (await self._log_offsets(dict.fromkeys(partitions, LATEST))).items()}

    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose record's timestamp is at or after a time (ms since 1970), None when there is none.

        Raises ConnectionLost, BrokersUnreachable, BrokerError when a leader does not answer in `[fetch]
        request_timeout`, and UnsupportedVersion for brokers before 0.10.1. Source: KIP-79.
        """
        listed = await self._log_offsets(times)
        return {partition: at.offset if at.offset >= 0 else None for partition, at in listed.items()}

    async def _log_offsets(self, partitions: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        asked = {TopicPartition.of(partition): at for partition, at in partitions.items()}
        if self._member is None:
            raise ConnectionLost("not a member of the group at the moment")
        return await self._member.log_offsets.look_up(asked)

    @property
    def zookeeper_looked(self) -> float:
        """When the task that keeps the ZooKeeper session last went round; this moment where there is none to keep."""
        return self._session.looked if self._session is not None else now()

    def reconfigure(self, settings: Settings) -> None:
        """From now on: `[offsets] commit_interval`, `[fetch] rate_limit`, `[stop] deadline`. Else they are the same."""
        self._settings = settings
        if self._member is not None:
            self._member.reconfigure(settings)

    def stop_fetching(self) -> None:
        """Ask the brokers for nothing more; what is queued may still be taken."""
        self._fetches = False
        if self._member is not None:
            self._member.stop_fetching()

    async def leave(self) -> None:
        """Commit what is processed and leave the group; streams end. Idempotent, bounded by `[stop] deadline`.

        With explicit acknowledgement the commit waits for that of what is handed out, for a third of the deadline.
        A call that is cancelled stops waiting; the member leaves all the same. In a call of the rebalance listener
        this returns at once, since the member cannot leave before that call has ended.
        """
        await self._leave(self._settings.stop.deadline / 3 if self._explicit else 0.0)

    async def _leave(self, patience: float) -> None:
        if self._member is not None and not self._leaving.is_set():
            self._member.patience = patience
        self._leaving.set()
        self._connecting.cancel()
        self._sessions.deadline = min(self._sessions.deadline, anyio.current_time() + self._settings.stop.deadline)
        if self._streams and not self._listener.calling:
            await self._left.wait()

    def hurry(self, seconds: float) -> None:
        """Leave within `seconds`, whatever is not done by then."""
        self._sessions.deadline = anyio.current_time() + seconds

    async def _run_sessions(self, registration: Registration) -> None:
        """One ZooKeeper session after the other, until `leave`."""
        facts().update(group=self._settings.group.id, member=self.consumer)
        try:
            with self._sessions:
                while self._fetches and not self._leaving.is_set() and not self.finished.is_set():
                    await self._run_session(registration)
                    await self._stay_away()
            # Left before the first rebalance, if need be. Not after a failure: the task group cancels who waits then.
            self._joined.set()
        finally:
            self._left.set()  # first: whatever else goes wrong here, no `leave` waits for ever
            for stream in self._streams.values():
                stream.close()

    async def _run_session(self, registration: Registration) -> None:
        async with AsyncExitStack() as exits:
            session = self._session = open_session(self._settings.zookeeper, insist=self._let_in)
            exits.callback(setattr, self, "_session", None)
            with anyio.CancelScope() as self._connecting:
                await exits.enter_async_context(session)
                self._let_in = True
                if self._former is not None:
                    await session.end_former(self._former)
                    self._former = None
                if not await self._is_fit(session):
                    self._hold_down.begin(now())
                    return
            if self._connecting.cancelled_caught:
                return
            self.lease.set(session)
            exits.callback(self.lease.set, None)
            try:
                await self._be_member(session, registration)
            except* SessionExpired as expired:
                log.warning("the ZooKeeper session is over, joining anew", reason=str(expired.exceptions[0]))
                self._former = session.former
            except* Unfit as unfit:
                log.error("left the group to members that can work", reason=str(sole_cause(unfit)))
                self._hold_down.begin(now())

    async def _be_member(self, session: ZooKeeperSession, registration: Registration) -> None:
        """One membership. Raises an exception group."""
        self._hold_down.end(now())
        self._member = Member(
            session,
            self._settings,
            consumer=self.consumer,
            registration=registration,
            streams=self._streams,
            paused=self._paused,
            brokers=self._brokers,
            read=self._read,
            destination=self._destination,
            stops=self._stops,
            assignor=self._assignor,
            listener=self._listener,
            joined=self._joined,
            finished=self.finished,
            leaving=self._leaving,
            tallies=self.tallies,
        )
        if not self._fetches:
            self._member.stop_fetching()
        try:
            await self._member.run()
        finally:
            self.left_uncommitted = self._member.left_uncommitted
            self._member = None

    async def _stay_away(self) -> None:
        """A member that left as unfit tries again only after a while."""
        if self._hold_down.seconds:
            log.info("tries in a while whether a broker answers", seconds=self._hold_down.seconds)
            with anyio.move_on_after(self._hold_down.seconds):
                await self._leaving.wait()

    async def _is_fit(self, session: ZooKeeperSession) -> bool:
        """After a time away: whether a broker answers again."""
        if not self._hold_down.seconds:
            return True
        topics = TopicRegistry(session, Watches(session), self._settings.brokers)
        reason = "no broker is up"
        try:
            brokers = await topics.brokers()
            reason = "; ".join(topics.unusable.values()) or reason
        except KzConsumerError as error:
            brokers, reason = [], str(error)
        for broker in brokers:
            try:
                await self._brokers.connection(broker)
            except KzConsumerError as error:
                reason = str(error)
            else:
                return True
        log.warning("stays away", reason=reason)
        return False


@asynccontextmanager
async def connect(
    settings: Settings,
    *,
    listener: RebalanceListener | None = None,
    lease: Lease | None = None,
    wants: Form = "messages",
    destination: Destination | None = None,
    stop_at: Mapping[TopicPartition, int] | None = None,
    acknowledge: Acknowledge = "implicit",
) -> AsyncIterator[ConsumerConnector]:
    """A connector; leaving the block commits what is processed and leaves the group.

    `listener` is told of partitions that come, go and are lost. `lease` is for callers that must know it before there
    is a connector. `wants` is the form of the records in the streams' queues, for callers that take chunks from there;
    streams of raw bytes, which are not decoded, cannot be iterated. `destination` is that of a replayable sink, whose
    ranges are planned: then, too, the queues are for a sink runner, and not to be iterated. `stop_at`: for each
    partition that ends the first offset that is not read any more, and the streams end when all that is owned is done;
    beside it `[subscription] stop_at` does not count, with which they end when the group's run is over
    (docs/scheduled-jobs.md). With `acknowledge="explicit"` a message or batch is processed when `stream.ack` says so,
    in any order, and not when the next one is taken; a stream waits while `[offsets] most_unacknowledged` of its
    records are not.

    Raises ConfigError when keys or passwords to brokers or ZooKeeper cannot be read, and where offsets must be in
    ZooKeeper but would not be; out of the block, what ends a member for good: ConfigError (no ZooKeeper server lets us
    in), NotPermitted, PluginError, OffsetLost, CorruptRecord (from its stream).
    """
    if acknowledge not in get_args(Acknowledge):
        raise ValueError(f'acknowledge is "implicit" or "explicit", not {acknowledge!r}')
    to_standard_error(settings.log.level)
    security = partial(load_security, settings.brokers, settings.source)
    security()
    load_access(settings.zookeeper, settings.source)
    read = reading(wants, settings.fetch.largest_body)
    ends = None if stop_at is None else {TopicPartition.of(partition): offset for partition, offset in stop_at.items()}
    stops = Stops(ends) if ends is not None or settings.subscription.stop_at is not None else None
    in_run = stops is not None and stops.of_the_group
    require_storage(settings, replayable=destination is not None, in_run=in_run)
    try:
        async with (
            Brokers(client_id=settings.group.id, timeout=settings.fetch.request_timeout, security=security) as brokers,
            anyio.create_task_group() as tasks,
        ):
            connector = ConsumerConnector(
                settings,
                brokers,
                read,
                destination,
                stops,
                tasks,
                lease or Lease(),
                ListenerCalls(listener),
                acknowledge,
            )
            try:
                yield connector
            finally:
                with anyio.CancelScope(shield=True):
                    await connector._leave(0.0)  # nobody is left to acknowledge anything
                connector.rejects.close()
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error = sole_cause(group)
        raise error from error.__cause__
