"""A whole group in one simulated world: members that are `kzconsumer.connect` itself, and the checks of their promises.

`SimulatedGroup` owns the world, its ensemble and the members; faults come from its caller, `promises` checks what must
never happen, and `come_to_rest` what must hold when nothing happens any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, cast
from unittest import mock

import structlog

import kzconsumer
import kzconsumer.member
from kzconsumer.assignors.interface import Assignor
from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.pool import Brokers
from kzconsumer.errors import ConnectionLostError
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.group import rebalancer, reconciler
from kzconsumer.group.assignment import assignment, wanted_by
from kzconsumer.group.snapshot import GroupSnapshot
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.plugins import ASSIGNORS, load_chosen
from kzconsumer.registry import paths
from kzconsumer.registry.nodes import Topic, decode_topic
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.registration import decode_registration, needs_all_topics, subscribed_topics
from kzconsumer.sessions import Sessions
from kzconsumer.settings.sections import FetchSettings
from kzconsumer.zookeeper.operations import Create, Delete, SetData
from tests.support.simulated.ensemble import Ensemble
from tests.support.simulated.member import GROUP, Member, Subscription, listed
from tests.support.simulated.network import SimulatedNetwork
from tests.support.simulated.partition_logs import PartitionLogs, SimulatedFetchers
from tests.support.simulated.promises import Promises
from tests.support.simulated.virtual_time import Process, World, clock_of

SESSION_TIMEOUT = 6.0
COMMIT_INTERVAL = 1.0


class SimulatedGroup:
    """See the module; made by `simulated_group`."""

    def __init__(
        self, seed: int, assignor: str, reset: str, lag: tuple[float, float], looks: str, unowned_alarm: str
    ) -> None:
        self.world = World(seed)
        self.ensemble = Ensemble(self.world, lag=lag)
        self.network = SimulatedNetwork(self.ensemble)
        self.logs = PartitionLogs(self.ensemble)
        self.paths = GroupPaths(GROUP)
        self.members: list[Member] = []
        self.promises = Promises(self.ensemble, self.network, self.members)
        self._assignor_name = assignor
        self._assignor = cast(Assignor, load_chosen(ASSIGNORS, assignor, "test"))
        self._reset = reset
        self._looks = looks
        self._unowned_alarm = unowned_alarm
        self.events: list[Mapping[str, Any]] = []
        """The members' log events; `member` names the member."""
        self._no_leader_until = 0.0

    # -- what the caller does

    def join(self, name: str, subscription: Subscription, pace: float, *, in_batches: bool) -> Member:
        process = self.world.process(name)
        member = Member(self.promises, name, process, subscription, pace, in_batches)
        self.members.append(member)
        if self._no_leader_until > self.world.now:
            self.trouble(member, self._no_leader_until - self.world.now)
        settings = kzconsumer.Settings.from_dict(
            {
                "zookeeper": {"connect": "zk0:2181,zk1:2181,zk2:2181", "session_timeout": f"{SESSION_TIMEOUT}s"},
                "group": {
                    "id": GROUP,
                    "consumer_id": name,
                    "assignor": self._assignor_name,
                    "reconcile_interval": self._looks,
                    "unowned_alarm": self._unowned_alarm,
                },
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
        """As SIGKILL: it never runs again, and its connections break."""
        self.trouble(member, float("inf"))
        member.dead = member.process.frozen = True
        self.network.cut(member.process, arrives=True)

    def trouble(self, member: Member, seconds: float) -> None:
        """A fault of this duration affects the member; it may lose its session and notice that late."""
        member.troubled = max(member.troubled, self.world.now + seconds + 2 * SESSION_TIMEOUT)

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

    def stop_leader(self, server: int, stopped: float, alone: float) -> None:
        """It is suspended, then for a while reports sessions as expired that the others keep. One at a time."""
        if self._no_leader_until > self.world.now:
            return
        self._no_leader_until = self.world.now + stopped + alone
        for member in self.members:
            self.trouble(member, stopped + alone)
        self.ensemble.stop_leader(self.ensemble.servers[server], stopped, alone)

    def expire(self, member: Member) -> None:
        """An operator ends its session, which no lease can predict."""
        self.trouble(member, 0.0)
        for session in self.ensemble.sessions.values():
            if session.alive and self.network.processes.get(session.id) is member.process:
                self.promises.disturb_owned(session.id)
                self.ensemble.close(session)

    def pause(self, member: Member, partition: TopicPartition) -> None:
        member.process.call_soon(member.pause, partition)

    def resume(self, member: Member) -> None:
        member.process.call_soon(member.resume)

    def seek(self, member: Member, partition: TopicPartition, offset: int) -> None:
        self.promises.may_go_to(partition, offset)
        member.seeks.append(member.process.create_task(member.seek(partition, offset)))

    def poison(self, seconds: float, registration: bytes = b"a topic") -> None:
        """An unreadable registration: every member waits until it leaves."""
        path = self.paths.member("unreadable")
        self.ensemble.operate(Create(path, registration))
        self.world.after(seconds, lambda: self.ensemble.operate(Delete(path, -1)))

    def take_brokers(self, seconds: float) -> None:
        """No broker is registered."""
        self.logs.set_broker(up=False)
        self.world.after(seconds, lambda: self.logs.set_broker(up=True))

    def lose_brokers(self, member: Member) -> None:
        """It reaches no broker until `find_brokers`."""
        member.without_brokers = True
        self.logs.out_of_reach.add(member.process)

    def find_brokers(self, member: Member) -> None:
        member.without_brokers = False
        self.logs.out_of_reach.discard(member.process)

    def delete_owner(self, partition: TopicPartition) -> None:
        self.promises.disturb(partition)
        self.ensemble.operate(Delete(self.paths.owner(partition), -1))

    def set_offset(self, partition: TopicPartition, offset: int) -> None:
        self.promises.disturb(partition)
        self.ensemble.operate(SetData(self.paths.offset(partition), b"%d" % offset, -1))

    def check(self) -> None:
        """Raises AssertionError if any promise was broken."""
        for member in self.members:
            task = member.task
            if task is not None and task.done() and (member.active or task.exception() is not None):
                self.promises.violated(f"{member.name} ended: {task.exception()!r}")
            if task is not None and task.done() and not member.active and member.owned:
                self.promises.violated(
                    f"{member.name} left without a notification that {listed(member.owned)} has gone"
                )
            if member.process.errors:
                self.promises.violated(f"{member.name}: {member.process.errors}")
        violations = self.promises.violations
        assert not violations, "\n".join([*self.promises.trace, "", *violations])

    def come_to_rest(self, within: float, still: float) -> None:
        """No more faults and records: then everything is owned, read and committed, and stays so."""
        self.logs.stop()
        self.logs.set_broker(up=True)
        self.ensemble.operate(Delete(self.paths.member("unreadable"), -1))
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
                self.resume(member)
        rested = self.world.pass_time(within, lambda: not self.settled(), every=0.5)
        self.check()
        if not rested:
            self.promises.violated(f"no rest within {within} s: {self.settled()}")
        generations = {member.name: member.generation for member in self.members if member.active}
        self.world.pass_time(still)
        if self.settled():
            self.promises.violated(f"did not stay at rest: {self.settled()}")
        if generations != {member.name: member.generation for member in self.members if member.active}:
            self.promises.violated("a member at rest rebalanced")
        self.check()

    def settled(self) -> str:
        """What does not hold yet although nothing happens any more; empty if everything does."""
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
                return f"{member.name} holds {listed(member.held)}, not {listed(wanted)}"
            if member.owned != set(wanted):
                return f"{member.name} was notified of {listed(member.owned)}, not {listed(wanted)}"
        for partition in assigned:
            if undone := self.promises.unfinished(partition, self.logs.end(partition)):
                return undone
        return ""

    def _thaw(self, member: Member) -> None:
        member.freezes -= 1
        if not member.dead and not member.freezes:
            member.process.frozen = False

    def _unsilence(self, member: Member) -> None:
        member.silences -= 1
        if not member.silences:
            self.network.set_silent(member.process, False)

    def _assigned(self) -> Mapping[TopicPartition, ConsumerThreadId]:
        """As every member must compute it from the content of ZooKeeper."""
        tree = self.ensemble.tree
        members = {
            name: decode_registration(tree.nodes[self.paths.member(name)].data)
            for name in tree.nodes[self.paths.ids].children
        }
        names = tuple(sorted(tree.nodes[paths.BROKER_TOPICS].children))
        topics = {}
        for name in subscribed_topics(members, names):
            if (node := tree.nodes.get(paths.topic(name))) is not None:
                topics[name] = Topic(decode_topic(node.data), node.czxid)
        snapshot = GroupSnapshot(members, names if needs_all_topics(members) else (), topics)
        return assignment(self._assignor_name, self._assignor, snapshot.context())

    # -- its end

    def end(self) -> None:
        """End all processes without further checks."""
        self.promises.watching = False
        self.network.losing.clear()
        self.network.latency.clear()
        for server in self.ensemble.servers:
            server.set_cut_off(False)
        for member in self.members:
            self.network.set_silent(member.process, False)
            member.process.frozen = False
            for task in (member.task, *member.seeks):
                if task is not None:
                    task.cancel()
        tasks = [task for member in self.members for task in (member.task, *member.seeks) if task is not None]
        self.world.pass_time(60.0, lambda: all(task.done() for task in tasks))
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()
        for process in list(self.world.processes):
            self.world.end(process)


@contextmanager
def simulated_group(
    seed: int,
    assignor: str = "range",
    reset: str = "smallest",
    lag: tuple[float, float] = (0.0005, 0.01),
    looks: str = "1h",
    unowned_alarm: str = "1h",
) -> Iterator[SimulatedGroup]:
    """A group without members, on a clock of its own. `looks`: the interval of its reconciliation."""
    group = SimulatedGroup(seed, assignor, reset, lag, looks, unowned_alarm)
    world = group.world

    def fetchers(leaders: Leaders, brokers: Brokers, settings: FetchSettings, reset: OffsetReset, *_: object) -> Any:
        return SimulatedFetchers(group.logs, leaders, reset)

    async def connection(*_: object) -> None:
        if asyncio.get_running_loop() in group.logs.out_of_reach:
            raise ConnectionLostError("no broker answers")

    def traced(_: Any, level: str, event: MutableMapping[str, Any]) -> str:
        try:
            who = cast(Process, asyncio.get_running_loop()).name
        except RuntimeError:
            who = "-"
        if event["event"].startswith("work not finished in time"):
            group.promises.released_late(next(member for member in reversed(group.members) if member.name == who))
        group.events.append({"level": level, "member": who, **event})
        group.promises.note(f"{who} {level} {event.pop('event')} {event}")
        raise structlog.DropEvent

    async def no_kernels(_: Sessions) -> None:
        """They decode nothing here."""

    logging = structlog.get_config()
    structlog.configure(processors=[traced])
    with (
        clock_of(world),
        mock.patch.object(rebalancer, "random", world.random),
        mock.patch.object(reconciler, "random", world.random),
        mock.patch.object(kzconsumer.member, "FetcherManager", fetchers),
        mock.patch.object(Brokers, "connection", connection),
        mock.patch.object(Sessions, "_load_kernels", no_kernels),
    ):
        try:
            yield group
        finally:
            group.end()
            structlog.configure(**logging)
