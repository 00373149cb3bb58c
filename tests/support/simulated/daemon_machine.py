"""Daemons (`kzconsumer run`) in a simulated group, also in bounded runs, under random signals, reloads and faults."""

from __future__ import annotations

import signal
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.support.simulated.broker_machine import TIGHT, BrokersMachine
from tests.support.simulated.daemon import SimulatedDaemon
from tests.support.simulated.daemon_faults import DaemonFaults
from tests.support.simulated.daemons import simulated_daemons
from tests.support.simulated.machine import ANY, WAITS
from tests.support.simulated.scene import Scene

END = -1
MOST_DAEMONS = 4
SLOW = 7.0
PACES = st.sampled_from((0.0, 0.005, 0.3, SLOW))
"""Seconds that a write takes."""
SCENES = st.builds(
    Scene,
    brokers=st.just(2),
    looks=st.sampled_from(("1h", "3s")),
    lag=st.sampled_from(((0.0005, 0.01), (0.0, 0.4))),
    record_bytes=st.sampled_from((1, 1, 1500)),
    fetch=st.sampled_from(((), TIGHT)),
)
LIVE: tuple[tuple[str, dict[str, object]], ...] = (
    ("offsets", {"commit_interval": 0.2}),
    ("subscription", {"paused": ("t:0",)}),
    ("subscription", {"paused": ()}),
    ("log", {"progress_interval": 1.0}),
    ("log", {"level": "debug"}),
    ("service", {"stalled_after": 200.0}),
    ("fetch", {"rate_limit": 100_000}),
    ("fetch", {"rate_limit": None}),
    ("batch", {"max_records": 50, "max_time": 0.2}),
    ("stop", {"deadline": 4.0}),
)
"""Applied to what runs."""
CHANGES = st.sampled_from(
    (
        *LIVE,
        ("subscription", {"topics": {"t": 2}, "include": None, "streams": 1}),
        ("group", {"id": "another"}),
    )
)


class DaemonMachine(BrokersMachine):
    """All daemons of a schedule work on bounded runs, or none; all have a replayable sink, or none."""

    rest = 60.0
    """Seconds in which everything is written once there are no faults any more."""

    @initialize(
        seed=st.integers(0, 2**16),
        partitions=st.integers(1, 3),
        scene=SCENES,
        bounded=st.booleans(),
        replayable=st.booleans(),
    )
    def begin(self, seed: int, partitions: int, scene: Scene, bounded: bool, replayable: bool = False) -> None:
        self.scene, self.bounded = scene, bounded
        self.daemons = self.exits.enter_context(simulated_daemons(seed, scene, replayable=replayable))
        self.group = self.daemons.group
        self.group.logs.grow("t", partitions)
        self.group.logs.burst(300)
        if bounded:  # what follows happens in the middle of a run
            self.start(SLOW, None, True, 1.5)

    @precondition(lambda self: len(self.active) < MOST_DAEMONS)
    @rule(pace=PACES, run=st.sampled_from((None, None, "monday", "tuesday")), listed=st.booleans(), wait=WAITS)
    def start(self, pace: float, run: str | None, listed: bool, wait: float) -> None:
        wanted: dict[str, Any] = {"topics": {"t": 1}} if listed else {"include": "t.*", "streams": 2}
        if self.bounded:
            wanted |= {"stop_at": "end"} | ({"run": run} if run is not None else {})
        self.daemons.start(self.scene, pace, **wanted)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, number=st.sampled_from((signal.SIGTERM, signal.SIGINT)), wait=WAITS)
    def stop(self, which: int, number: int, wait: float) -> None:
        self.daemons.stop(self.daemon(which), number)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, wait=WAITS)
    def stop_at_once(self, which: int, wait: float) -> None:
        """By two signals."""
        daemon = self.daemon(which)
        self.daemons.stop(daemon)
        self.wait(1.5)
        self.daemons.stop(daemon)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, wait=WAITS)
    def reload_what_is_refused(self, which: int, wait: float) -> None:
        self.daemons.reload(self.daemon(which), None)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, change=CHANGES, wait=WAITS)
    def reload(self, which: int, change: tuple[str, dict[str, object]], wait: float) -> None:
        section, changed = change
        if not self.bounded or changed.get("paused") != ("t:0",):
            self.daemons.reload(self.daemon(which), section, **changed)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, wait=WAITS)
    def refuse_a_batch(self, which: int, wait: float) -> None:
        self.daemon(which).refuses = True
        self.wait(wait)

    @rule(seconds=st.sampled_from((2.0, 300.0)), wait=WAITS)
    def suspend_machines(self, seconds: float, wait: float) -> None:
        self.daemons.faults.suspend_machines(seconds)
        self.wait(wait)

    @rule(which=ANY, part=st.integers(0, 3), wait=WAITS)
    def compact(self, which: int, part: int, wait: float) -> None:
        partition = self.partition(which)
        self.daemons.compact(partition, self.group.logs.end(partition) * part // 4)
        self.wait(wait)

    @rule(which=ANY, part=st.integers(1, 4), wait=WAITS)
    def delete_records(self, which: int, part: int, wait: float) -> None:
        partition = self.partition(which)
        self.daemons.retain(partition, self.group.logs.end(partition) * part // 4)
        self.wait(wait)

    @rule(which=ANY, lost=st.sampled_from((1, 9, 30)), wait=WAITS)
    def elect_uncleanly(self, which: int, lost: int, wait: float) -> None:
        self.daemons.cut_off(self.partition(which), lost)
        self.wait(wait)

    @precondition(lambda self: len(self.group.logs.partitions) < 6)
    @rule(topic=st.sampled_from(("t", "tt")), wait=WAITS)
    def add_partition(self, topic: str, wait: float) -> None:
        self.group.logs.grow(topic, 1)
        self.wait(wait)

    @rule(unseen=st.booleans(), wait=WAITS)
    def recreate_topic(self, unseen: bool, wait: float) -> None:
        """Daemons that write exactly once find out by its records if its watch is late."""
        self.daemons.recreate("t", 2, unseen=unseen and self.daemons.replayable)
        if unseen:
            self.group.logs.burst(40)
        self.wait(wait)

    @precondition(lambda self: self.bounded)
    @rule(part=st.integers(1, 4), wait=WAITS)
    def recreate_topic_between_runs(self, part: int, wait: float) -> None:
        """What is stored of the earlier topic is as long as nobody claims, and not beyond the end of the new one."""
        if self.group.world.pass_time(30.0, lambda: not self.active):
            stored = {each: self.daemons.stored(each) for each in self.group.logs.of("t")}
            self.daemons.recreate("t", len(stored))
            for partition, at in stored.items():
                self.group.logs.grow_log(partition, at * part // 4)
        self.wait(wait)

    @invariant()
    def nothing_wrong(self) -> None:
        if hasattr(self, "daemons"):
            self.daemons.check()

    def teardown(self) -> None:
        with self.exits:
            if hasattr(self, "daemons") and not self.daemons.violations:
                self.start(0.0, None, False, 0.6)  # it takes over what others have left
                self.daemons.come_to_an_end(self.rest)

    @property
    def active(self) -> list[SimulatedDaemon]:
        return [each for each in self.daemons.daemons if each.runs]

    @property
    def faults(self) -> DaemonFaults:
        return self.daemons.faults

    def daemon(self, which: int) -> SimulatedDaemon:
        return self.active[which % len(self.active)]
