"""A group under every fault that hypothesis generates, on servers in memory with a virtual clock.

The members are `kzconsumer.connect` itself: connector, session, rebalancer, claims, commits, fetchers and streams are
the product's. Only sockets, time and the servers are simulated. `promises` checks what must hold at every transaction
and at every record and, once the faults are over, that the group comes to rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kzconsumer.model import TopicPartition
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.lost_replies import KINDS, SYSTEM_ERROR, Kind, Loss
from tests.support.simulated.member import Member
from tests.support.simulated.scene import SESSION_TIMEOUT, Scene

MOST_MEMBERS = 4
MOST_PARTITIONS = 10
REST = 45.0
"""Seconds in which a group without faults has to come to rest, and does not leave it for `STILL` more."""
STILL = 8.0

ANY = st.integers(0, 11)
"""Which member, topic, partition or server: the remainder counts."""
WAITS = st.sampled_from((0.0, 0.01, 0.05, 0.2, 0.6, 1.5, 4.0, SESSION_TIMEOUT + 1))
"""Time that passes after an event, before the next."""
FAULTS = st.sampled_from((0.05, 0.5, 1.5, 2.5, 4.0, SESSION_TIMEOUT, 2 * SESSION_TIMEOUT))
"""How long one lasts: shorter and longer than a third, a half and all of the session timeout."""
PACES = st.sampled_from((0.0, 0.005, 0.005, 0.05, 1.0, 7.0))
"""Seconds an application needs for a record or batch: a part of a lot's time, and more than the revoke deadline."""
NTH = st.sampled_from((1, 1, 2, 3))
REFUSED: tuple[Kind, ...] = ("claim", "release", "change of thread")
"""With an error that says nothing: a member goes on. By others it ends, as when its first offsets are refused."""
LOSSES = st.one_of(
    st.builds(Loss, st.booleans(), st.sampled_from((None, *KINDS)), NTH),
    st.builds(Loss, st.just(False), st.sampled_from(REFUSED), NTH, st.just(SYSTEM_ERROR)),
)
CLOCKS = st.sampled_from((3600.0, -3600.0, 0.5))
"""Seconds by which the wall clock is set."""
OVERLOADS = st.sampled_from((0.3, 0.7))
"""The share of requests that ZooKeeper does not execute."""
TAKING = ("messages", "batches", "acknowledged messages")
BURSTS = st.sampled_from((40, 200, 600))
"""Records produced at once: an application is in the middle of a lot for a while."""


LAGS: tuple[tuple[float, float], ...] = ((0.0, 0.0), (0.0005, 0.01), (0.0, 0.4))
SCENES = st.builds(
    Scene,
    assignor=st.sampled_from(("range", "roundrobin", "sticky")),
    ownership=st.sampled_from(("keep", "keep", "eager")),
    reset=st.sampled_from(("smallest", "smallest", "largest")),
    lag=st.sampled_from(LAGS),
    looks=st.sampled_from(("1h", "1h", "3s")),  # what events alone have to do must not be hidden by reconciliation
)


class ProcessesMachine(RuleBasedStateMachine):
    """Faults of a simulated group's processes, members or daemons, and of its servers; records, and time.

    `begin` enters `group`.
    """

    group: SimulatedGroup

    def __init__(self) -> None:
        super().__init__()
        self.exits = ExitStack()

    @property
    def faults(self) -> Any:
        """What does them: `SimulatedGroup`, or `DaemonFaults`."""
        raise NotImplementedError

    @property
    def active(self) -> Sequence[Any]:
        """The processes that run."""
        raise NotImplementedError

    def one(self, which: int) -> Any:
        return self.active[which % len(self.active)]

    def partition(self, which: int) -> TopicPartition:
        partitions = self.group.logs.partitions
        return partitions[which % len(partitions)]

    @precondition(lambda self: self.active)
    @rule(which=ANY, wait=WAITS)
    def kill(self, which: int, wait: float) -> None:
        self.faults.kill(self.one(which))
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, lasts=FAULTS, wait=WAITS)
    def freeze(self, which: int, lasts: float, wait: float) -> None:
        self.faults.freeze(self.one(which), lasts)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, lasts=FAULTS, wait=WAITS)
    def silence(self, which: int, lasts: float, wait: float) -> None:
        self.faults.silence(self.one(which), lasts)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, arrives=st.booleans(), wait=WAITS)
    def cut(self, which: int, arrives: bool, wait: float) -> None:
        self.group.network.cut(self.one(which).process, arrives)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, loss=LOSSES, wait=WAITS)
    def lose_a_reply(self, which: int, loss: Loss, wait: float) -> None:
        self.group.network.losing[self.one(which).process] = replace(loss)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, slow=st.booleans())
    def change_line(self, which: int, slow: bool) -> None:
        self.faults.change_line(self.one(which), slow)

    @precondition(lambda self: self.active)
    @rule(which=ANY, wait=WAITS)
    def expire(self, which: int, wait: float) -> None:
        self.faults.expire(self.one(which))
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, wait=WAITS)
    def delete_registration(self, which: int, wait: float) -> None:
        self.faults.delete_registration(self.one(which))
        self.wait(wait)

    @rule(which=ANY, wait=WAITS)
    def delete_owner(self, which: int, wait: float) -> None:
        self.faults.delete_owner(self.partition(which))
        self.wait(wait)

    @rule(which=ANY, lasts=FAULTS, wait=WAITS)
    def cut_off_server(self, which: int, lasts: float, wait: float) -> None:
        self.faults.cut_off(which % 3, lasts)
        self.wait(wait)

    @rule(lasts=FAULTS, wait=WAITS)
    def take_brokers(self, lasts: float, wait: float) -> None:
        self.group.take_brokers(lasts)
        self.wait(wait)

    @rule(records=BURSTS, wait=WAITS)
    def produce_a_burst(self, records: int, wait: float) -> None:
        self.group.logs.burst(records)
        self.wait(wait)

    @rule(seconds=st.sampled_from((1.0, 3.0, 10.0)))
    def wait(self, seconds: float) -> None:
        self.group.world.pass_time(seconds)


class GroupMachine(ProcessesMachine):
    """Members, topics and faults."""

    def __init__(self) -> None:
        super().__init__()
        self.names = 0
        self.acknowledging = False
        """All members do, out of order and after a while, so that records are always in hand."""

    @initialize(seed=st.integers(0, 2**16), partitions=st.integers(1, 5), scene=SCENES)
    def begin(self, seed: int, partitions: int, scene: Scene) -> None:
        self.start(seed, partitions, scene)

    def start(self, seed: int, partitions: int, scene: Scene) -> None:
        scene = replace(
            scene,
            session_partitions=2 if seed % 3 == 0 else scene.session_partitions,
            nodes_at_once=1 if seed % 2 == 1 else scene.nodes_at_once,
            quiet=seed % 4 in (1, 2) or scene.quiet,
            most_unacknowledged=2 if seed % 5 == 1 else scene.most_unacknowledged,
        )
        self.group = self.exits.enter_context(simulated_group(seed, scene))
        self.acknowledging = seed % 7 in (2, 3)
        self.group.logs.grow("t", partitions)
        self.topics = ["t"]

    # -- members

    @precondition(lambda self: len(self.active) < MOST_MEMBERS)
    @rule(streams=st.integers(1, 3), listed=st.booleans(), pace=PACES, taking=st.sampled_from(TAKING), wait=WAITS)
    def join(self, streams: int, listed: bool, pace: float, taking: str, wait: float) -> None:
        self.names += 1
        if self.acknowledging:
            taking, pace = "acknowledged messages", max(pace, 0.3)
        subscription = streams if listed else {self.topics[0]: streams}
        in_batches, explicit = taking == "batches", taking == "acknowledged messages"
        self.group.join(f"m{self.names}", subscription, pace, in_batches=in_batches, explicit=explicit)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, cancelled=st.booleans(), wait=WAITS)
    def leave(self, which: int, cancelled: bool, wait: float) -> None:
        self.group.leave(self.member(which), cancelled=cancelled)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, streams=st.integers(1, 3), wait=WAITS)
    def kill_and_start_again(self, which: int, streams: int, wait: float) -> None:
        """With another number of streams, perhaps: its id is the same, and its registration another one."""
        member = self.member(which)
        before = member.subscription
        changed = streams if isinstance(before, int) else dict.fromkeys(before, streams)
        self.group.kill(member)
        self.group.join(member.name, changed, member.pace, in_batches=member.in_batches, explicit=member.explicit)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, pace=PACES)
    def change_pace(self, which: int, pace: float) -> None:
        self.member(which).pace = pace

    # -- what applications do

    @precondition(lambda self: self.active)
    @rule(which=ANY, partition=ANY, wait=WAITS)
    def pause(self, which: int, partition: int, wait: float) -> None:
        self.group.pause(self.member(which), self.partition(partition))
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, wait=WAITS)
    def resume(self, which: int, wait: float) -> None:
        self.group.resume(self.member(which))
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, lasts=st.sampled_from((0.0, 0.05, 0.6)), times=st.sampled_from((1, 1, 4)), wait=WAITS)
    def pause_shortly(self, which: int, lasts: float, times: int, wait: float) -> None:
        """While records may be in hand, and still are when the next ones come."""
        member = self.member(which)
        for _ in range(times):
            for partition in sorted(member.owned):
                self.group.pause(member, partition)
            self.wait(lasts)
            self.group.resume(member)
            self.wait(0.3)
        self.wait(wait)

    @precondition(lambda self: any(member.owned for member in self.active))
    @rule(which=ANY, partition=ANY, part=st.integers(0, 3), wait=WAITS)
    def seek(self, which: int, partition: int, part: int, wait: float) -> None:
        members = [member for member in self.active if member.owned]
        member = members[which % len(members)]
        owned = sorted(member.owned)[partition % len(member.owned)]
        self.group.seek(member, owned, self.group.logs.end(owned) * part // 4)
        self.wait(wait)

    # -- what other programs do

    @precondition(lambda self: len(self.group.logs.partitions) < MOST_PARTITIONS)
    @rule(which=ANY, partitions=st.integers(1, 2), wait=WAITS)
    def add_partitions(self, which: int, partitions: int, wait: float) -> None:
        self.group.logs.grow(self.topics[which % len(self.topics)], partitions)
        self.wait(wait)

    @precondition(lambda self: len(self.group.logs.partitions) < MOST_PARTITIONS)
    @rule(partitions=st.integers(1, 3), wait=WAITS)
    def add_topic(self, partitions: int, wait: float) -> None:
        self.topics.append(f"t{len(self.topics)}")
        self.group.logs.grow(self.topics[-1], partitions)
        self.wait(wait)

    @rule(which=ANY, part=st.integers(0, 4), wait=WAITS)
    def set_offset(self, which: int, part: int, wait: float) -> None:
        partition = self.partition(which)
        self.group.set_offset(partition, self.group.logs.end(partition) * part // 4)
        self.wait(wait)

    @rule(which=ANY, after=st.sampled_from((None, 0.0, 0.03, 0.3)), wait=WAITS)
    def delete_claim_record(self, which: int, after: float | None, wait: float) -> None:
        self.group.delete_claim_record(self.partition(which), after)
        self.wait(wait)

    @rule(lasts=FAULTS, wait=WAITS)
    def poison(self, lasts: float, wait: float) -> None:
        self.group.poison(lasts)
        self.wait(wait)

    # -- what must hold

    @invariant()
    def nothing_wrong(self) -> None:
        self.group.check()

    def teardown(self) -> None:
        with self.exits:
            if hasattr(self, "group") and not self.group.promises.violations:
                self.group.come_to_rest(REST, STILL)

    # -- which member or partition is meant

    @property
    def active(self) -> list[Member]:
        return [member for member in self.group.members if member.active]

    @property
    def faults(self) -> SimulatedGroup:
        return self.group

    def member(self, which: int) -> Member:
        return self.active[which % len(self.active)]
