"""A simulated group of up to thousands of members without records, and what each of them costs.

`Crowd` owns the world, its servers and members, who holds which partition as the listeners are notified, and counts of
requests, bytes and processor time. Other than in a `SimulatedGroup` applications process nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, cast
from unittest import mock

import msgspec
import structlog

import kzconsumer
from kzconsumer.counters import Rebalance, RebalanceCounters
from kzconsumer.group.rebalance_listener import RebalanceListener
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.link import Link
from kzconsumer.zookeeper.operations import Check
from tests.support.simulated.broker import SimulatedBroker
from tests.support.simulated.ensemble import Ensemble
from tests.support.simulated.member import GROUP
from tests.support.simulated.network import SimulatedNetwork
from tests.support.simulated.partition_logs import PartitionLogs, host
from tests.support.simulated.product import product_in
from tests.support.simulated.virtual_time import Process, World
from tests.support.zookeeper_operations import OPERATIONS

SESSION_TIMEOUT = 6.0
QUIET = 4.0
"""Seconds without a change after which a group is at rest: longer than any wait of a member that has work."""
PROBE = wire.multi([Check("/", -1)], str).body


class Cost(msgspec.Struct):
    """Of one member, since it was last reset."""

    requests: Counter[str] = msgspec.field(default_factory=Counter)
    """To ZooKeeper, by operation; `probe`: the transactions that renew a session."""
    received: int = 0
    """Bytes from ZooKeeper."""
    processor: float = 0.0
    """Seconds."""
    rebalances: int = 0


class CrowdMember(RebalanceListener):
    """A member that holds its streams and takes nothing from them."""

    def __init__(self, crowd: Crowd, process: Process) -> None:
        self.crowd = crowd
        self.process = process
        self.held: set[TopicPartition] = set()
        self.cost = Cost()
        self.leaving = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def run(self, settings: kzconsumer.Settings, topics: Iterable[str]) -> None:
        async with kzconsumer.connect(settings, listener=self) as consumer:
            await consumer.create_message_streams(dict.fromkeys(topics, 1))
            await self.leaving.wait()
            await consumer.leave()

    async def on_assigned(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self.held |= partitions
        self.crowd.taken(self, partitions)

    async def on_revoked(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self.held -= partitions
        self.crowd.given_up(self, partitions)

    on_lost = on_revoked


class Crowd:
    """See the module; made by `crowd`."""

    def __init__(self, seed: int, topics: int, partitions: int, assignor: str) -> None:
        """`partitions` of each topic."""
        self.world = World(seed)
        self.ensemble = Ensemble(self.world)
        self.network = SimulatedNetwork(self.ensemble)
        self.network.joins = True
        self.logs = PartitionLogs(self.ensemble, 3, 1)
        self.logs.stop()
        for number in self.logs.brokers:
            self.network.hosts[host(number)] = SimulatedBroker(self.world, self.logs, number)
        self.topics = [f"t{number}" for number in range(topics)]
        for topic in self.topics:
            self.logs.grow(topic, partitions)
        self.members: dict[Process, CrowdMember] = {}
        """Those that have not been killed and have not left."""
        self.holders: dict[TopicPartition, CrowdMember] = {}
        self.changed = 0.0
        """When a member was last assigned a partition, or lost one."""
        self.twice: list[str] = []
        """Partitions that a member was assigned while another one held them."""
        self.errors: list[str] = []
        self._gone: list[CrowdMember] = []
        self._since = time.process_time(), time.perf_counter()
        self._settings = kzconsumer.Settings.from_dict(
            {
                "zookeeper": {"connect": "zk0:2181,zk1:2181,zk2:2181", "session_timeout": f"{SESSION_TIMEOUT}s"},
                "group": {"id": GROUP, "assignor": assignor},
                "fetch": {"max_wait": "20s"},  # no record arrives
            }
        )

    def join(self) -> None:
        process = self.world.process(f"member {len(self.members) + len(self._gone)}")
        member = self.members[process] = CrowdMember(self, process)
        member.task = process.create_task(member.run(self._settings, self.topics))

    def leave(self, member: CrowdMember) -> None:
        """As a stop; ends when its session is closed."""
        member.process.call_soon(member.leaving.set)
        task = member.task
        assert task is not None
        assert self.world.pass_time(60.0, task.done)
        task.result()
        self._gone.append(self.members.pop(member.process))
        self.world.end(member.process)

    def kill(self, member: CrowdMember) -> None:
        """As SIGKILL."""
        self._gone.append(self.members.pop(member.process))
        for partition in member.held:
            del self.holders[partition]
        member.process.frozen = True
        self.network.cut(member.process, arrives=True)

    def lose_leader(self, seconds: float) -> None:
        """No server has a quorum for so long; then the others have elected another leader."""
        self.ensemble.stop_leader(self.ensemble.servers[0], seconds, 0.0)
        self.world.pass_time(seconds)

    def rest(self, within: float, since: float | None = None) -> float:
        """The seconds from `since` (None: now) until nothing changes any more.

        Raises AssertionError if that takes too long, or if anything is not as it has to be then.
        """
        began = self.world.now if since is None else since
        self.changed = max(self.changed, began)
        rested = self.world.pass_time(within, lambda: self._settled and self.world.now - self.changed >= QUIET)
        assert rested, f"{len(self.holders)} partitions are held, {len(self._registered)} members registered"
        assert not self.twice, self.twice[:5]
        assert not self.errors, self.errors[:5]
        nodes = self.ensemble.tree.nodes
        for partition, member in self.holders.items():
            owner = nodes[GroupPaths(GROUP).owner(partition)]
            assert ConsumerThreadId.parse(owner.data.decode()).consumer in self._registered
            assert self.network.processes[owner.owner] is member.process
        shares = [len(member.held) for member in self.members.values()]
        assert max(shares) - min(shares) <= len(self.topics), sorted(shares)
        return self.changed - began

    def costs(self) -> list[Cost]:
        """Of each member since the last call."""
        found = [member.cost for member in self.members.values()]
        (processor, wall), self._since = self._since, (time.process_time(), time.perf_counter())
        share = (self._since[0] - processor) / (self._since[1] - wall)
        for member in self.members.values():
            member.cost.processor *= share
            member.cost = Cost()
        return found

    def taken(self, member: CrowdMember, partitions: Iterable[TopicPartition]) -> None:
        self.changed = self.world.now
        for partition in partitions:
            if partition in self.holders:
                self.twice.append(f"{partition} is assigned at {self.world.now:.3f}, and held by another member")
            self.holders[partition] = member

    def given_up(self, member: CrowdMember, partitions: Iterable[TopicPartition]) -> None:
        self.changed = self.world.now
        for partition in partitions:
            if self.holders.get(partition) is member:
                del self.holders[partition]

    def end(self) -> None:
        for member in self.members.values():
            assert member.task is not None
            member.task.cancel()
        tasks = [member.task for member in self.members.values() if member.task is not None]
        self.world.pass_time(60.0, lambda: all(task.done() for task in tasks))
        for member in [*self.members.values(), *self._gone]:
            if member.process in self.world.processes:
                member.process.frozen = False
                if member.task is not None:
                    member.task.cancel()
        for process in list(self.world.processes):
            self.world.end(process)

    @property
    def _registered(self) -> dict[str, None]:
        node = self.ensemble.tree.nodes.get(GroupPaths(GROUP).ids)
        return node.children if node is not None else {}

    @property
    def _settled(self) -> bool:
        return len(self.holders) == len(self.logs.logs) and len(self._registered) == len(self.members)


@contextmanager
def crowd(seed: int, topics: int, partitions: int, assignor: str = "range") -> Iterator[Crowd]:
    """A group without members."""
    made = Crowd(seed, topics, partitions, assignor)

    def dropped(_: Any, level: str, event: MutableMapping[str, Any]) -> str:
        if level == "error":
            made.errors.append(str(event))
        raise structlog.DropEvent

    logging = structlog.get_config()
    structlog.configure(processors=[dropped])
    with product_in(made.world), _measured(made):
        try:
            yield made
        finally:
            made.end()
            structlog.configure(**logging)


@contextmanager
def _measured(crowd: Crowd) -> Iterator[None]:
    """Counts by observing the product's internals, in the process that runs them."""
    send, received, add, turn = Link.send, Link.data_received, RebalanceCounters.add, Process.turn

    def cost() -> Cost:
        member = crowd.members.get(cast(Process, asyncio.get_running_loop()))
        return member.cost if member is not None else Cost()

    def counted_send(link: Link, body: bytes, *more: Any) -> None:
        (code,) = struct.unpack_from("!i", body)
        cost().requests["probe" if body == PROBE else OPERATIONS.get(code, str(code))] += 1
        send(link, body, *more)

    def counted_received(link: Link, data: bytes) -> None:
        cost().received += len(data)
        received(link, data)

    def counted_rebalance(counters: RebalanceCounters, rebalance: Rebalance) -> None:
        cost().rebalances += 1
        add(counters, rebalance)

    def timed_turn(process: Process) -> None:
        began = time.perf_counter()  # asking for processor time at each turn would cost more than most turns
        turn(process)
        if (member := crowd.members.get(process)) is not None:
            member.cost.processor += time.perf_counter() - began

    patches: list[tuple[type, str, Callable[..., Any]]] = [
        (Link, "send", counted_send),
        (Link, "data_received", counted_received),
        (RebalanceCounters, "add", counted_rebalance),
        (Process, "turn", timed_turn),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, counted in patches:
            stack.enter_context(mock.patch.object(owner, name, counted))
        yield
