"""A whole group in one simulated world: members that are `kzconsumer.connect` itself, and what must never happen.

`SimulatedGroup` owns the members, what was handed out, and the list of violations. It looks at every transaction
ZooKeeper decides and at every record handed out. Faults come from its caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import anyio
import structlog

import kzconsumer
from kzconsumer import clock, connector
from kzconsumer.assignors.interface import Assignor
from kzconsumer.config import FetchSettings, Settings
from kzconsumer.connector import ConsumerConnector
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.group import rebalancer
from kzconsumer.group.claims import REVOKE_DEADLINE
from kzconsumer.group.ownership_plan import assignment, wanted_by
from kzconsumer.group.rebalance_listener import RebalanceListener
from kzconsumer.group.snapshot import GroupSnapshot, needs_all_topics, subscribed_topics
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.network.brokers import Brokers
from kzconsumer.plugins import ASSIGNORS, load_chosen
from kzconsumer.streams.kafka_stream import KafkaStream
from kzconsumer.zookeeper import paths, session_life, znodes
from kzconsumer.zookeeper.heartbeat import Instant
from kzconsumer.zookeeper.operations import Check, Create, Delete, Operation, SetData
from kzconsumer.zookeeper.paths import GroupPaths
from kzconsumer.zookeeper.topic_registry import TopicRegistry
from tests.support.simulated.ensemble import NOBODY, Ensemble
from tests.support.simulated.network import SimulatedNetwork
from tests.support.simulated.partition_logs import PartitionLogs, SimulatedFetchers
from tests.support.simulated.virtual_time import Process, World

GROUP = "g"
SESSION_TIMEOUT = 6.0
COMMIT_INTERVAL = 1.0
TRACE = 4000
"""Log lines that are kept for a failure's report."""

Subscription = Mapping[str, int] | int
"""Topic -> streams, or the streams of a list of all topics."""


@dataclass
class Handed:
    """Records in an application's hands, one or a batch."""

    member: Member
    claim: int
    at: float
    done: float | None = None


@dataclass(eq=False)
class Member(RebalanceListener):
    """One application: what it was told and what it does with records."""

    group: SimulatedGroup
    name: str
    process: Process
    subscription: Subscription
    pace: float
    in_batches: bool
    stopping: anyio.Event = field(default_factory=anyio.Event)
    connector: ConsumerConnector | None = None
    owned: set[TopicPartition] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    dead: bool = False
    left_at: float | None = None
    freezes: int = 0
    silences: int = 0
    troubled: float = 0.0
    """Until when a fault may explain what it does."""

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
        return self.connector._listener.generation if self.connector is not None else 0

    @property
    def held(self) -> dict[TopicPartition, ConsumerThreadId]:
        claims = self.connector._claims if self.connector is not None else None
        return claims.held if claims is not None else {}

    async def run(self, settings: Settings) -> None:
        async with kzconsumer.connect(settings, listener=self) as self.connector, anyio.create_task_group() as tasks:
            tasks.start_soon(self._consume, self.connector, tasks)
            await self.stopping.wait()
            await self.connector.leave()
            tasks.cancel_scope.cancel()

    async def _consume(self, consumer: ConsumerConnector, tasks: anyio.abc.TaskGroup) -> None:
        if isinstance(self.subscription, int):
            streams = await consumer.create_message_streams_by_filter(kzconsumer.Whitelist(".*"), self.subscription)
        else:
            by_topic = await consumer.create_message_streams(self.subscription)
            streams = [stream for several in by_topic.values() for stream in several]
        for stream in streams:
            tasks.start_soon(self._read_batches if self.in_batches else self._read, stream)

    async def _read(self, stream: KafkaStream) -> None:
        async for message in stream:
            partition = TopicPartition(message.topic, message.partition)
            await self._work_on(partition, range(message.offset, message.offset + 1))

    async def _read_batches(self, stream: KafkaStream) -> None:
        async for batch in stream.batches():
            chunk = stream._chunk
            assert chunk is not None
            partition = chunk.tracker.topic_partition
            offsets = cast("list[int]", batch.column(2).to_pylist())
            await self._work_on(partition, range(offsets[0], offsets[-1] + 1))

    async def _work_on(self, partition: TopicPartition, offsets: range) -> None:
        handed = self.group.handed_out(self, partition, offsets)
        await anyio.sleep(self.pace)
        self.group.done(partition, offsets, handed)

    async def on_assigned(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        if twice := self.owned & partitions:
            self.group.violated(f"{self.name} was told twice that it has {_text(twice)}")
        self.owned |= partitions

    async def on_revoked(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self._gone("revoked", partitions)

    async def on_lost(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self._gone("lost", partitions)

    def _gone(self, how: str, partitions: frozenset[TopicPartition]) -> None:
        if unknown := partitions - self.owned:
            self.group.violated(f"{self.name} was told that {_text(unknown)} is {how}, which it never had")
        self.owned -= partitions


class SimulatedGroup:
    """See the module; made by `simulated_group`."""

    def __init__(self, seed: int, assignor: str, reset: str, lag: tuple[float, float]) -> None:
        self.world = World(seed)
        self.ensemble = Ensemble(self.world, lag=lag)
        self.network = SimulatedNetwork(self.ensemble)
        self.logs = PartitionLogs(self.ensemble)
        self.paths = GroupPaths(GROUP)
        self.members: list[Member] = []
        self.violations: list[str] = []
        self.trace: deque[str] = deque(maxlen=TRACE)
        self._assignor_name = assignor
        self._assignor = cast(Assignor, load_chosen(ASSIGNORS, assignor, "test"))
        self._reset = reset
        self._handed: dict[TopicPartition, dict[int, Handed]] = {}
        self._finished: dict[TopicPartition, set[int]] = {}
        self._stored: dict[TopicPartition, int] = {}
        self._claims: dict[TopicPartition, tuple[int, int]] = {}  # the owner node's czxid and session
        self._unclean: set[int] = set()
        self._disturbed: dict[TopicPartition, float] = {}
        self._rewound: set[TopicPartition] = set()
        self._start: dict[TopicPartition, int] = {}
        self._watching = True
        self.ensemble.committed.append(self._committed)

    # -- what the caller does

    def join(self, name: str, subscription: Subscription, pace: float, *, in_batches: bool) -> Member:
        process = self.world.process(name)
        member = Member(self, name, process, subscription, pace, in_batches)
        self.members.append(member)
        settings = kzconsumer.Settings.from_dict(
            {
                "zookeeper": {"connect": "zk0:2181,zk1:2181,zk2:2181", "session_timeout": f"{SESSION_TIMEOUT}s"},
                "group": {"id": GROUP, "consumer_id": name, "assignor": self._assignor_name},
                "offsets": {"commit_interval": f"{COMMIT_INTERVAL}s", "reset": self._reset},
                "stop": {"deadline": "10s"},
            }
        )
        member.task = process.create_task(member.run(settings))
        return member

    def leave(self, member: Member) -> None:
        member.left_at = self.world.now
        member.process.call_soon(member.stopping.set)

    def kill(self, member: Member) -> None:
        """As SIGKILL: it never runs again, and its connections end."""
        self.trouble(member, float("inf"))
        member.dead = member.process.frozen = True
        self.network.cut(member.process, arrives=True)

    def trouble(self, member: Member, seconds: float) -> None:
        """A fault of this duration concerns the member; it may lose its session over it, and be late to know."""
        member.troubled = max(member.troubled, self.world.now + seconds + 2 * SESSION_TIMEOUT)

    def disturb(self, partition: TopicPartition) -> None:
        """An outsider meddles with the partition: its owner may be found to be wrong for a moment."""
        self._disturbed[partition] = self.world.now + 2.0
        if (claim := self._claims.get(partition)) is not None:
            self._unclean.add(claim[0])

    def freeze(self, member: Member, seconds: float) -> None:
        """As SIGSTOP and SIGCONT."""
        self.trouble(member, seconds)
        member.process.frozen = True
        member.freezes += 1
        self.world.after(seconds, lambda: self._thaw(member))

    def silence(self, member: Member, seconds: float) -> None:
        """Its packets are lost."""
        self.trouble(member, seconds)
        self.network.set_silent(member.process, True)
        member.silences += 1
        self.world.after(seconds, lambda: self._unsilence(member))

    def cut_off(self, server: int, seconds: float) -> None:
        """A server without the others: its clients may lose their sessions."""
        for member in self.members:
            self.trouble(member, seconds)
        self.ensemble.servers[server].set_cut_off(True)
        self.world.after(seconds, lambda: self.ensemble.servers[server].set_cut_off(False))

    def expire(self, member: Member) -> None:
        """An operator ends its session, which no lease can foresee."""
        self.trouble(member, 0.0)
        for session in self.ensemble.sessions.values():
            if session.alive and self.network.processes.get(session.id) is member.process:
                for partition, (_, holder) in list(self._claims.items()):
                    if holder == session.id:
                        self.disturb(partition)
                self.ensemble.close(session)

    def delete_owner(self, partition: TopicPartition) -> None:
        self.disturb(partition)
        self.ensemble.operate(Delete(self.paths.owner(partition), -1))

    def set_offset(self, partition: TopicPartition, offset: int) -> None:
        self.disturb(partition)
        self.ensemble.operate(SetData(self.paths.offset(partition), b"%d" % offset, -1))

    def check(self) -> None:
        """Raises AssertionError when anything was not as it must be."""
        for member in self.members:
            task = member.task
            if task is not None and task.done() and (member.active or task.exception() is not None):
                self.violated(f"{member.name} ended: {task.exception()!r}")
            if member.process.errors:
                self.violated(f"{member.name}: {member.process.errors}")
        assert not self.violations, "\n".join([*self.trace, "", *self.violations])

    def come_to_rest(self, within: float, still: float) -> None:
        """No more faults and records: then everything is owned, read and committed, and stays as it is."""
        self.logs.stop()
        self.network.losing.clear()
        self.network.latency.clear()
        for member in self.members:
            member.pace = 0.0
        for server in self.ensemble.servers:
            if server.cut_off:
                server.set_cut_off(False)
        for member in self.members:
            if not member.dead:
                self.network.set_silent(member.process, False)
                member.process.frozen = False
        rested = self.world.pass_time(within, lambda: not self.settled(), every=0.5)
        self.check()
        if not rested:
            self.violated(f"no rest within {within} s: {self.settled()}")
        generations = {member.name: member.generation for member in self.members if member.active}
        self.world.pass_time(still)
        if self.settled():
            self.violated(f"did not stay at rest: {self.settled()}")
        if generations != {member.name: member.generation for member in self.members if member.active}:
            self.violated("a member at rest rebalanced")
        self.check()

    def settled(self) -> str:
        """What is not yet as it has to be when nothing happens any more; empty when all is."""
        tree = self.ensemble.tree
        active = {member.consumer: member for member in self.members if member.active}
        registered = set(tree.nodes[self.paths.ids].children) if self.paths.ids in tree.nodes else set()
        if registered != set(active):
            return f"registered are {sorted(registered)}, not {sorted(active)}"
        assigned = self._assigned() if active else {}
        for partition, thread in assigned.items():
            if (owner := tree.data(self.paths.owner(partition))) != str(thread).encode():
                return f"{partition} belongs to {owner!r}, not {thread}"
        for consumer, member in active.items():
            if member.held != (wanted := wanted_by(consumer, assigned)):
                return f"{member.name} holds {_text(member.held)}, not {_text(wanted)}"
            if member.owned != set(wanted):
                return f"{member.name} was told of {_text(member.owned)}, not {_text(wanted)}"
        for partition in assigned:
            end = self.logs.end(partition)
            if missing := set(range(self._first(partition), end)) - self._finished.get(partition, set()):
                return f"{partition} is not read at {sorted(missing)[:5]}"
            if end and self._stored.get(partition) != end and partition not in self._rewound:
                return f"{partition} is committed to {self._stored.get(partition)}, not {end}"
        return ""

    def _thaw(self, member: Member) -> None:
        member.freezes -= 1
        if not member.dead and not member.freezes:
            member.process.frozen = False

    def _unsilence(self, member: Member) -> None:
        member.silences -= 1
        if not member.silences:
            self.network.set_silent(member.process, False)

    # -- what is watched

    def violated(self, what: str) -> None:
        if self._watching:
            self.tell(f"VIOLATION {what}")
            self.violations.append(f"at {self.world.now:.3f}: {what}")

    def tell(self, what: str) -> None:
        self.trace.append(f"{self.world.now:9.3f} {what}")

    def handed_out(self, member: Member, partition: TopicPartition, offsets: range) -> Handed:
        """An application has these records in its hands."""
        now = self.world.now
        claim, session = self._claims.get(partition, (0, NOBODY))
        holder = self.network.processes.get(session)
        excused = self._disturbed.get(partition, 0.0) > now
        if partition not in member.owned:
            self.violated(f"{member.name} got {partition}[{offsets}], which it was not told to have")
        if holder is not member.process:
            claim = 0
            if not excused:
                self.violated(f"{member.name} got {partition}[{offsets}], which belongs to {holder}")
        for other in self.members:
            if other is not member and other.active and not other.process.frozen and not excused:
                held = other.connector is not None and other.connector.lease.held and partition in other.held
                if held:
                    self.violated(f"{member.name} got {partition}[{offsets}], which {other.name} could hand out too")
        records = self._handed.setdefault(partition, {})
        for offset in offsets:
            if claim and (earlier := records.get(offset)) is not None and not self._may_come_again(earlier):
                self.violated(
                    f"{member.name} got {partition}@{offset}, which {earlier.member.name} had at {earlier.at:.3f}"
                )
                break
        handed = Handed(member, claim, now)
        records.update(dict.fromkeys(offsets, handed))
        return handed

    def done(self, partition: TopicPartition, offsets: range, handed: Handed) -> None:
        """It has worked on them."""
        handed.done = self.world.now
        self._finished.setdefault(partition, set()).update(offsets)

    def _may_come_again(self, earlier: Handed) -> bool:
        """At-least-once: the claim did not end in order, or nobody had to wait for the work on it any longer."""
        if earlier.claim in self._unclean or not earlier.claim:
            return True
        done = self.world.now if earlier.done is None else earlier.done
        left = earlier.member.left_at
        return done - earlier.at >= REVOKE_DEADLINE or (left is not None and done >= left)

    def _first(self, partition: TopicPartition) -> int:
        return self._start.get(partition, 0)

    def _committed(self, session: int, operations: Sequence[Operation]) -> None:
        """Every transaction that ZooKeeper executed."""
        nodes = self.ensemble.tree.nodes
        if operations and not all(isinstance(operation, Check) for operation in operations):
            self.tell(f"{self.network.processes.get(session)} writes {', '.join(map(_shown, operations))}")
        for operation in operations:
            kind, partition = self._about(operation.path)
            if kind == "owners":
                node = nodes.get(operation.path)
                present = (node.czxid, node.owner) if node is not None else None
                before = self._claims.get(partition)
                if present != before:
                    self._owner_changes(partition, before, present, session)
            elif kind == "offsets" and isinstance(operation, (SetData, Create)):
                self._offset_changes(partition, int(operation.data), session)

    def _owner_changes(
        self, partition: TopicPartition, before: tuple[int, int] | None, present: tuple[int, int] | None, session: int
    ) -> None:
        if before is not None:
            claim, holder = before
            process = self.network.processes.get(holder)
            member = next((each for each in self.members if each.process is process), None)
            expired = not self.ensemble.sessions[holder].alive
            in_trouble = member is None or member.dead or (expired and self.world.now < member.troubled)
            if session != holder or in_trouble:
                self._unclean.add(claim)
            if expired and not in_trouble and member is not None and member.active:
                self.violated(f"{member.name} lost its session without any reason")
        if present is None:
            self._claims.pop(partition, None)
        else:
            self._claims[partition] = present

    def _offset_changes(self, partition: TopicPartition, offset: int, session: int) -> None:
        before = self._stored.get(partition)
        self._stored[partition] = offset
        if session == NOBODY:
            self._rewound.add(partition)
            self._finished.setdefault(partition, set()).update(range(offset))  # skipped, if they were not read
            self._handed.pop(partition, None)  # may all come again
            return
        process = self.network.processes.get(session)
        if self._claims.get(partition, (0, NOBODY))[1] != session:
            self.violated(f"{process} stored {partition} = {offset} without owning it")
        meddled = partition in self._rewound
        self._rewound.discard(partition)
        if before is None:
            self._start[partition] = offset
        elif meddled:
            pass
        elif offset < before:
            self.violated(f"{process} moved {partition} back from {before} to {offset}")
        elif missing := set(range(before, offset)) - self._finished.get(partition, set()):
            self.violated(f"{process} stored {partition} = {offset}, but {sorted(missing)[:5]} was not worked on")

    def _about(self, path: str) -> tuple[str, TopicPartition]:
        parts = path.removeprefix(self.paths.root).split("/")
        if path.startswith(self.paths.root) and len(parts) == 4:
            return parts[1], TopicPartition(parts[2], int(parts[3]))
        return "", TopicPartition("", 0)

    def _assigned(self) -> Mapping[TopicPartition, ConsumerThreadId]:
        """As every member has to compute it from what ZooKeeper holds."""
        tree = self.ensemble.tree
        members = {
            name: znodes.decode_registration(tree.nodes[self.paths.member(name)].data)
            for name in tree.nodes[self.paths.ids].children
        }
        names = tuple(sorted(tree.nodes[paths.BROKER_TOPICS].children))
        topics = {}
        for name in subscribed_topics(members, names):
            if (node := tree.nodes.get(paths.topic(name))) is not None:
                topics[name] = znodes.Topic(znodes.decode_topic(node.data), node.czxid)
        snapshot = GroupSnapshot(members, names if needs_all_topics(members) else (), topics)
        return assignment(self._assignor_name, self._assignor, snapshot.context())

    # -- its end

    def end(self) -> None:
        """End all processes, without a look at what they do."""
        self._watching = False
        self.network.losing.clear()
        self.network.latency.clear()
        for server in self.ensemble.servers:
            server.set_cut_off(False)
        for member in self.members:
            self.network.set_silent(member.process, False)
            member.process.frozen = False
            if member.task is not None:
                member.task.cancel()
        tasks = [member.task for member in self.members if member.task is not None]
        self.world.pass_time(60.0, lambda: all(task.done() for task in tasks))
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()
        for process in list(self.world.processes):
            self.world.end(process)


def _shown(operation: Operation) -> str:
    path = operation.path.removeprefix(f"/consumers/{GROUP}")
    match operation:
        case Check(_, version):
            return f"({path} v{version})"
        case Delete():
            return f"-{path}"
        case SetData(_, data, version):
            return f"{path}={data[:20]!r} v{version}"
        case Create(_, data):
            return f"+{path}={data[:20]!r}"


def _text(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "nothing"


@contextmanager
def simulated_group(
    seed: int, assignor: str = "range", reset: str = "smallest", lag: tuple[float, float] = (0.0005, 0.01)
) -> Iterator[SimulatedGroup]:
    """A group without members, on a clock of its own."""
    group = SimulatedGroup(seed, assignor, reset, lag)
    world = group.world

    def fetchers(topics: TopicRegistry, brokers: Brokers, settings: FetchSettings, reset: OffsetReset) -> Any:
        return SimulatedFetchers(group.logs, reset)

    def traced(_: Any, level: str, event: MutableMapping[str, Any]) -> str:
        try:
            who = cast(Process, asyncio.get_running_loop()).name
        except RuntimeError:
            who = "-"
        group.tell(f"{who} {level} {event.pop('event')} {event}")
        raise structlog.DropEvent

    def instant() -> Instant:
        return Instant(world.now, world.now)

    async def no_kernels() -> None:
        """They decode nothing here."""

    logging = structlog.get_config()
    structlog.configure(processors=[traced])
    with (
        mock.patch.object(clock, "time", SimpleNamespace(clock_gettime=lambda _: world.now, CLOCK_BOOTTIME=0)),
        mock.patch.object(session_life, "_now", instant),
        mock.patch.object(session_life, "random", world.random),
        mock.patch.object(rebalancer, "random", world.random),
        mock.patch.object(connector, "FetcherManager", fetchers),
        mock.patch.object(connector, "_load_kernels", no_kernels),
        mock.patch.object(connector, "to_standard_error"),
    ):
        try:
            yield group
        finally:
            group.end()
            structlog.configure(**logging)
