"""An application that is a member of a simulated group: `kzconsumer.connect` in a process of its own.

It processes what it gets at its own pace, and reports it to the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

import anyio
from anyio.abc import TaskGroup

import kzconsumer
from kzconsumer.consumer import Acknowledge, ConsumerConnector, KafkaStream
from kzconsumer.errors import KzConsumerError
from kzconsumer.group.owned_partitions import OwnedPartition
from kzconsumer.group.rebalance_listener import RebalanceListener
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.records._native import Message
from kzconsumer.settings.settings import Settings
from tests.support.members import sessions_of
from tests.support.simulated.virtual_time import Process

GROUP = "g"

AT_ONCE = 3
AWAY = 2.0
"""Seconds, at most, that it does something else."""

Subscription = Mapping[str, int] | int
"""Topic -> streams, or the streams of a list of all topics."""


class Observer(Protocol):
    """Observes what members do."""

    def handed_out(self, member: Member, partition: TopicPartition, offsets: range, key: bytes) -> Handed: ...

    def done(self, partition: TopicPartition, offsets: range, handed: Handed) -> None: ...

    def violated(self, what: str) -> None: ...


@dataclass(eq=False)
class Handed:
    """Records in an application's hands, one or a batch."""

    member: Member
    claim: int
    at: float
    done: float | None = None
    counts: bool = True
    """Otherwise the topic was deleted by then, or the log was cut off before them."""
    key: bytes = b""


Taken = tuple[TopicPartition, range, Handed]
"""A partition's offsets in an application's hands."""


@dataclass(eq=False)
class Member(RebalanceListener):
    """One application: what its listener was called with, and how it processes records."""

    group: Observer
    name: str
    process: Process
    subscription: Subscription
    pace: float
    in_batches: bool
    stop_at: Mapping[TopicPartition, int] | None = None
    """Where partitions end."""
    explicit: bool = False
    """It acknowledges messages out of order, while it has taken `AT_ONCE` of each stream; and later once more. Now and
    then it does something else, with a message in hand."""
    rejects: Callable[[int], bool] = lambda offset: False
    """Which records are of no use to it, by offset; not those of batches."""
    stopping: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(init=False)
    """Of all that its application does."""
    connector: ConsumerConnector | None = None
    owned: set[TopicPartition] = field(default_factory=set)
    lost: set[TopicPartition] = field(default_factory=set)
    """All that it was notified of as lost, not as revoked."""
    sought: dict[TopicPartition, int] = field(default_factory=dict)
    """The offset of the next record after a seek, until one arrives."""
    went_to: set[tuple[TopicPartition, int]] = field(default_factory=set)
    """Where seeks that have returned went to."""
    seeks: list[asyncio.Task[None]] = field(default_factory=list)
    resumes: int = 0
    in_hand: list[Handed] = field(default_factory=list)
    """The records in progress, one per stream."""
    task: asyncio.Task[None] | None = None
    dead: bool = False
    left_at: float | None = None
    freezes: int = 0
    silences: int = 0
    without_brokers: bool = False
    """No broker answers it: it may leave the group by itself."""
    troubled: float = 0.0
    """The end of the time in which a fault may explain its behaviour."""

    def __repr__(self) -> str:
        return f"<Member {self.name}>"

    @property
    def consumer(self) -> str:
        return f"{GROUP}_{self.name}"

    @property
    def active(self) -> bool:
        return not self.dead and self.left_at is None

    @property
    def generation(self) -> int:
        return sessions_of(self.connector).listener.generation if self.connector is not None else 0

    @property
    def rebalances(self) -> int:
        """Attempts, whether they have changed something or not."""
        return sessions_of(self.connector).counters.rebalances.counts.total() if self.connector is not None else 0

    @property
    def settled(self) -> bool:
        """Whether its last rebalance was complete, and no other one is due."""
        member = sessions_of(self.connector).member if self.connector is not None else None
        return member is not None and member._rebalancer.settled

    @property
    def uncommitted(self) -> bool:
        member = sessions_of(self.connector).member if self.connector is not None else None
        return member is not None and member.committer.pending

    @property
    def session(self) -> int:
        """The id of its present ZooKeeper session, 0 without one."""
        session = sessions_of(self.connector).session if self.connector is not None else None
        return session.id if session is not None else 0

    @property
    def held(self) -> dict[TopicPartition, ConsumerThreadId]:
        member = sessions_of(self.connector).member if self.connector is not None else None
        return member.owned.held if member is not None else {}

    @property
    def claims(self) -> Mapping[TopicPartition, OwnedPartition]:
        """With those that were lost since the last rebalance."""
        member = sessions_of(self.connector).member if self.connector is not None else None
        return member.owned.claims if member is not None else {}

    def unfreeze(self) -> None:
        self.process.frozen = False

    def pause(self, partition: TopicPartition) -> None:
        if self.connector is not None:
            self.connector.pause([partition])

    def resume(self) -> None:
        if self.connector is not None:
            self.resumes += 1
            self.connector.resume(self.connector.paused)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """To be run as one of `seeks`. While the process is frozen several may be called; the last one holds."""
        self.sought.pop(partition, None)
        self.went_to.discard((partition, offset))
        try:
            if self.connector is not None:
                await self.connector.seek(partition, offset)
        except KzConsumerError:
            return
        self.went_to.add((partition, offset))
        if partition in self.owned and self.seeks[-1] is asyncio.current_task():
            self.sought[partition] = offset

    async def run(self, settings: Settings) -> None:
        how: Acknowledge = "explicit" if self.explicit else "implicit"
        connected = kzconsumer.connect(settings, listener=self, acknowledge=how, stop_at=self.stop_at)
        with anyio.CancelScope() as self.scope:
            async with connected as self.connector, anyio.create_task_group() as tasks:
                tasks.start_soon(self._consume, self.connector, tasks)
                await self.stopping.wait()
                await self.connector.leave()
                tasks.cancel_scope.cancel()

    async def _consume(self, consumer: ConsumerConnector, tasks: TaskGroup) -> None:
        if isinstance(self.subscription, int):
            streams = await consumer.create_message_streams_by_filter(kzconsumer.Include(".*"), self.subscription)
        else:
            by_topic = await consumer.create_message_streams(self.subscription)
            streams = [stream for several in by_topic.values() for stream in several]
        read = self._read_explicitly if self.explicit else self._read_batches if self.in_batches else self._read
        for stream in streams:
            tasks.start_soon(read, stream)

    async def _read(self, stream: KafkaStream) -> None:
        async for message in stream:
            taken = self._take_one(message)
            await self._work_on(*taken)
            if self.rejects(message.offset):
                await stream.reject(message, "of no use")

    async def _read_explicitly(self, stream: KafkaStream) -> None:
        at_once = anyio.Semaphore(AT_ONCE)

        async def acknowledge(message: Message, taken: Taken) -> None:
            await self._work_on(*taken, times=1 + message.offset % 3)
            if self.rejects(message.offset):
                await stream.reject(message, "of no use")
            else:
                stream.ack(message)
            at_once.release()
            await self._turn_away()
            stream.ack(message)

        async with anyio.create_task_group() as work:
            async for message in stream:
                work.start_soon(acknowledge, message, self._take_one(message))
                await at_once.acquire()
                if message.offset % 16 == 15:
                    await self._turn_away()

    async def _turn_away(self) -> None:
        """All that is in hand is acknowledged meanwhile, unless its application is slow."""
        await anyio.sleep(min(4 * self.pace, AWAY))

    async def _read_batches(self, stream: KafkaStream) -> None:
        async for batch in stream.batches():
            partition = TopicPartition(batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py())
            offsets = cast("list[int]", batch.column(2).to_pylist())
            read = range(offsets[0], offsets[-1] + 1)
            await self._work_on(*self._take(partition, read, batch.column("key")[-1].as_py()))

    def _take_one(self, message: Message) -> Taken:
        partition = TopicPartition(message.topic, message.partition)
        return self._take(partition, range(message.offset, message.offset + 1), message.key or b"")

    def _take(self, partition: TopicPartition, offsets: range, key: bytes) -> Taken:
        handed = self.group.handed_out(self, partition, offsets, key)
        self.in_hand.append(handed)
        return partition, offsets, handed

    async def _work_on(self, partition: TopicPartition, offsets: range, handed: Handed, times: int = 1) -> None:
        try:
            await anyio.sleep(self.pace * times)
        finally:
            self.in_hand.remove(handed)
        self.group.done(partition, offsets, handed)

    async def on_assigned(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        if twice := self.owned & partitions:
            self.group.violated(f"{self.name} was notified twice that it has {listed(twice)}")
        self.owned |= partitions

    async def on_revoked(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        if lost := {each for each in partitions if each in self.claims and self.claims[each].progress.lost}:
            self.group.violated(f"{self.name} was notified that {listed(lost)} is revoked, which it had lost")
        self._gone("revoked", partitions)

    async def on_lost(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self._gone("lost", partitions)
        self.lost |= partitions

    def _gone(self, how: str, partitions: frozenset[TopicPartition]) -> None:
        if unknown := partitions - self.owned:
            self.group.violated(f"{self.name} was notified that {listed(unknown)} is {how}, which it never had")
        self.owned -= partitions
        for partition in partitions:
            self.sought.pop(partition, None)


def listed(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "nothing"
