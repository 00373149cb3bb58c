"""A whole group in one simulated world: members that are `kzconsumer.connect` itself, and the checks of their promises.

`SimulatedGroup` owns the world, its ensemble and the members; faults come from its caller, `promises` checks what must
never happen, and `come_to_rest` what must hold when nothing happens any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast
from unittest import mock

import structlog
from msgspec import structs

from kzconsumer.brokers.protocol.log_reads import ISOLATION_LEVELS
from kzconsumer.fetcher import fetcher_manager
from kzconsumer.group import owned_partitions, reconciler
from kzconsumer.model import TopicPartition
from kzconsumer.registry.paths import BROKER_TOPICS, GroupPaths
from kzconsumer.zookeeper import watches
from kzconsumer.zookeeper.operations import Create, Delete, SetData
from tests.support.simulated.broker import SimulatedBroker
from tests.support.simulated.broker_faults import BrokerFaults
from tests.support.simulated.coordinator import Coordinator
from tests.support.simulated.copies import Copies
from tests.support.simulated.ensemble import Ensemble
from tests.support.simulated.kafka_frames import NONE
from tests.support.simulated.member import GROUP, Member, Subscription, listed
from tests.support.simulated.network import CHROOT, QUICK, SLOW, SimulatedNetwork
from tests.support.simulated.partition_logs import PartitionLogs, host
from tests.support.simulated.product import decoding_in, product_in
from tests.support.simulated.promises import Promises
from tests.support.simulated.queues import queues_checked
from tests.support.simulated.rest import forgotten_ends, unended, unreported, unsettled
from tests.support.simulated.scene import SESSION_TIMEOUT, Scene, settings_of
from tests.support.simulated.strays import Strays
from tests.support.simulated.turns import Turns
from tests.support.simulated.virtual_time import Process, World

MOST_AT_REST = 10.0
"""Requests a second that a member may send on a connection when nothing happens: it has 3 to 6."""
UNSEEN = 2 * SESSION_TIMEOUT
"""Seconds until members have found what no event reports: they look every 3 s."""
_AT_ONCE = (
    (owned_partitions, "VERIFIED_AT_ONCE"),
    (reconciler, "OTHERS_AT_ONCE"),
    (watches, "REREAD_AT_ONCE"),
)


class SimulatedGroup:
    """See the module; made by `simulated_group`."""

    def __init__(self, seed: int, scene: Scene) -> None:
        self.scene = scene
        self._settings = settings_of(scene)
        self.world = World(seed)
        self.ensemble = Ensemble(self.world, lag=scene.lag, chroot=CHROOT)
        self.network = SimulatedNetwork(self.ensemble)
        self.logs = PartitionLogs(self.ensemble, scene.brokers, scene.record_bytes, scene.quiet)
        self.brokers = [SimulatedBroker(self.world, self.logs, number) for number in self.logs.brokers]
        self.network.hosts.update({host(broker.number): broker for broker in self.brokers})
        self.paths = GroupPaths(GROUP)
        self.members: list[Member] = []
        self.promises = Promises(self.ensemble, self.network, self.logs, self.members, scene.reset)
        self.turns = Turns(self.brokers, self.promises)
        self.strays = Strays(self.promises, self._offsets_hang, looks_often=scene.looks == "3s")
        self.broker_faults = BrokerFaults(self.world, self.logs, self.brokers, self.promises)
        self.coordinator = Coordinator()
        for broker in self.brokers:
            self._begin(broker)
        self.copies = Copies(self.promises, self.coordinator) if scene.storage == "both" else None
        self.coordinator.knows = self.logs.logs.__contains__
        self.coordinator.committed.append(partial(self.promises.given_to_coordinator, scene.storage == "both"))
        self.events: list[Mapping[str, Any]] = []
        """The members' log events; `member` names the member."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._no_leader_until = self._overloaded_until = 0.0

    # -- what the caller does

    def join(
        self,
        name: str,
        subscription: Subscription,
        pace: float,
        *,
        in_batches: bool,
        stop_at: Mapping[TopicPartition, int] | None = None,
        explicit: bool = False,
        assignor: str | None = None,
    ) -> Member:
        """`assignor`: another one than the group's."""
        process = self.world.process(name)
        member = Member(self.promises, name, process, subscription, pace, in_batches, stop_at, explicit)
        self.members.append(member)
        if (until := max(self._no_leader_until, self._overloaded_until)) > self.world.now:
            self.trouble(member, until - self.world.now)
            self.promises.late(member, until)
        known_as = structs.replace(
            self._settings.group, consumer_id=name, assignor=assignor or self._settings.group.assignor
        )
        settings = structs.replace(self._settings, group=known_as)
        member.task = process.create_task(member.run(settings))
        self.ends_its_connections(process, member.task, self.promises.violated)
        return member

    def ends_its_connections(self, process: Process, task: asyncio.Task[Any], violated: Callable[[str], None]) -> None:
        """When the task has ended nothing of it may hold a connection, whatever the servers do about theirs.

        It is cancelled at the end of the world, if it still runs.
        """
        self._tasks.append(task)

        def ended(_: object) -> None:
            if left := [line for line in self.network.lines_of(process) if not line.is_closing()]:
                violated(f"{process.name} has ended, and holds {len(left)} connections")

        task.add_done_callback(ended)

    def leave(self, member: Member, *, cancelled: bool = False) -> None:
        """`cancelled`: with its application, which ends at once; the member leaves in order all the same."""
        member.left_at = self.world.now
        member.process.call_soon(member.scope.cancel if cancelled else member.stopping.set)

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
        self.promises.late(member, self.world.now + seconds)
        member.process.frozen = True
        member.freezes += 1
        self.world.after(seconds, lambda: self._thaw(member))

    def silence(self, member: Member, seconds: float) -> None:
        """Its packets are lost."""
        self.trouble(member, seconds)
        self.promises.late(member, self.world.now + seconds)
        self.network.set_silent(member.process, True)
        member.silences += 1
        self.world.after(seconds, lambda: self._unsilence(member))

    def change_line(self, member: Member, slow: bool) -> None:
        self.network.latency[member.process] = SLOW if slow else QUICK

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

    def wait_for_a_leader(self) -> None:
        """Until ZooKeeper has one again."""
        self.world.pass_time(max(self._no_leader_until - self.world.now, 0.0))

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

    def overload(self, share: float, seconds: float) -> None:
        """ZooKeeper's servers do not execute so many of the requests."""
        for member in self.members:
            self.trouble(member, seconds)
            self.promises.late(member, self.world.now + seconds)
        self.ensemble.throttled = share
        self._overloaded_until = max(self._overloaded_until, self.world.now + seconds)
        self.world.after(seconds, lambda: setattr(self.ensemble, "throttled", 0.0))

    def refuse_offsets(self, error: int, seconds: float) -> None:
        """The coordinator of the group's offsets stores and returns none."""
        self.coordinator.refuses = error
        self.world.after(seconds, lambda: setattr(self.coordinator, "refuses", NONE))

    def poison(self, seconds: float, registration: bytes = b"a topic") -> None:
        """An unreadable registration: every member waits until it leaves."""
        path = self.paths.member("unreadable")
        self.ensemble.operate(Create(path, registration))
        self.world.after(seconds, lambda: self.ensemble.operate(Delete(path, -1)))

    def _offsets_hang(self) -> bool:
        return self.copies is not None and any(broker.silent for broker in self.brokers)

    def take_brokers(self, seconds: float) -> None:
        """No broker is registered."""
        self.logs.register(up=False)
        self.world.after(seconds, lambda: self.logs.register(up=True))

    def replace_broker(self, number: int) -> None:
        """Its machine has lost its power, and another one has its id and its logs, at another address."""
        self.brokers[number].set_silent(True)
        address = self.logs.move(number)
        self.brokers[number] = self.network.hosts[address] = SimulatedBroker(self.world, self.logs, number)
        self._begin(self.brokers[number])

    def _begin(self, broker: SimulatedBroker) -> None:
        broker.coordinator = self.coordinator
        broker.isolation = ISOLATION_LEVELS[self._settings.fetch.isolation]

    def lose_brokers(self, member: Member) -> None:
        """It reaches no broker until `find_brokers`."""
        member.without_brokers = True
        self.network.cut_brokers(member.process)

    def find_brokers(self, member: Member) -> None:
        member.without_brokers = False
        self.network.brokerless.discard(member.process)

    def restore_zookeeper(self, ago: float, *, elected: bool) -> None:
        """From a copy of so many seconds ago, but not from before a topic changed: the brokers would not go back."""
        log = self.ensemble.log
        copy = max((each.zxid for each in log if each.time_ms <= (self.world.now - ago) * 1000), default=0)
        changes = (each.zxid for each in log for o in each.operations if o.path.startswith(BROKER_TOPICS))
        for member in self.members:
            self.trouble(member, 2 * SESSION_TIMEOUT)
        self.ensemble.restore(max([copy, *changes]), elected=elected)
        self.promises.restored(self.world.now + 2 * SESSION_TIMEOUT)
        self.logs.register(up=True)

    def delete_nodes(self) -> None:
        """All of the group's, as `deleteall` of ZooKeeper's shell does: sessions go on."""
        for member in self.members:
            self.trouble(member, 2 * SESSION_TIMEOUT)
        below = [path for path in self.ensemble.tree.nodes if path.startswith(f"{self.paths.root}/")]
        observers, self.ensemble.committed = self.ensemble.committed, []
        self.ensemble.operate(*(Delete(path, -1) for path in sorted(below, key=len, reverse=True)))
        self.ensemble.committed = observers
        self.promises.restored(self.world.now + 2 * SESSION_TIMEOUT)

    def delete_owner(self, partition: TopicPartition) -> None:
        self.promises.disturb(partition)
        self.ensemble.operate(Delete(self.paths.owner(partition), -1))

    def delete_claim_record(self, partition: TopicPartition, after: float | None) -> None:
        """`after`: the owner node so many seconds before, as `deleteall` goes through the nodes; None: it stands."""
        if after is not None:
            self.delete_owner(partition)
            self.world.pass_time(after)
        self.promises.disturb(partition)
        self.promises.unrecorded.add(partition)
        self.ensemble.operate(Delete(self.paths.claim_record(partition), -1))

    def change_owner_unseen(self, partition: TopicPartition, *, deleted: bool) -> None:
        """No watch reports it."""
        path = self.paths.owner(partition)
        for server in self.ensemble.servers:
            server.forget_watches(path)
        self.promises.disturb(partition, UNSEEN)
        self.ensemble.operate(Delete(path, -1) if deleted else SetData(path, b"somebody-0", -1))

    def delete_registration(self, member: Member) -> None:
        """By mistake: it registers again, and owns what it owned."""
        self.trouble(member, 0.0)
        self.promises.unregistered(member)
        self.ensemble.operate(Delete(self.paths.member(member.consumer), -1))

    def set_offset(self, partition: TopicPartition, offset: int) -> None:
        self.promises.disturb(partition)
        self.promises.offsets_changed = True
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
            for seek in member.seeks:
                if seek.done() and not seek.cancelled() and seek.exception() is not None:
                    self.promises.violated(f"a seek of {member.name} failed: {seek.exception()!r}")
            if wrong := forgotten_ends(member):
                self.promises.violated(wrong)
            if member.process.errors:
                self.promises.violated(f"{member.name}: {member.process.errors}")
        violations = self.promises.violations
        assert not violations, "\n".join([*self.promises.trace, "", *violations])

    def come_to_rest(self, within: float, still: float) -> None:
        """No more faults and records: then everything is owned, read and committed, and stays so.

        A rate limit allows so many seconds more as everything in the logs takes.
        """
        if (rate := self._settings.fetch.rate_limit) is not None:
            within += self.logs.size / rate
        self.wait_for_a_leader()
        self.logs.stop()
        self.logs.register(up=True)
        self.broker_faults.end()
        self.coordinator.refuses = NONE
        self.ensemble.operate(Delete(self.paths.member("unreadable"), -1))
        self.ensemble.throttled = 0.0
        self.network.forget_faults()
        for member in self.members:
            member.pace = 0.0
        for server in self.ensemble.servers:
            if server.cut_off:
                server.set_cut_off(False)
        for member in self.members:
            if not member.dead:
                self.network.set_silent(member.process, False)
                member.unfreeze()
                self.resume(member)
        # Members notice the last fault: of a restored ZooKeeper each when it next needs an answer.
        self.world.pass_time(max(self.promises.disturbed_until - self.world.now, 1.0))
        rested = self.world.pass_time(within, lambda: not self.settled(), every=0.5)
        self.check()
        if not rested:
            self.promises.violated(f"no rest within {within} s: {self.settled()}")
        self.world.pass_time(1.0)  # the rebalance that came to this may not have ended
        rebalances = {member.name: member.rebalances for member in self.members if member.active}
        sent, logged = self.network.sent.copy(), len(self.events)
        self.world.pass_time(still)
        for member in self.members:
            count = self.network.sent[member.process] - sent[member.process]
            if count > still * MOST_AT_REST * max(len(self.network.lines_of(member.process)), 1):
                self.promises.violated(f"{member.name} has sent {count} requests in {still} s at rest")
        if noise := [each for each in self.events[logged:] if each["level"] not in ("debug", "info")]:
            self.promises.violated(f"logged at rest: {noise}")
        if self.settled():
            self.promises.violated(f"did not stay at rest: {self.settled()}")
        now = {member.name: member.rebalances for member in self.members if member.active}
        if rebalanced := {name: count - rebalances[name] for name, count in now.items() if count != rebalances[name]}:
            self.promises.violated(f"rebalances at rest: {rebalanced}")
        for member in self.members:
            if not member.active:
                continue
            if wrong := unreported(self.ensemble.tree, member, self.events) or unended(member, self.events):
                self.promises.violated(wrong)
        self.check()

    def settled(self) -> str:
        """What does not hold yet although nothing happens any more; empty if everything does."""
        undone = unsettled(self.ensemble.tree, self.logs, self.promises, self.members, self.scene.assignor)
        return undone or (self.copies.missing(self.members) if self.copies is not None else "")

    def _thaw(self, member: Member) -> None:
        member.freezes -= 1
        if not member.dead and not member.freezes:
            member.unfreeze()

    def _unsilence(self, member: Member) -> None:
        member.silences -= 1
        if not member.silences:
            self.network.set_silent(member.process, False)

    # -- its end

    def end(self) -> None:
        """End all processes without further checks."""
        self.promises.watching = False
        self.network.forget_faults()
        for server in self.ensemble.servers:
            server.set_cut_off(False)
        for member in self.members:
            self.network.set_silent(member.process, False)
            member.process.frozen = False
        tasks = [*self._tasks, *(seek for member in self.members for seek in member.seeks)]
        for task in tasks:
            task.cancel()
        self.world.pass_time(60.0, lambda: all(task.done() for task in tasks))
        for task in tasks:
            # The loop of one that still ran could not be closed: that takes time, and none passes any more.
            assert task.done(), f"{task} has not ended a minute after it was cancelled"
            if not task.cancelled():
                task.exception()
        for process in list(self.world.processes):
            self.world.end(process)
        for line in self.network.lines:  # those of killed processes, too
            line.forget()


@contextmanager
def simulated_group(seed: int, scene: Scene | None = None, **more: Any) -> Iterator[SimulatedGroup]:
    """A group without members, on a clock of its own. `more` are fields of `Scene`."""
    group = SimulatedGroup(seed, replace(scene or Scene(), **more))
    world = group.world

    def traced(_: Any, level: str, event: MutableMapping[str, Any]) -> str:
        try:
            who = cast(Process, asyncio.get_running_loop()).name
        except RuntimeError:
            who = "-"
        group.promises.logged(who, event["event"])
        if group.copies is not None:
            group.copies.logged(who, event["event"])
        group.events.append({"level": level, **event, "member": who})
        group.promises.note(f"{who} {level} {event.pop('event')} {event}")
        raise structlog.DropEvent

    logging = structlog.get_config()
    structlog.configure(processors=[traced])
    checked = queues_checked(group.promises.violated)
    with product_in(world), decoding_in(world, group.scene.decoding), checked, _limits_of(group.scene):
        try:
            yield group
        finally:
            group.end()
            structlog.configure(**logging)


@contextmanager
def _limits_of(scene: Scene) -> Iterator[None]:
    """What takes many partitions otherwise happens with a few."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(fetcher_manager, "SESSION_PARTITIONS", scene.session_partitions))
        if (few := scene.nodes_at_once) is not None:
            for module, name in _AT_ONCE:
                patches.enter_context(mock.patch.object(module, name, few))
        yield


def joined(group: SimulatedGroup, pace: float = 0.0, partitions: int = 4) -> Member:
    """The only member of a group, which has read `t` for a while."""
    group.logs.grow("t", partitions)
    member = group.join("a", {"t": 1}, pace, in_batches=True)
    assert group.world.pass_time(10, lambda: len(member.owned) == partitions)
    group.world.pass_time(3)
    return member
