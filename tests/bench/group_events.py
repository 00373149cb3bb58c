"""One group of two members under a steady flow, and the cost of its events.

The second member joins, is stopped, is killed, and joins beside an application that is always busy.

`measure` uses a topic and a group of its own, a flow of records, and member processes of one kind. Both kinds are
observed from outside in the same way: their output is timestamped here, owners are read from ZooKeeper. All times are
on `kzconsumer.clock`, in seconds.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio
import anyio.to_thread

from kzconsumer import clock
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.flow import flow
from tests.support.original import console_consumer
from tests.support.printing_member import printing_member
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.steady_flow import Owners
from tests.support.zookeeper_sessions import session, until

PARTITIONS = 8
SESSION_TIMEOUT = 6.0
KEPT, MOVED = range(PARTITIONS // 2), range(PARTITIONS // 2, PARTITIONS)
"""The range rule assigns the upper half to the second member, whose name sorts after the first one's."""
BEFORE = 1.0
"""How long the flow is observed before an event, to know its gaps without one."""
AFTER = 0.5
APART = 1.5
"""Between a member's own start and the next one's: what is timed is a change of a group at rest. Our members wait for
80 ms more where two changes are less than a second apart (`Calm`)."""
LIMIT = 40.0

BODY = 0.001
"""Seconds that the busy application spends on each record; of a backlog that lasts for longer than is watched."""
BACKLOG = 40_000

JOIN, STOP, KILL, BUSY = EVENTS = ("join", "stop", "kill", "busy")
OURS, ORIGINAL = KINDS = ("ours", "original")


class Signalled(Protocol):
    def signal(self, number: signal.Signals) -> None: ...


class Delivery(NamedTuple):
    at: float
    partition: int


class Member:
    """A member process and its output, read as it grows: each line is timestamped when it is read, within 2 ms."""

    def __init__(self, consumer: str, process: Signalled, out: Path, partition: Callable[[bytes], int]) -> None:
        self.consumer = consumer
        self.process = process
        self.delivered: list[Delivery] = []
        self._out = out
        self._partition = partition
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"output of {consumer}", daemon=True)
        self._thread.start()

    def since(self, at: float, partitions: Collection[int]) -> dict[int, float]:
        """Partition -> when its first record after `at` was delivered."""
        first: dict[int, float] = {}
        for delivery in list(self.delivered):
            if delivery.at > at and delivery.partition in partitions:
                first.setdefault(delivery.partition, delivery.at)
        return first

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _follow(self) -> None:
        rest = b""
        with self._out.open("rb", buffering=0) as out:
            while not self._ending.wait(0.002):
                data = out.read(1 << 20)
                if data:
                    now = clock.now()
                    *lines, rest = (rest + data).split(b"\n")
                    self.delivered.extend(Delivery(now, self._partition(line)) for line in lines if line)


class Group:
    """The group under measurement."""

    def __init__(self, servers: Servers, cluster: Cluster, kind: str, name: str, folder: Path) -> None:
        self.servers = servers
        self.cluster = cluster
        self.kind = kind
        self.name = name
        self.folder = folder
        self.owners = Owners()

    @contextmanager
    def member(self, name: str, work: float = 0.0) -> Iterator[Member]:
        """`work` seconds are spent on each record, only by ours."""
        running: AbstractContextManager[Signalled]
        if self.kind == OURS:
            running = printing_member(
                self.folder, name, self.cluster.connect, self.name, self.name, timeout=SESSION_TIMEOUT, work=work
            )
            out, partition = self.folder / f"{name}.out", lambda line: int(line.split()[1])
        else:
            running = console_consumer(
                self.servers, self.cluster, self.name, self.name, self.folder / name, consumer=name
            )
            out, partition = self.folder / name / "out", lambda line: int(line.split(b"/")[1])
        with running as process:
            member = Member(f"{self.name}_{name}", process, out, partition)
            try:
                yield member
            finally:
                member.end()


async def measure(
    servers: Servers, cluster: Cluster, kind: str, name: str, folder: Path, events: Collection[str]
) -> dict[str, float]:
    """By figure: seconds. One run of the selected events, in a group of that kind and name."""
    found = await _steady(servers, cluster, kind, name, folder, events) if set(events) - {BUSY} else {}
    if BUSY in events and kind == OURS:  # the original's console consumer has no loop body that takes time
        found |= await _busy(servers, cluster, kind, f"{name}-busy", folder)
    return {figure: value for figure, value in found.items() if figure.split(":")[0] in events}


async def _busy(servers: Servers, cluster: Cluster, kind: str, name: str, folder: Path) -> dict[str, float]:
    """The second member joins while the first one's application always has a record in hand, and more waiting."""
    await create_topic(cluster.connect, name, PARTITIONS)
    # Only in partitions that move: a stream has one partition in hand at a time.
    records = [Sent(MOVED[number % len(MOVED)], None, b"%d" % number) for number in range(BACKLOG)]
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, cluster.version, name, records)
    group = Group(servers, cluster, kind, name, folder / BUSY)
    async with session(cluster.connect, 20) as zookeeper, anyio.create_task_group() as tasks:
        tasks.start_soon(group.owners.watch, zookeeper, name, name, PARTITIONS)
        with group.member("a", BODY) as first:
            await until(lambda: bool(first.delivered), LIMIT)
            await anyio.sleep(APART)
            with group.member("b", BODY) as second:
                path = f"/consumers/{name}/ids/{second.consumer}"
                await until(lambda: group.owners.holds(second.consumer) == set(MOVED), LIMIT)
                registered = _on_our_clock((await zookeeper.get(path)).stat.ctime)
                owned = await _owned_since(group, zookeeper, second.consumer, MOVED)
        tasks.cancel_scope.cancel()
    return {"busy: until half is owned": owned - registered}


async def _steady(
    servers: Servers, cluster: Cluster, kind: str, name: str, folder: Path, events: Collection[str]
) -> dict[str, float]:
    await create_topic(cluster.connect, name, PARTITIONS)
    group = Group(servers, cluster, kind, name, folder)
    found: dict[str, float] = {}
    async with session(cluster.connect, 20) as zookeeper, anyio.create_task_group() as tasks:
        tasks.start_soon(group.owners.watch, zookeeper, name, name, PARTITIONS)
        with flow(cluster, name, PARTITIONS) as records, group.member("a") as first:
            await until(lambda: len(first.since(0, range(PARTITIONS))) == PARTITIONS, LIMIT)
            if JOIN in events or STOP in events:
                await anyio.sleep(APART)
                with group.member("b") as second:
                    found |= await _join(group, zookeeper, first, second)
                    if STOP in events:
                        found |= await _stop(group, zookeeper, first, second)
            if KILL in events:
                await until(lambda: group.owners.holds(first.consumer) == set(range(PARTITIONS)), LIMIT)
                with group.member("c") as second:
                    await _settled(group, first, second)
                    found |= await _kill(group, zookeeper, first, second)
            await anyio.to_thread.run_sync(records.end)
        tasks.cancel_scope.cancel()
    return found


async def _settled(group: Group, first: Member, second: Member) -> None:
    """Until each owns half and delivers from all of it."""
    await until(
        lambda: group.owners.holds(first.consumer) == set(KEPT) and group.owners.holds(second.consumer) == set(MOVED),
        LIMIT,
    )
    now = clock.now()
    await until(lambda: len(first.since(now, KEPT)) + len(second.since(now, MOVED)) == PARTITIONS, LIMIT)


async def _join(group: Group, zookeeper: ZooKeeperSession, first: Member, second: Member) -> dict[str, float]:
    await anyio.sleep(BEFORE)
    await _settled(group, first, second)
    await anyio.sleep(AFTER)
    registration = await zookeeper.get(f"/consumers/{group.name}/ids/{second.consumer}")
    registered = _on_our_clock(registration.stat.ctime)
    owned = await _owned_since(group, zookeeper, second.consumer, MOVED)
    return {
        "join: until half is owned": owned - registered,
        "join: pause, moved partitions": _pause(MOVED, registered, first, second),
        "join: pause, kept partitions": _pause(KEPT, registered, first, second),
    }


async def _stop(group: Group, zookeeper: ZooKeeperSession, first: Member, second: Member) -> dict[str, float]:
    began = clock.now()
    second.process.signal(signal.SIGTERM)
    await until(lambda: len(first.since(began, MOVED)) == len(MOVED), LIMIT)
    owned = await _owned_since(group, zookeeper, first.consumer, MOVED)
    delivered = max(first.since(began, MOVED).values())
    return {"stop: until all is owned": owned - began, "stop: until all is delivered": delivered - began}


async def _kill(group: Group, zookeeper: ZooKeeperSession, first: Member, second: Member) -> dict[str, float]:
    began = clock.now()
    second.process.signal(signal.SIGKILL)
    await until(lambda: len(first.since(began, MOVED)) == len(MOVED), LIMIT)
    expired = max(tenure.until for tenure in group.owners.past if tenure.consumer == second.consumer)
    owned = await _owned_since(group, zookeeper, first.consumer, MOVED)
    delivered = max(first.since(began, MOVED).values())
    return {
        "kill: until its nodes are gone": expired - began,
        "kill: then until all is owned": owned - expired,
        "kill: then until all is delivered": delivered - expired,
    }


def _pause(partitions: Collection[int], event: float, *members: Member) -> float:
    """The longest time without a delivery around the event, minus the longest in as much time before; at least 0.

    The flow itself has gaps: those of its rate, and those of a busy machine.
    """
    before = after = 0.0
    for partition in partitions:
        times = sorted(each.at for member in members for each in member.delivered if each.partition == partition)
        for earlier, later in pairwise(times):
            if later > event:
                after = max(after, later - earlier)
            elif later > event - BEFORE:
                before = max(before, later - earlier)
    return max(0.0, after - before)


async def _owned_since(group: Group, zookeeper: ZooKeeperSession, consumer: str, partitions: Collection[int]) -> float:
    """When the last of the owner nodes was created, by the server's clock: to the millisecond, whenever it is read."""
    nodes = [await zookeeper.get(f"/consumers/{group.name}/owners/{group.name}/{number}") for number in partitions]
    assert all(node.data.decode().startswith(f"{consumer}-") for node in nodes), nodes
    return _on_our_clock(max(node.stat.ctime for node in nodes))


def _on_our_clock(milliseconds: int) -> float:
    return milliseconds / 1000 - time.time() + clock.now()
