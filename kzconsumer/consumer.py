"""The API of applications: `kzconsumer.connect`, the consumer that it yields, and the streams of records."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from kzconsumer.brokers.protocol.log_reads import EARLIEST, LATEST, ListedOffset
from kzconsumer.errors import NotOwnedError
from kzconsumer.group.rebalance_listener import RebalanceListener
from kzconsumer.model import TopicPartition, checked_offset, checked_time
from kzconsumer.offsets.progress import Message, Position
from kzconsumer.plugins import is_async, misfit
from kzconsumer.registry.group_records import GroupRun, Registration
from kzconsumer.rejected import RejectedRecord
from kzconsumer.sessions import Sessions
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.value_readers import TopicFilter, read_topic
from kzconsumer.streams.chunk_queue import ByteBudget, ChunkQueue
from kzconsumer.streams.cursor import StreamCursor, Unacknowledged

if TYPE_CHECKING:
    import anyio
    import pyarrow as pa


SetAside: TypeAlias = Callable[[Message, str, str, Callable[[], bool]], Awaitable[bool]]
"""Handles a rejected message: its class of errors, the reason, whether its partition is lost. False if it was lost."""


LAST: Any = object()
"""For `KafkaStream.ack`: the message or batch that was handed out last."""


class KafkaStream:
    """The records of all partitions that one thread owns: `async for message in stream`, or `stream.batches()`.

    They are in order within a partition. A message or batch is *processed* when it is acknowledged: by taking the next
    one, or, with explicit acknowledgement, by `ack()` alone, in any order. All iterators of a stream share one
    position, as in Kafka. Several tasks may read a stream only with explicit acknowledgement; otherwise a task that
    takes the next record would mark that of another task as processed. RuntimeError is raised for the second of two
    tasks that wait. A cancelled `anext()` takes nothing, and the iteration may go on.
    """

    def __init__(self, topic: str | None, thread: int, cursor: StreamCursor, set_aside: SetAside | None = None) -> None:
        """`topic` is None for a stream of a topic filter, which has records of all its topics.

        Without `set_aside` nothing can be rejected.
        """
        self.topic = topic
        self.thread = thread
        self._cursor = cursor
        self._set_aside = set_aside

    def __repr__(self) -> str:
        return f"<KafkaStream {self.topic or '*'}/{self.thread} {self._cursor}>"

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._cursor.messages()

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The same records as Arrow record batches (columns: `kzconsumer.records.columns.SCHEMA`), as fetched."""
        return self._cursor.batches()

    def ack(self, taken: Message | pa.RecordBatch = LAST) -> bool:
        """Mark a message or batch of this stream as processed, without argument the last one: commits include it.

        Order does not matter: an offset is committed once everything before it is acknowledged, too. Acknowledging
        twice changes nothing. False if it has no effect: the partition was lost, released or sought elsewhere since,
        and its present owner gets the record again, or its log was cut off before the record. Raises ValueError for
        what this stream has not handed out, such as a slice of a batch, and TypeError for None.
        """
        if taken is None:  # a variable that was not set: the last one may be in the hands of another worker
            raise TypeError("ack(None): give a message or a batch, or no argument for the last one")
        return self._cursor.ack(None if taken is LAST else taken)

    def ack_below(self, offset: int) -> None:
        """Mark the part of the batch in hand below `offset` as processed; the rest stays in hand."""
        self._cursor.ack_below(offset)

    async def reject(self, message: Message, reason: str, *, error_class: str = "rejected") -> bool:
        """Handle a message that cannot be used as `[rejected]` says for its class of errors, then acknowledge it.

        Returns once the dead letter is on disk or in its topic, and waits while it cannot be written. False if the
        partition was lost meanwhile: its present owner gets the record again. Raises RecordRejectedError if the policy
        is "fail", and ValueError as `ack` does.
        """
        handed_out = self._cursor.handed_out(message)
        if handed_out is None or self._set_aside is None:
            raise RuntimeError("this stream cannot reject messages")
        progress = handed_out.progress
        if progress.lost or not await self._set_aside(message, error_class, reason, lambda: progress.lost):
            return False
        return self._cursor.ack_one(handed_out)


Acknowledge: TypeAlias = Literal["implicit", "explicit"]


class ConsumerConnector:
    """One member; use `connect`. Methods are called from the event loop that connected."""

    def __init__(self, sessions: Sessions, acknowledge: Acknowledge = "implicit") -> None:
        self._sessions = sessions
        self._explicit = acknowledge == "explicit"
        self.consumer: str = sessions.consumer
        """The consumer id that is registered in ZooKeeper."""
        self.finished: anyio.Event = sessions.finished
        """Set when everything is processed up to where `stop_at` says; the streams have ended then."""

    def __repr__(self) -> str:
        return f"<ConsumerConnector {self.consumer}>"

    async def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[KafkaStream]]:
        """Join the group with this many streams per topic; at most once per connector.

        Returns topic -> streams after the first rebalance, so what could be claimed at once is owned. Waits for
        ZooKeeper to come up, for as long as that takes, or for `leave`, which ends the streams. Topics that do not
        exist yet are picked up when they are made.
        Source: `ZookeeperConsumerConnector.createMessageStreams` (1.1.1).
        """
        # A wrong registration would stop every original member of the group.
        if not isinstance(topics, Mapping) or not all(type(number) is int for number in topics.values()):
            raise TypeError('topics are given as a mapping to numbers of streams, such as {"orders": 2}')
        if not topics or any(number < 1 for number in topics.values()):
            raise ValueError("each topic needs at least one stream")
        for topic in topics:
            try:
                read_topic(topic)
            except ValueError as error:
                raise ValueError(f"{topic!r} {error}") from None
            if topic == self._sessions.settings.rejected.topic:
                raise ValueError(f"{topic!r} is the dead-letter topic of this group")
        keys = [(topic, thread) for topic, number in topics.items() for thread in range(number)]
        streams = await self._join(keys, Registration.of_topics(topics))
        return {topic: [streams[topic, n] for n in range(number)] for topic, number in topics.items()}

    async def create_message_streams_by_filter(self, topics: TopicFilter, streams: int = 1) -> list[KafkaStream]:
        """Join the group for every topic that an Include or Exclude filter allows, now or later; at most once.

        The streams are shared by all topics. Raises ValueError for an expression that Java would read otherwise.
        Source: `ZookeeperConsumerConnector.createMessageStreamsByFilter` (1.1.1).
        """
        if not isinstance(topics, TopicFilter):
            raise TypeError('topics are given as a list, such as kzconsumer.Include("orders.*")')
        topics.portable()
        if type(streams) is not int:
            raise TypeError(f"the number of streams is a whole number, not {streams!r}")
        if streams < 1:
            raise ValueError("there must be at least one stream")
        if (letters := self._sessions.settings.rejected.topic) is not None and topics.allows(letters):
            raise ValueError(f"{letters!r} is the dead-letter topic of this group")
        keys = [(None, thread) for thread in range(streams)]
        return list((await self._join(keys, Registration.of_filter(topics, streams))).values())

    async def _join(
        self, keys: Sequence[tuple[str | None, int]], registration: Registration
    ) -> dict[tuple[str | None, int], KafkaStream]:
        settings, lease = self._sessions.settings, self._sessions.lease
        total = ByteBudget(settings.fetch.total_queue_bytes)
        cursors = {}
        for key in keys:
            queue = ChunkQueue(settings.fetch.queue_bytes, total)
            counted = Unacknowledged(settings.offsets.most_unacknowledged) if self._explicit else None
            cursors[key] = StreamCursor(queue, lease, counted)
        await self._sessions.join(registration, cursors)
        return {key: KafkaStream(*key, cursor, self._reject) for key, cursor in cursors.items()}

    async def _reject(self, message: Message, error_class: str, reason: str, lost: Callable[[], bool]) -> bool:
        return await self._sessions.rejects.handle([RejectedRecord(message, error_class, reason)], lost)

    async def commit(self) -> None:
        """Store the processed offsets, without the message or batch in hand, unless `stream.ack()` was called for it.

        With explicit acknowledgement: up to the first record of each partition that is not acknowledged. Nothing is
        stored before the first rebalance, nor after `leave`, which has committed. Raises SessionExpiredError, also
        until the member has joined again (what it had not committed is redelivered), ZooKeeperError, CoordinatorError;
        the next commit retries. Source: `ZookeeperConsumerConnector.commitOffsets` (1.1.1), which reports no failure.
        """
        self._sessions.require_membership()
        await self._sessions.commit()

    def positions(self) -> list[Position]:
        """The positions of each owned partition; empty while there is no membership."""
        return self._sessions.positions()

    @property
    def run(self) -> GroupRun | None:
        """The group's run that this member is in; None without `[subscription] stop_at`, and until it is known."""
        return self._sessions.group_run

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out no more of these partitions until `resume`; the message or batch in hand is not affected.

        They stay paused when they are revoked and assigned again, and may be paused before they are assigned. What was
        fetched is kept; the other partitions of their streams continue. Source: `KafkaConsumer.pause`, which forgets at
        a rebalance.
        """
        named = [TopicPartition.of(partition) for partition in partitions]
        self._sessions.paused.update(named)
        if (member := self._sessions.member) is not None:
            member.owned.pause(named)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """End the pause of these partitions; others are ignored."""
        named = [TopicPartition.of(partition) for partition in partitions]
        self._sessions.paused.difference_update(named)
        if (member := self._sessions.member) is not None:
            member.owned.resume(named)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._sessions.paused)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`, forwards or back, and store that at once: the partition's next owner begins there, too.

        Nothing fetched before is handed out any more; what is in hand no longer counts. An offset outside the log is
        handled by `[offsets] reset`. If the call is cancelled, the partition still continues at `offset`, and
        the next commit stores it. Raises NotOwnedError, SessionExpiredError, ZooKeeperError, CoordinatorError.
        Source: `KafkaConsumer.seek`.
        """
        partition, offset = TopicPartition.of(partition), checked_offset(offset)
        if (member := self._sessions.member) is None:
            raise NotOwnedError(partition)
        await member.owned.seek(partition, offset)

    async def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each log. Raises as `offsets_for_times`."""
        return {p: at.offset for p, at in (await self._log_offsets(dict.fromkeys(partitions, EARLIEST))).items()}

    async def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks, or with `isolation = "read_committed"` the last stable offsets."""
        return {p: at.offset for p, at in (await self._log_offsets(dict.fromkeys(partitions, LATEST))).items()}

    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose record's timestamp is at or after a time (ms since 1970), None when there is none.

        Raises NotFoundError for a partition that does not exist, ConnectionLostError, BrokersUnreachableError,
        BrokerError when a leader does not answer in `[fetch] request_timeout`, ConnectionLostError while there is no
        membership, RuntimeError before the streams are created, and UnsupportedVersionError for brokers before 0.10.1.
        Source: KIP-79.
        """
        if not isinstance(times, Mapping) or not all(type(time) is int for time in times.values()):
            raise TypeError("times are given as a mapping of partitions to ms since 1970")
        for time in times.values():
            try:
                checked_time(time)
            except ValueError as error:
                raise ValueError(f"times are given in ms since 1970, and {time} {error}") from None
        listed = await self._log_offsets(times)
        return {partition: at.offset if at.offset >= 0 else None for partition, at in listed.items()}

    async def _log_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        return await self._sessions.log_offsets({TopicPartition.of(each): time for each, time in times.items()})

    async def leave(self) -> None:
        """Commit what is processed and leave the group; streams end. Idempotent, bounded by `[stop] deadline`.

        With explicit acknowledgement the commit waits for that of what is handed out, for a third of the deadline.
        A cancelled call stops waiting, and the member still leaves. In a call of the rebalance listener
        this returns at once, since the member cannot leave before that call has ended.
        """
        await self._sessions.leave(self._sessions.settings.stop.deadline / 3 if self._explicit else 0.0)


@asynccontextmanager
async def connect(
    settings: Settings | str | os.PathLike[str] | None = None,
    *,
    zookeeper: str | None = None,
    group: str | None = None,
    listener: RebalanceListener | None = None,
    stop_at: Mapping[TopicPartition, int] | None = None,
    acknowledge: Acknowledge = "implicit",
) -> AsyncIterator[ConsumerConnector]:
    """Connect a consumer; leaving the block commits what is processed and leaves the group.

    Give either settings, or the path of a group's file, or the keywords `zookeeper`, a connect string such as
    `"zk1:2181,zk2:2181/kafka"`, and `group`, the group id, with defaults for everything else.

    `listener` is called when partitions are assigned, revoked or lost. `stop_at`: for each partition that ends, the
    first offset that is not read any more; the streams end when all that is owned is processed up to there. If you
    give it, `[subscription] stop_at` is ignored. (With that, streams end when the group's run is over:
    docs/scheduled-jobs.md.) With `acknowledge="explicit"` a message or batch is processed when `stream.ack` says so, in
    any order, and not when the next one is taken. A stream hands out at most `[offsets] most_unacknowledged` records
    that are not yet acknowledged; then it waits.

    Raises ConfigError for invalid settings, for keys or passwords that cannot be read, and if offsets must be in
    ZooKeeper but would not be; out of the block, errors that end a member: ConfigError (no ZooKeeper server accepts
    the credentials), NotPermittedError, PluginError, OffsetLostError, CorruptRecordError (from its stream). TypeError
    and ValueError for wrong arguments, RuntimeError in an event loop other than asyncio's.
    """
    if acknowledge not in get_args(Acknowledge):
        raise ValueError(f'acknowledge is "implicit" or "explicit", not {acknowledge!r}')
    if listener is not None:
        _require_listener(listener)
    if stop_at is not None and not isinstance(stop_at, Mapping):
        raise TypeError(f'stop_at is a mapping of partitions to offsets, not {stop_at!r}; for "end" see [subscription]')
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("kzconsumer runs in asyncio's event loop: start the program with asyncio.run()") from None
    sessions = Sessions(connect_settings(settings, zookeeper, group), listener=listener, stop_at=stop_at)
    entered_by = asyncio.current_task()
    try:
        async with sessions.running():
            yield ConsumerConnector(sessions, acknowledge)
    except RuntimeError as error:  # anyio's text says nothing of this block
        if asyncio.current_task() is not entered_by:
            error.add_note("the block of kzconsumer.connect() is left by the task that entered it; see docs/python.md")
        raise


def _require_listener(listener: RebalanceListener) -> None:
    """Raises TypeError for what would end the member at its first rebalance."""
    if not isinstance(listener, RebalanceListener):
        raise TypeError(f"listener is an instance of a class derived from RebalanceListener, not {listener!r}")
    if not isinstance(listener.deadline, int | float):
        raise TypeError(f"the listener's deadline is a number of seconds, not {listener.deadline!r}")
    for call in (listener.on_assigned, listener.on_revoked, listener.on_lost):
        reason = misfit(call, "generation", "partitions") if is_async(call) else "is not async"
        if reason is not None:
            raise TypeError(f"{type(listener).__name__}.{call.__name__} {reason}")


def connect_settings(
    given: Settings | str | os.PathLike[str] | None, zookeeper: str | None, group: str | None
) -> Settings:
    """Those of `connect`. Raises TypeError if too little or too much is given, ConfigError."""
    if given is None:
        if zookeeper is None or group is None:
            raise TypeError("connect() needs settings, a path, or both zookeeper= and group=")
        return Settings.from_dict({"zookeeper": {"connect": zookeeper}, "group": {"id": group}}, source="connect()")
    if zookeeper is not None or group is not None:
        raise TypeError("connect() takes settings or a path, or zookeeper= and group=, not both")
    if isinstance(given, Settings):
        return given
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            f"settings are a path or a kzconsumer.Settings (Settings.from_dict), not {type(given).__name__}"
        )
    return Settings.load(given)


async def subscribe(sessions: Sessions) -> None:
    """Join the group as the settings of `[subscription]` say."""
    consumer, wanted = ConsumerConnector(sessions), sessions.settings.subscription
    consumer.pause(wanted.paused_partitions)
    if wanted.filter is not None:
        await consumer.create_message_streams_by_filter(wanted.filter, wanted.streams)
    else:
        await consumer.create_message_streams(wanted.topics)
