"""Daemons in a simulated group: `kzconsumer run` from its start to its exit status, with signals and reloads.

Each is `kzconsumer.service.daemon.run_daemons` in a process of its own, with the sink `callable` and a service manager
that records its notifications. `Daemons` checks what holds at every commit and of every report, and what a run's end
promises.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

from msgspec import structs

from kzconsumer.errors import KzConsumerError, SinkError
from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import ClaimRecord, decode_claim_record, encode_claim_record
from kzconsumer.registry.group_records import GroupRun, decode_group_run
from kzconsumer.service import daemon as product
from kzconsumer.service import stop_and_reload
from kzconsumer.settings.sections import LogSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.table_reader import read_table
from kzconsumer.sinks import capabilities
from kzconsumer.sinks.interface import Batch, RangeData, Sink, SinkContext
from kzconsumer.status import group_watch, observer
from kzconsumer.status.partition_health import WINDOW
from kzconsumer.zookeeper.operations import Create, Operation, SetData
from tests.support.simulated.daemon import WATCHDOG, WRITES, LastResort, SeenObserver, SimulatedDaemon, daemon_here
from tests.support.simulated.daemon_claims import DaemonClaims
from tests.support.simulated.daemon_faults import DaemonFaults
from tests.support.simulated.daemon_sink import Destination, ReplayableSink
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.observed import WallClock, assert_agreement, assert_truth
from tests.support.simulated.promises import CHANGED, COMMIT_PATIENCE, NEVER_LOGGED
from tests.support.simulated.scene import SESSION_TIMEOUT, STOP_DEADLINE, Scene, settings_of
from tests.support.simulated.virtual_time import BEGINNING

CLAIMS_END = 12.0
"""Seconds that may pass between the end of a claim in a daemon and in ZooKeeper."""
LATE = 2 * SESSION_TIMEOUT
"""Seconds by which a change is reported that members find first elsewhere: their server is far behind the others."""
FINISHING = 3.0
"""Seconds from reading the offsets of a run to the write that ends it, at most."""
SHORTENED = "run shortened, records are no longer in the log"


class Daemons:
    """See the module; made by `simulated_daemons`."""

    def __init__(self, group: SimulatedGroup, replayable: bool) -> None:
        """`replayable`: their sinks are, and write to one `Destination`."""
        self.group = group
        self.replayable = replayable
        self.destination = Destination(self)
        self.world = group.world
        self.daemons: list[SimulatedDaemon] = []
        self.violations: list[str] = []
        self.may_lack_topics_until = 0.0
        """A topic that is created again is missing for a moment."""
        self._written: dict[tuple[TopicPartition, int], set[int]] = {}  # or lost by the log; of each incarnation
        self.cut: set[TopicPartition] = set()
        """Whose log was cut off: the run ends sooner than it did."""
        self._run: GroupRun | None = None
        self._looked = 0  # at so many events
        self._committed_to: dict[TopicPartition, int] = {}
        self._set_back: dict[TopicPartition, float] = {}  # when that became less
        self._moves: set[tuple[str, TopicPartition, int, int]] = set()  # of a run's ends, that were logged
        self._ends: set[tuple[TopicPartition, int]] = set()  # that a run has, or had before the log lost them
        self._early: list[tuple[float, SimulatedDaemon, str]] = []
        self._done: dict[tuple[TopicPartition, int], int] = {}  # before it all was
        group.promises.watching = False
        group.promises.logged = self._logged  # type: ignore[method-assign]
        group.ensemble.committed.append(self._committed)
        self.faults = DaemonFaults(self)
        self.claims = DaemonClaims(self)

    def violated(self, what: str) -> None:
        self.violations.append(f"{self.world.now:.3f} {what}")

    # -- what happens

    def start(
        self,
        scene: Scene,
        pace: float,
        *,
        early: Sequence[int] = (),
        consumer: str | None = None,
        truncated: Literal["continue", "fail"] = "continue",
        **subscription: Any,
    ) -> SimulatedDaemon:
        """`early`: signals to reload that came before its event loop ran. `consumer`: the id of an earlier one."""
        name = f"d{len(self.daemons)}"
        base = structs.asdict(settings_of(scene))
        changed = structs.replace(settings_of(scene).group, consumer_id=consumer or name)
        chosen = Settings.from_dict(
            {"subscription": subscription, "sink": {"plugin": "callable", "options": {"function": WRITES}}}
            | {"zookeeper": {"connect": base["zookeeper"].connect}, "group": {"id": "g"}}
        )
        settings = structs.replace(
            settings_of(scene),
            group=changed,
            subscription=chosen.subscription,
            offsets=structs.replace(base["offsets"], truncated=truncated),
            sink=chosen.sink,
            batch=chosen.batch,
        )
        daemon = SimulatedDaemon(self, self.world.process(name), settings, pace, early)
        daemon.troubled = self.faults.of_all_until
        self.daemons.append(daemon)
        return daemon

    def stop(self, daemon: SimulatedDaemon, number: int = signal.SIGTERM) -> None:
        if self._signal(daemon, number):
            daemon.stopped.append(self.world.now)

    def _signal(self, daemon: SimulatedDaemon, number: int) -> bool:
        """Whether the daemon gets it. Without a handler it would end the process at once; before the event loop runs
        that is right, and the command line notes a SIGHUP."""
        received = daemon.process.send_signal(number)
        daemon.signalled |= received
        if not received and daemon.signalled and daemon.runs:
            self.violated(f"{daemon} has no handler for signal {number}")
        return received

    def reload(self, daemon: SimulatedDaemon, section: str | None, **changed: Any) -> None:
        """Other values in its file, which is not valid if `section` is None, and SIGHUP."""
        daemon.valid = section is not None
        if section is not None:
            table = structs.replace(getattr(daemon.settings, section), **changed)
            daemon.settings = structs.replace(daemon.settings, **{section: table})
            daemon.limits.append(daemon.settings.batch)
        self._signal(daemon, signal.SIGHUP)

    def cut_off(self, partition: TopicPartition, lost: int) -> None:
        """An unclean election loses so many records."""
        before = self.group.logs.end(partition)
        self.group.broker_faults.elect_uncleanly(partition, lost, 0, 0.0)
        self.cut.add(partition)
        self._gone(partition, self.group.logs.end(partition), before)

    def retain(self, partition: TopicPartition, offset: int) -> None:
        """Retention deletes what is before this offset."""
        self.group.broker_faults.retain(partition, offset)
        self._gone(partition, 0, offset)

    def compact(self, partition: TopicPartition, offset: int) -> None:
        """Compaction removes what is from this offset on; the next record is there for good."""
        until = self.group.logs.end(partition)
        self._gone(partition, self.group.broker_faults.compact_end(partition, offset), until)
        self.group.logs.grow_log(partition, 1)

    def reset(self, partition: TopicPartition, offset: int) -> None:
        """As `kzconsumer offsets reset`, while the group has no members."""
        record, path = self.record(partition), self.group.paths.claim_record(partition)
        changed = structs.replace(record, plan=None, epoch=record.epoch + 1)
        position = SetData(self.group.paths.offset(partition), b"%d" % offset, -1)
        self.group.ensemble.operate(SetData(path, encode_claim_record(changed), -1), position)

    def recreate(self, topic: str, partitions: int, *, unseen: bool = False) -> None:
        """`unseen`: ZooKeeper's servers report it late."""
        if unseen:
            for server in self.group.ensemble.servers:
                server.delay_watches(paths.topic(topic), LATE)
        self.may_lack_topics_until = self.world.now + SESSION_TIMEOUT
        self.group.broker_faults.recreate(topic, partitions, 0.0)

    def _gone(self, partition: TopicPartition, first: int, until: int) -> None:
        """These offsets need not be written any more."""
        key = partition, self.incarnation(partition.topic)
        self._written.setdefault(key, set()).update(range(first, until))

    # -- what must hold

    @property
    def run(self) -> GroupRun | None:
        """The group's run as it is stored."""
        node = self.group.ensemble.tree.nodes.get(self.group.paths.run)
        return decode_group_run(node.data) if node is not None else None

    def record(self, partition: TopicPartition) -> ClaimRecord:
        return decode_claim_record(self.group.ensemble.tree.node(self.group.paths.claim_record(partition)).data)

    def stored(self, partition: TopicPartition) -> int:
        node = self.group.ensemble.tree.nodes.get(self.group.paths.offset(partition))
        return int(node.data) if node is not None else 0

    def done(self, partition: TopicPartition) -> int:
        """The first offset of the present topic that was not written."""
        return self._done_of(partition, self.incarnation(partition.topic))

    def _read(self, partition: TopicPartition) -> int:
        """As `done`, which also has what the log lost before it was read."""
        return min(self.done(partition), self.group.logs.end(partition))

    def _done_of(self, partition: TopicPartition, incarnation: int) -> int:
        key = partition, incarnation
        written, done = self._written.get(key, set()), self._done.get(key, 0)
        while done in written:
            done += 1
        self._done[key] = done
        return done

    def incarnation(self, topic: str) -> int:
        return self.group.ensemble.tree.nodes[paths.topic(topic)].czxid

    def check(self) -> None:
        self._look_at_events()
        self._check_early()
        for daemon in self.daemons:
            if daemon.process.errors:
                self.violated(f"{daemon}: {daemon.process.errors}")
            if daemon.task.done() and not daemon.killed and not daemon.reported:
                daemon.reported = True
                self._ended(daemon)
            late = [at for at in daemon.stopped[:1] if self.world.now > max(at, daemon.thawed) + STOP_DEADLINE + 1]
            if late and daemon.runs and not daemon.process.frozen:
                self.violated(f"{daemon} was stopped at {late[0]:.3f} and runs")
            if daemon.runs and not daemon.process.frozen:
                self._check_reports(daemon)
        assert not self.violations, "\n".join([*self.group.promises.trace, "", *self.violations])

    def _ended(self, daemon: SimulatedDaemon) -> None:
        received = daemon.manager.received
        if (error := daemon.task.exception()) is not None:
            lacks = isinstance(error, KzConsumerError) and daemon.ended < self.may_lack_topics_until
            if not lacks and not (daemon.refused and isinstance(error, SinkError)):
                self.violated(f"{daemon} failed: {error!r}")
            return
        status, run = daemon.task.result(), self.run
        if received[-1][1] != {"STOPPING": 1, "STATUS": "stopped"}:
            self.violated(f"{daemon} said at last {received[-1]}")
        if daemon.observer is not None and sum("STOPPING" in fields for _, fields in received) < 2:
            self.violated(f"{daemon} did not announce its stop")
        bounded = daemon.settings.subscription.stop_at is not None
        if not bounded and (status not in (0, 1) or not daemon.stopped):
            self.violated(f"{daemon} ended with {status}, signals: {daemon.stopped}")
        if bounded and status == 0:
            wanted = daemon.settings.subscription.run
            if run is None or (run.finished is None and run.id == wanted):
                self.violated(f"{daemon} ended with 0, and the run is {run}")
        # The owner node of a partition in hand may be deleted as a finished run ends: that is no commit of all.
        explained = daemon.in_trouble or daemon.ended < daemon.misled_until
        unasked = status == product.EXIT_UNFINISHED or (status == 1 and not explained)
        if bounded and unasked and not daemon.stopped:
            self.violated(f"{daemon} ended with {status} without a signal")

    def _check_reports(self, daemon: SimulatedDaemon) -> None:
        """As systemd: the watchdog is fed in time, and no start takes longer than was announced."""
        received = daemon.manager.received
        fed = daemon.manager.when("WATCHDOG")
        if received and self.world.now - max(fed[-1] if fed else received[0][0], daemon.thawed) > WATCHDOG:
            self.violated(f"{daemon} fed the watchdog last at {fed[-1:]}")
        if (observer := daemon.observer) is not None:
            report = observer.report()
            assert_agreement(observer, report)
            for each in report.partitions:
                judged, rounds = round(each.complete * WINDOW), observer.counters.commits.rounds
                if judged > rounds:
                    self.violated(f"{daemon} judges {each.topic}:{each.partition} by {judged} commits of {rounds}")

    def check_figures(self) -> None:
        """Nothing has happened for a while: every daemon's report says of all its partitions what is true."""
        self.check()
        for daemon in self.daemons:
            if daemon.runs and (observer := daemon.observer) is not None:
                report = observer.report()
                assert_truth(report, self.world.now - BEGINNING, self.group.logs, self._read, self.stored)
                there = {each.topic for each in self.group.logs.partitions}
                assert report.missing == tuple(sorted(daemon.settings.subscription.topics.keys() - there))
                asked = daemon.process.create_task(observer.group.present())
                assert self.world.pass_time(20.0, asked.done)
                self._check_group(asked.result(), observer)

    def _check_group(self, seen: group_watch.GroupStatus, observer: SeenObserver) -> None:
        """What a member shows of all its group's partitions, from ZooKeeper and the brokers."""
        assert (seen.reason, seen.left_out) == (None, 0)
        member = observer.sessions.member
        assert member is not None
        assert member.group is not None
        topics = member.group[0].topics
        there = sorted(TopicPartition(name, n) for name, topic in topics.items() for n in topic.partitions)
        assert [TopicPartition(each.topic, each.partition) for each in seen.partitions] == there
        for each, partition in zip(seen.partitions, there, strict=True):
            owner = self.group.ensemble.tree.nodes.get(self.group.paths.owner(partition))
            # The member may not know yet that the topic has fewer partitions.
            if partition not in self.group.logs.logs:
                assert (each.owner, each.end) == (None, None)
                continue
            end, stored = self.group.logs.end(partition), self.stored(partition)
            assert each.owner == (owner.data.decode() if owner is not None else None)
            assert (each.committed, each.end, each.why) == (stored, end, None)
            assert each.lag == end - max(stored, self.group.logs.logs[partition].start)
            assert each.rate in (None, 0.0)

    def wrote(self, daemon: SimulatedDaemon, batch: Batch) -> None:
        """A write has ended."""
        self.check_due(daemon, batch)
        for part in batch.ranges:
            self.is_there(part)
            offsets = [message.offset for message in part.messages()]
            if offsets != sorted(set(offsets)) or not set(offsets) <= set(range(part.first, part.until)):
                self.violated(f"{daemon} wrote {offsets} as {part.range}")

    def is_there(self, part: RangeData) -> None:
        """A range is written."""
        written = self._written.setdefault((part.topic_partition, part.incarnation), set())
        written.update(range(part.first, part.until))

    def is_lost(self, lost: RangeIdentity) -> None:
        """A range is not there any more; what the log has of it is to be written again."""
        key = lost.topic_partition, lost.incarnation
        there = (at for at, _ in self.group.logs.logs[lost.topic_partition].records())
        self._written[key].difference_update(at for at in there if lost.first <= at < lost.until)
        self._done[key] = min(self._done.get(key, 0), lost.first)

    def check_due(self, daemon: SimulatedDaemon, batch: Batch) -> None:
        """What is written now had to be, and nothing of it is beyond the run."""
        run = self.run if daemon.settings.subscription.stop_at is not None else None
        self._was_due(daemon, batch, run)
        for part in batch.ranges:
            partition = part.topic_partition
            there = run is not None and partition not in self.cut and part.incarnation == self.incarnation(part.topic)
            if run is not None and there and part.until > (run.end(partition, part.incarnation) or 0):
                self.violated(f"{daemon} wrote {part.range}, which is beyond {run}")

    def _shortened(self, name: str, run: GroupRun) -> None:
        """Who moves an end of a run has logged before what will not be read, for each partition."""
        before, self._run = self._run, run
        self._ends.update(run.ends.items())
        if before is not None and before.id == run.id:
            self._look_at_events()
            for partition, end in before.ends.items():
                if run.ends[partition] < end and (name, partition, run.ends[partition], end) not in self._moves:
                    self.violated(f"{name} has moved the end of {partition} from {end}, and not logged it")

    def _look_at_events(self) -> None:
        events = self.group.events[self._looked :]
        self._looked += len(events)
        for event in events:
            if event["event"] == SHORTENED:
                where = TopicPartition(event["topic"], event["partition"])
                self._moves.add((event["member"], where, event["first"], event["until"]))
            elif event["event"] == "progress" and (batch := event["batch"]) is not None:
                # No records: of a gap in the log, or of partitions that were lost while they were collected.
                well = batch["ranges"] >= bool(batch["records"]) and batch["seconds"]["collect"] >= 0
                if not well:
                    self.violated(f"{event['member']} logs {batch}")

    def _logged(self, name: str, event: str) -> None:
        """A daemon has logged an event, for which there must be a reason."""
        daemon = next((each for each in self.daemons if each.process.name == name), None)
        if event in NEVER_LOGGED or event == CHANGED:
            self.violated(f"{name} logs: {event}")
        elif daemon is not None and event.startswith("final commit failed"):
            unanswered = self.world.now - self.group.network.answered.get(daemon.process, 0.0) >= COMMIT_PATIENCE
            at_once = len(daemon.stopped) > 1
            # What the batch in hand has of a claim that was lost meanwhile stays without an offset.
            lost = any(self.world.now - ended <= STOP_DEADLINE for ended in daemon.ended_claims)
            if not (unanswered or at_once or lost or daemon.in_trouble or self.world.now <= daemon.misled_until):
                self.violated(f"{daemon} logs: {event}")

    def _was_due(self, daemon: SimulatedDaemon, batch: Batch, run: GroupRun | None) -> None:
        """It is cut if a limit is reached (that of time is, here), or if none of its ranges can grow any more."""
        assert daemon.observer is not None
        status = daemon.observer.runner.status
        assert status is not None
        max_records = min(limits.max_records or sys.maxsize for limits in daemon.limits)
        max_time = min(limits.max_time for limits in daemon.limits)
        collected, full = status.seconds["collect"], batch.records >= max_records
        ended = run is not None and all((part.topic_partition, part.until) in self._ends for part in batch.ranges)
        if collected < max_time - 1e-6 and not full and not ended:
            what = f"{daemon} cut {[str(each.range) for each in batch.ranges]} after {collected} s"
            self._early.append((self.world.now, daemon, what))

    def _check_early(self) -> None:
        """A batch that was full may have lost ranges, with their claims, before it was cut."""
        over = [each for each in self._early if self.world.now > each[0] + CLAIMS_END]
        self._early = self._early[len(over) :]
        for at, daemon, what in over:
            if not any(abs(ended - at) <= CLAIMS_END for ended in daemon.ended_claims):
                self.violated(f"at {at:.3f} {what}")

    def _committed(self, session: int, operations: Sequence[Operation]) -> None:
        """Every transaction that ZooKeeper executed."""
        if (process := self.group.network.processes.get(session)) is None:
            return
        for operation in operations:
            if operation.path == self.group.paths.run and (run := self.run) is not None:
                self._shortened(process.name, run)
            if operation.path == self.group.paths.run and (run := self.run) is not None and run.finished is not None:
                for partition in self.group.logs.partitions:  # not of topics that were created again since
                    end = run.end(partition, self.incarnation(partition.topic))
                    # The owner may notice that the log was cut off while another member writes that all is read.
                    noticed = partition in self.cut and self.world.now - self._set_back.get(partition, 0.0) < FINISHING
                    if end is not None and min(self.stored(partition), self.done(partition)) < end and not noticed:
                        at = f"committed at {self.stored(partition)}, written up to {self.done(partition)}"
                        self.violated(f"{partition} is {at}, and finished is {run}")
            if isinstance(operation, Create | SetData):
                for stored in [p for p in self.group.logs.partitions if self.group.paths.offset(p) == operation.path]:
                    before = self._committed_to.get(stored, 0)
                    self._committed_to[stored] = int(operation.data)
                    if int(operation.data) < before:
                        self._set_back[stored] = self.world.now
                    written = max((self._done_of(*key) for key in list(self._written) if key[0] == stored), default=0)
                    if int(operation.data) > written:
                        self.violated(f"{process.name} commits {stored} at {operation.data!r}, written is {written}")

    def come_to_an_end(self, within: float) -> None:
        """No fault any more: runs are finished by those who work on them, and all others end at a signal."""
        self.group.wait_for_a_leader()
        self.group.logs.stop()
        self.group.logs.register(up=True)
        self.group.broker_faults.end()
        self.faults.end()
        for daemon in self.daemons:
            if not daemon.killed:
                self.reload(daemon, "subscription", paused=())
        bounded = [each for each in self.daemons if each.runs and each.settings.subscription.stop_at is not None]
        if bounded:
            ended = self.world.pass_time(within, lambda: not any(each.runs for each in bounded))
            # A topic may be one of a daemon that was stopped, and has to be started again to end the run.
            read = set().union(*(each.topics for each in bounded if each.runs))
            if not ended and (self.run is None or self.run.topics.keys() <= read):
                self.violated(f"{[each for each in bounded if each.runs]} do not end: {self.run}")
        else:
            self.world.pass_time(within)
            self.check_figures()
            for daemon in self.daemons:
                self.check_reloaded(daemon)
            read = set().union(*(each.topics for each in self.daemons if each.runs))
            for partition in self.group.logs.partitions:
                if partition.topic in read and self.done(partition) < self.group.logs.end(partition):
                    self.violated(f"{partition} is written up to {self.done(partition)}, not to its end")
                if partition.topic in read and self.replayable and (lacking := self.destination.lacks(partition)):
                    self.violated(f"{partition}: of the records in its log these are nowhere: {lacking[:5]}")
        for daemon in self.daemons:
            if daemon.runs:
                self.stop(daemon)
        self.world.pass_time(STOP_DEADLINE + 2)
        self.check()

    def check_reloaded(self, daemon: SimulatedDaemon) -> None:
        """Nothing that was asked for by a signal is lost."""
        if daemon.runs and daemon.observer is not None:
            if left := stop_and_reload.compare(daemon.observer.settings, daemon.settings).applied:
                self.violated(f"{daemon} has not applied {left}")
            if daemon.manager.waits:
                self.violated(f"{daemon} has announced that it reloads, and not that it has")
            wanted = daemon.settings.log.level, daemon.settings.log.format, daemon.settings.service.stalled_after
            if (applied := (*daemon.logs, daemon.observer.health.stalled_after)) != wanted:
                self.violated(f"{daemon} has applied {applied}, not {wanted}")
            if daemon.observer.sessions.paused != daemon.settings.subscription.paused_partitions:
                self.violated(f"{daemon} has paused {daemon.observer.sessions.paused}")


@contextmanager
def simulated_daemons(seed: int, scene: Scene, *, replayable: bool = False) -> Iterator[Daemons]:
    """A group whose members are daemons."""
    with simulated_group(seed, scene) as group:
        daemons = Daemons(group, replayable)

        def configured_sink(settings: Settings, context: SinkContext) -> Sink:
            here = next(each for each in daemons.daemons if each.process is asyncio.get_running_loop())
            if daemons.replayable:
                return ReplayableSink(here, context.safe_until)
            return capabilities.configured_sink(settings, context)

        def configure(level: str, form: str) -> None:
            read_table({"level": level, "format": form}, LogSettings, "[log]")
            daemon_here().logs = level, form

        with (
            mock.patch.object(product, "configured_sink", configured_sink),
            mock.patch.object(stop_and_reload, "threading", SimpleNamespace(Timer=LastResort)),
            mock.patch.object(product, "configure", configure),
            mock.patch.object(product, "Observer", SeenObserver),
            mock.patch.object(observer, "time", WallClock(group.world)),
            mock.patch.object(group_watch, "time", WallClock(group.world)),
        ):
            try:
                yield daemons
            finally:
                for daemon in daemons.daemons:
                    daemon.process.frozen = False
                    daemon.task.cancel()
                group.world.pass_time(60.0, lambda: all(each.task.done() for each in daemons.daemons))
                for daemon in daemons.daemons:
                    if daemon.task.done() and not daemon.task.cancelled():
                        daemon.task.exception()
