"""Every fault that a simulated group plays, and the longest time for which a record waits because of it.

Two members with the default settings share four partitions, which get records all the time. Each record counts from
when it is produced, or from the end of the fault if that is later, until a member hands it out for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kzconsumer.brokers.protocol.error_codes import CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE, UNKNOWN_SERVER_ERROR
from kzconsumer.model import TopicPartition
from tests.support.extent import extent
from tests.support.simulated.ensemble import Connection
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.kafka_frames import OFFSET_FOR_LEADER_EPOCH, Part
from tests.support.simulated.member import Handed, Member
from tests.support.simulated.partition_logs import host
from tests.support.simulated.scene import SESSION_TIMEOUT

FEED_EVERY = extent(0.4, 0.2)
"""Seconds between two records of a partition: so much less may be measured than what the next record would wait."""
DEFAULTS: dict[str, Any] = {
    "fetch": (("request_timeout", "30s"), ("max_wait", "100ms")),
    "looks": "30s",
    "unowned_alarm": "60s",
    "brokers": 2,
}
FIRST = TopicPartition("t", 0)

Begin = Callable[[SimulatedGroup, list[Member]], object]


@dataclass(frozen=True)
class Fault:
    begin: Begin
    event: str
    """What a member logs because of it, so that the fault is known to have happened; empty if nothing."""
    bound: float
    """Seconds that no record waits for longer: docs/faults.md has this number."""
    lasts: float = 0.0
    """Seconds from its beginning from which waits count; 0 if members should consume while it lasts."""
    watched: float = 20.0
    """Seconds more in which records are produced, and counted."""
    spares_others: bool = False
    """Only records of FIRST wait, also while it lasts."""
    moves_offsets: bool = False
    """Stored offsets go back, so that the promises about them do not hold."""


def no_server(seconds: float, *, read_only: bool = False) -> Begin:
    """No ZooKeeper server has a quorum; connections break as well."""

    def begin(group: SimulatedGroup, members: list[Member]) -> None:
        def cut_off(cut_off: bool) -> None:
            for server in group.ensemble.servers:
                server.read_only = read_only and cut_off
                server.set_cut_off(cut_off)

        cut_off(True)
        for member in members:
            group.trouble(member, seconds)
            group.network.cut(member.process, arrives=False)
        group.world.after(seconds, lambda: cut_off(False))

    return begin


def refused(seconds: float, *, throttled: float = 0.0, quota: str | None = None) -> Begin:
    def begin(group: SimulatedGroup, members: list[Member]) -> None:
        group.ensemble.throttled, group.ensemble.quota = throttled, quota

        def over() -> None:
            group.ensemble.throttled, group.ensemble.quota = 0.0, None

        for member in members:
            group.trouble(member, seconds)
        group.world.after(seconds, over)

    return begin


def restored(ago: float | None, *, elected: bool = False) -> Begin:
    """From a copy of so many seconds ago; None: of before the group. `elected`: see `Ensemble.restore`."""

    def begin(group: SimulatedGroup, members: list[Member]) -> None:
        for member in members:
            group.trouble(member, 2 * SESSION_TIMEOUT)
        ensemble = group.ensemble
        copy = min(session.began for session in ensemble.sessions.values()) - 1
        if ago is not None:
            before = (group.world.now - ago) * 1000
            copy = max(each.zxid for each in ensemble.log if each.time_ms <= before)
        ensemble.restore(copy, elected=elected)

    return begin


def set_clock(seconds: float) -> Begin:
    def begin(group: SimulatedGroup, _: list[Member]) -> None:
        group.world.wall_ahead += seconds

    return begin


def suspend(seconds: float, *, everybody: bool) -> Begin:
    def begin(group: SimulatedGroup, members: list[Member]) -> None:
        for member in members if everybody else members[:1]:
            group.freeze(member, seconds)

    return begin


def suspend_machines(seconds: float) -> Begin:
    """Those of all members. The servers end their sessions meanwhile if that takes longer."""

    def begin(group: SimulatedGroup, members: list[Member]) -> None:
        group.world.slept += seconds
        for member in members if seconds > SESSION_TIMEOUT else ():
            group.expire(member)

    return begin


def without_brokers(seconds: float) -> Begin:
    """All connections to brokers break, and none can be opened."""

    def begin(group: SimulatedGroup, members: list[Member]) -> None:
        for member in members:
            group.lose_brokers(member)
            group.world.after(seconds, lambda member=member: group.find_brokers(member))  # type: ignore[misc]

    return begin


def silent_and_replaced(seconds: float) -> Begin:
    """A broker takes requests and answers none, and the other leads its partitions."""

    def begin(group: SimulatedGroup, _: list[Member]) -> None:
        group.broker_faults.silence(0, seconds)
        for partition, leader in list(group.logs.leaders.items()):
            if leader == 0:
                group.broker_faults.move_leader(partition, 0.0)

    return begin


def compared_late(seconds: float, *, others_lead: bool = False) -> Begin:
    """FIRST gets a leader that is so long in saying whether its log has what was read, and perhaps another one soon."""

    def begin(group: SimulatedGroup, _: list[Member]) -> None:
        group.broker_faults.slow_down(1, OFFSET_FOR_LEADER_EPOCH, seconds, seconds)
        group.broker_faults.move_leader(FIRST, 0.0)
        if others_lead:
            group.world.after(1.0, lambda: group.broker_faults.move_leader(FIRST, 0.0))

    return begin


def failing(seconds: float, error: int = UNKNOWN_SERVER_ERROR) -> Begin:
    """FIRST cannot be read, for a reason that its broker does not say, or says wrongly; in the end because of a batch
    that the broker finds corrupt once, which is not three times in a row."""

    def begin(group: SimulatedGroup, _: list[Member]) -> None:
        broker = group.brokers[group.logs.leaders[FIRST]]
        broker.alters = lambda parts: [
            Part(each.partition, error) if each.partition == FIRST else each for each in parts
        ]

        def once(parts: list[Part]) -> list[Part]:
            if any(each.partition == FIRST for each in parts):
                group.broker_faults.end()
            return [Part(FIRST, CORRUPT_MESSAGE) if each.partition == FIRST else each for each in parts]

        def over() -> None:
            broker.alters = once

        group.world.after(seconds, over)

    return begin


def cut_off_server(group: SimulatedGroup, members: list[Member]) -> None:
    """The one that the first member is connected to."""
    (connection,) = (
        line.connection
        for line in group.network.lines_of(members[0].process)
        if isinstance(line.connection, Connection)
    )
    group.cut_off(group.ensemble.servers.index(connection.server), 2 * SESSION_TIMEOUT)


def swapped(seconds: float) -> Begin:
    """Each of two brokers is at the other's address, where nobody leads what the other does."""

    def begin(group: SimulatedGroup, _: list[Member]) -> None:
        def swap() -> None:
            hosts = group.network.hosts
            hosts[host(0)], hosts[host(1)] = hosts[host(1)], hosts[host(0)]
            for broker in group.brokers:
                for connection in list(broker.connections):
                    connection.close()

        swap()
        group.world.after(seconds, swap)

    return begin


def cut(group: SimulatedGroup, members: list[Member]) -> None:
    for member in members:
        group.network.cut(member.process, arrives=False)


class Waits:
    """How long records wait: `feed` produces them, and every first delivery is noted."""

    def __init__(self, group: SimulatedGroup) -> None:
        self._group = group
        self._produced: dict[tuple[TopicPartition, int], float] = {}
        self._handed: dict[tuple[TopicPartition, int], float] = {}
        self._handed_out = group.promises.handed_out
        group.promises.handed_out = self._note  # type: ignore[method-assign]
        self.feeding = True
        self._feed()

    def longest(self, since: float, but: TopicPartition | None = None) -> float:
        """Seconds that a record of those fed so far waited, counted from `since` at the earliest; not of `but`."""
        now = self._group.world.now
        return max(
            self._handed.get(which, now) - max(at, since)
            for which, at in self._produced.items()
            if self._handed.get(which, now) >= since and which[0] != but
        )

    def left(self) -> int:
        return len(self._produced.keys() - self._handed.keys())

    def _feed(self) -> None:
        if not self.feeding:
            return
        group = self._group
        for partition in group.logs.partitions:
            self._produced[partition, group.logs.end(partition)] = group.world.now
        group.logs.burst(1)
        group.world.after(FEED_EVERY, self._feed)

    def _note(self, member: Member, partition: TopicPartition, offsets: range, key: bytes) -> Handed:
        for offset in offsets:
            self._handed.setdefault((partition, offset), self._group.world.now)
        return self._handed_out(member, partition, offsets, key)


class Played(NamedTuple):
    wait: float
    """Seconds that the record waited which waited longest."""
    others: float
    """The same of all partitions but FIRST, from the beginning of the fault."""
    logged: frozenset[str]
    """The events that members logged from the beginning of the fault on."""


def play(seed: int, fault: Fault, since: float) -> Played:
    """Waits count from `since` seconds after the beginning of the fault."""
    with simulated_group(seed, **DEFAULTS) as group:
        group.logs.grow("t", 4)
        members = [group.join(name, {"t": 1}, 0.0, in_batches=False) for name in "ab"]
        assert group.world.pass_time(20, lambda: [len(member.owned) for member in members] == [2, 2])
        group.logs.stop()
        waits = Waits(group)
        group.world.pass_time(5 + group.world.random.random())
        group.promises.watching = not fault.moves_offsets
        began, logged = group.world.now, len(group.events)
        fault.begin(group, members)
        group.world.pass_time(fault.lasts + fault.watched)
        waits.feeding = False
        assert group.world.pass_time(60, lambda: not waits.left()), f"{waits.left()} records are not read"
        group.check()
        events = frozenset(event["event"] for event in group.events[logged:])
        return Played(waits.longest(began + since), waits.longest(began, FIRST), events)


T = SESSION_TIMEOUT
LOST, NO_SERVER, EXPIRED, DOUBTFUL = (
    "connection lost",
    "no ZooKeeper server answers",
    "session expired",
    "session doubtful",
)
RESTORED, POSTPONED, NO_LEADER = (
    "ZooKeeper has lost transactions",
    "request postponed by ZooKeeper",
    "partition has no leader",
)
BROKER_LOST, UNREACHED = "broker lost", "no broker returned a leader"
OTHERS_LEAD = "broker does not answer, others lead"
FAULTS = {
    "connections broken": Fault(cut, LOST, 1),
    "one ZooKeeper server cut off": Fault(cut_off_server, LOST, 1),
    "no ZooKeeper server, 2 s": Fault(no_server(2.0), NO_SERVER, 1, lasts=2.0),
    "no ZooKeeper server, 12 s": Fault(no_server(2 * T), EXPIRED, 1, lasts=2 * T),
    "ZooKeeper read-only, 12 s": Fault(no_server(2 * T, read_only=True), EXPIRED, 2, lasts=2 * T),
    "leader of ZooKeeper suspended": Fault(lambda group, _: group.stop_leader(0, T, 3.0), EXPIRED, 1, lasts=T + 3.0),
    "session ended": Fault(lambda group, members: group.expire(members[0]), EXPIRED, 1),
    # It is reported only as long as fewer transactions were made since than were lost: four that a member makes to find
    # out count, too. With fewer records in these 2 s its session just expires.
    "ZooKeeper restored, 2 s": Fault(restored(2.0), RESTORED, 6, moves_offsets=True),
    "ZooKeeper restored, before the group": Fault(restored(None), RESTORED, 6, moves_offsets=True),
    "last 2 s of ZooKeeper lost, sessions kept": Fault(restored(2.0, elected=True), LOST, 1, moves_offsets=True),
    "ZooKeeper overloaded": Fault(refused(30.0, throttled=0.7), POSTPONED, 2, lasts=30.0),
    "quota of ZooKeeper used up": Fault(refused(30.0, quota="/consumers"), POSTPONED, 1),
    "packets of one member lost": Fault(lambda group, members: group.silence(members[0], 2 * T), EXPIRED, 8),
    "member killed": Fault(lambda group, members: group.kill(members[0]), "", 8),
    "leader moved": Fault(
        lambda group, _: group.broker_faults.move_leader(FIRST, 0.0), "fetch refused, looking up leader", 1
    ),
    "no leader, 10 s": Fault(
        lambda group, _: group.broker_faults.move_leader(FIRST, 10.0), NO_LEADER, 2, lasts=10.0, spares_others=True
    ),
    "broker stopped, others lead": Fault(lambda group, _: group.broker_faults.stop(0, 30.0), BROKER_LOST, 1),
    "broker silent, 10 s": Fault(lambda group, _: group.broker_faults.silence(0, 10.0), "", 1, lasts=10.0),
    "broker silent, 60 s": Fault(lambda group, _: group.broker_faults.silence(0, 60.0), BROKER_LOST, 1, lasts=60.0),
    "broker silent, others lead": Fault(silent_and_replaced(60.0), OTHERS_LEAD, 8, watched=40.0),
    "broker's id at another address": Fault(lambda group, _: group.replace_broker(0), OTHERS_LEAD, 8),
    "log not compared for 20 s": Fault(compared_late(20.0), "", 1, lasts=20.0, spares_others=True),
    "log not compared, others lead": Fault(
        compared_late(60.0, others_lead=True), OTHERS_LEAD, 8, watched=40.0, spares_others=True
    ),
    "broker fails to read, 30 s": Fault(
        failing(30.0), "broker fails to read its log, retrying", 2, lasts=30.0, watched=5.0, spares_others=True
    ),
    "offset refused, 30 s": Fault(
        failing(30.0, OFFSET_OUT_OF_RANGE),
        "offset refused though the log has it, retrying",
        2,
        lasts=30.0,
        watched=5.0,
        spares_others=True,
    ),
    "two brokers swap their addresses, 20 s": Fault(
        swapped(20.0), "partition refused by its leader, retrying", 2, lasts=20.0, watched=5.0
    ),
    "no broker registered": Fault(lambda group, _: group.take_brokers(30.0), "no broker registered", 1),
    "no broker reached, 10 s": Fault(without_brokers(10.0), UNREACHED, 2, lasts=10.0, watched=5.0),
    "no broker reached, 40 s": Fault(without_brokers(40.0), UNREACHED, 2, lasts=40.0, watched=5.0),
    "one member reaches no broker": Fault(
        lambda group, members: group.lose_brokers(members[0]),
        "left the group to members that can work",
        150,
        watched=180.0,
    ),
    "wall clock set forward by an hour": Fault(set_clock(3600.0), DOUBTFUL, 1),
    "wall clock set back by an hour": Fault(set_clock(-3600.0), DOUBTFUL, 1),
    "wall clock set by half a second": Fault(set_clock(-0.5), "", 1),
    "all members suspended, 2 s": Fault(suspend(2.0, everybody=True), DOUBTFUL, 1, lasts=2.0),
    "all members suspended, 5 min": Fault(suspend(300.0, everybody=True), EXPIRED, 1, lasts=300.0),
    "machines suspended, 2 s": Fault(suspend_machines(2.0), DOUBTFUL, 1),
    "machines suspended, 5 min": Fault(suspend_machines(300.0), EXPIRED, 1),
    "one member suspended": Fault(suspend(2 * T, everybody=False), EXPIRED, 8),
}
