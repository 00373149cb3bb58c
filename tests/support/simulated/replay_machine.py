"""Daemons that begin in the middle of a planned write, which an earlier process has not ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, TypeAlias, get_args

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from kzconsumer.model import RangeIdentity, TopicPartition
from tests.support.simulated.daemon import SimulatedDaemon
from tests.support.simulated.daemon_machine import SLOW, DaemonMachine
from tests.support.simulated.daemon_sink import Interruption, Moment
from tests.support.simulated.daemons import simulated_daemons
from tests.support.simulated.scene import SESSION_TIMEOUT, Scene

MOMENTS: tuple[Moment, ...] = ("planned", "written in part", "published", "commit refused")
Fault: TypeAlias = Literal["kill", "suspend", "silence"]
FAULTS = st.sampled_from(get_args(Fault))
WITHIN: Final = 10.0
"""Seconds in which a daemon begins to write what there is."""
SCENES = st.builds(Scene, brokers=st.just(2), lag=st.sampled_from(((0.0005, 0.01), (0.0, 0.4))))
EVENTS: Mapping[str, Callable[[ReplayMachine], object]] = {
    "nothing": lambda machine: None,
    "grown": lambda machine: machine.group.logs.burst(300),
    "cut off in the range": lambda machine: machine.cut_off(30),
    "cut off before the range": lambda machine: machine.cut_off(450),
    "retained": lambda machine: machine.daemons.retain(machine.partition(0), machine.planned_from + 100),
    "compacted": lambda machine: machine.daemons.compact(machine.partition(0), machine.planned_from + 100),
    "another topic": lambda machine: machine.recreate(unseen=False),
    "another topic, unseen": lambda machine: machine.recreate(unseen=True),
}
"""What happens to the log of the first partition before another daemon comes."""
COPIES = st.sampled_from(("none", "none", "none", "before the range", "before all"))
"""Of when the copy is from which the destination is restored."""


class ReplayMachine(DaemonMachine):
    """See the module. It goes on as any schedule of `DaemonMachine`."""

    rest = 30.0
    planned_from: int
    """The offset at which the range of the first partition begins that the earlier daemon has planned last."""

    @initialize(
        seed=st.integers(0, 2**16),
        partitions=st.integers(1, 3),
        scene=SCENES,
        moment=st.sampled_from(MOMENTS),
        fault=FAULTS,
        event=st.sampled_from(tuple(EVENTS)),
        copy=COPIES,
        same_id=st.booleans(),
        pace=st.sampled_from((0.0, 0.3, SLOW)),
        next_fault=st.sampled_from(("none", *get_args(Fault))),
        wait=st.sampled_from((0.0, 0.2, 1.5, SESSION_TIMEOUT + 1, 2 * SESSION_TIMEOUT)),
    )
    def begin(
        self,
        seed: int,
        partitions: int,
        scene: Scene,
        moment: Moment,
        fault: Fault,
        event: str,
        copy: str,
        same_id: bool,
        pace: float,
        next_fault: Fault | Literal["none"],
        wait: float,
    ) -> None:
        """An earlier daemon has committed some records. While it writes others, `fault` happens to it. `next_fault`
        happens to the next one as it begins to write, and a third one comes."""
        self.scene, self.bounded = scene, False
        self.daemons = self.exits.enter_context(simulated_daemons(seed, scene, replayable=True))
        self.group = self.daemons.group
        self.group.logs.grow("t", partitions)
        self.group.logs.burst(300)
        first = self.daemons.start(scene, 0.0, topics={"t": 1})
        empty = self.daemons.destination.copy()
        self.group.world.pass_time(WITHIN, lambda: min(map(self.daemons.stored, self.group.logs.partitions)) >= 300)
        self.planned_from = self.daemons.stored(self.partition(0))
        before = self.daemons.destination.copy()
        self.interrupt(first, moment, fault)
        EVENTS[event](self)
        if copy != "none":
            self.daemons.destination.restore(before if copy == "before the range" else empty)
        consumer = first.settings.group.consumer_id if same_id and not first.runs else None
        second = self.daemons.start(scene, pace, consumer=consumer, topics={"t": 1})
        second.interruption = Interruption("planned", partial(self.replace, second, next_fault))
        self.group.world.pass_time(2 * WITHIN, lambda: second.interruption is None)
        self.wait(wait)
        if self.lost:
            self.republish()

    def interrupt(self, daemon: SimulatedDaemon, moment: Moment, fault: Fault) -> None:
        """Its next write, of many records."""
        happened = False
        daemon.pace = 0.0 if moment == "commit refused" else SLOW  # a write that goes on then ends late

        def happens() -> None:
            nonlocal happened
            happened = True
            if moment == "commit refused":
                self.daemons.stop(daemon)
            else:
                self.strike(daemon, fault)

        daemon.interruption = Interruption(moment, happens)
        self.group.logs.burst(300)
        ended = daemon.task.done if moment == "commit refused" else lambda: happened
        assert self.group.world.pass_time(2 * WITHIN, ended)

    def replace(self, daemon: SimulatedDaemon, fault: Fault | Literal["none"]) -> None:
        """A third daemon comes, which owns the partitions next."""
        if fault != "none":
            self.strike(daemon, fault)
            self.daemons.start(self.scene, 0.0, topics={"t": 1})

    def strike(self, daemon: SimulatedDaemon, fault: Fault) -> None:
        if fault == "kill":
            self.daemons.faults.kill(daemon)
        elif fault == "suspend":
            self.daemons.faults.freeze(daemon, 2 * SESSION_TIMEOUT)
        else:
            self.daemons.faults.silence(daemon, 2 * SESSION_TIMEOUT)

    def cut_off(self, lost: int) -> None:
        """An unclean election; others are produced in their place."""
        self.daemons.cut_off(self.partition(0), lost)
        self.group.logs.grow_log(self.partition(0), 100)

    def recreate(self, *, unseen: bool) -> None:
        """The new topic is longer than the earlier one was: no offset of that one is out of range."""
        self.daemons.recreate("t", len(self.group.logs.partitions), unseen=unseen)
        for partition in self.group.logs.partitions:
            self.group.logs.grow_log(partition, 1000)

    def republish(self) -> None:
        """Nothing is written behind what the destination has lost, until an operator resets the offsets."""
        self.wait(2 * SESSION_TIMEOUT)
        for daemon in self.active:
            daemon.unfreeze()
            self.daemons.stop(daemon)
        self.wait(2 * SESSION_TIMEOUT)
        for partition in self.lost:
            lacking = self.daemons.destination.lacks(partition)
            self.daemons.reset(partition, min(lacking, default=self.group.logs.end(partition)))

    @property
    def lost(self) -> list[TopicPartition]:
        """Partitions of which the destination lacks the last range that was committed."""
        found = []
        for partition in self.group.logs.partitions:
            record = self.daemons.record(partition)
            if (last := record.last_written) is not None:
                at = RangeIdentity(*partition, int(record.incarnation, 16), record.epoch, *last)
                found += [partition] if not self.daemons.destination.has([at]) else []
        return found
