"""Observes a running member at intervals, and makes reports of it for the status server: its health, and its group's.

Keeps a history of each owned partition (`partition_health`) while it is owned, and of all together for an hour.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf

import anyio
import msgspec

from kzconsumer.brokers.leaders import why_unknown
from kzconsumer.clock import now
from kzconsumer.counters import Counters
from kzconsumer.display import plural
from kzconsumer.errors import KzConsumerError
from kzconsumer.group.assignment import GroupSnapshot
from kzconsumer.group.group_overview import OverviewPartition
from kzconsumer.lag.fetched_times import FetchedTimes
from kzconsumer.lag.partition import RATED, Measured, PartitionFacts, Reason, Why, partition_lag
from kzconsumer.lag.totals import Total, behind_text, total
from kzconsumer.logs.logger import get_logger
from kzconsumer.member import Member, Unsuccessful
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Position
from kzconsumer.registry.claim_record import blocked_by
from kzconsumer.registry.group_records import has_wildcard
from kzconsumer.sessions import Sessions
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.runner import BatchCounters, BatchStatus, SinkRunner
from kzconsumer.status.partition_health import INTERVAL, ListedLog, PartitionStatus, Track, behind_sink
from kzconsumer.status.report import (
    Assigned,
    BlockedClaim,
    Failing,
    GroupMember,
    Point,
    Queue,
    Report,
    SessionState,
    SinkBatch,
    point,
)
from kzconsumer.version import __version__
from kzconsumer.zookeeper.session import Lease


class Health:
    """The health of a running daemon: its phase in one line, and why it may need a restart."""

    def __init__(self, lease: Lease, patience: float, stalled_after: float) -> None:
        """Seconds: `patience` for the task of the ZooKeeper session to run, `stalled_after` without any progress."""
        self._lease = lease
        self._patience = patience
        self.stalled_after = stalled_after
        self.phase = "starting"
        """What the daemon does; empty while it consumes."""
        self.note = ""
        """Appended to the status: what the last reload left to do."""
        self.sessions: Sessions | None = None
        """Set when the member has joined."""
        self.total: Callable[[], Total] | None = None
        """How far the owned partitions are behind; set by the observer."""
        self._stall = StallDetection()

    @property
    def joined(self) -> bool:
        return self.sessions is not None and not self.phase

    def status(self, behind: Total | None = None) -> str:
        """One line, for `systemctl status` and the status page. `behind`: if the caller has it already."""
        status = self.phase or self._consuming(behind)
        return f"{status}; {self.note}" if self.note else status

    def _consuming(self, behind: Total | None) -> str:
        if not self._lease.held or self.sessions is None:
            return "waiting for ZooKeeper or a broker"
        positions = self.sessions.positions()
        if not positions:
            return "in the group, no partitions"
        paused = sum(at.paused for at in positions)
        if behind is None and self.total is not None:
            behind = self.total()
        parts = [f"consuming {plural(len(positions), 'partition')}", behind_text(behind) if behind else ""]
        return ", ".join(filter(None, [*parts, f"{paused} paused" if paused else ""]))

    def fault(self) -> str | None:
        """Why the process has to be restarted, or None. To be called at intervals."""
        if self.sessions is None or self.phase:
            return None
        still = now() - self.sessions.task_last_ran
        stalled = self._stall.seconds(now(), self.sessions.positions(), self._lease.held)
        if still > self._patience:
            return f"the task of the ZooKeeper session has not run for {still:.0f} s"
        if stalled > self.stalled_after:
            return f"nothing has been fetched or processed for {stalled:.0f} s, though there is something to read"
        return None


class StallDetection:
    """Of the member as a whole: it is no stall if one partition does not advance while others do.

    A watchdog that only needs the event loop keeps a member alive whose sink hangs. One that requires progress has to
    except what the member is not the cause of: a restart helps against neither a ZooKeeper nor a leader that is away,
    and would move all partitions.
    """

    def __init__(self) -> None:
        self._before: object = None
        self._since = 0.0

    def seconds(self, now: float, positions: Sequence[Position], lease_held: bool) -> float:
        """How long nothing has advanced although it could: there is something to read, a leader and the lease."""
        here = [(at.topic, at.partition, at.fetched, at.consumed, at.processed) for at in positions]
        if here != self._before or not lease_held or not any(_could_advance(at) for at in positions):
            self._before, self._since = here, now
        return now - self._since


def _could_advance(at: Position) -> bool:
    return not at.paused and at.led and bool(at.left)


# The whole group is read only while a client asks for it, at most once per INTERVAL, and not more than MOST partitions.

log = get_logger("kzconsumer.status")

#: Partitions that are read.
MOST = 1000
#: Seconds for one reading.
PATIENCE = 10.0


class GroupPartition(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    owner: str | None
    """The text of its owner node; None if there is none."""
    committed: int | None
    end: int | None
    lag: int | None
    """From the committed offset to the end."""
    why: Reason | None
    """Why the lag is unknown; None if it is known."""
    rate: float | None
    """Records committed per second, lately."""


class GroupStatus(msgspec.Struct, frozen=True):
    at: float | None = None
    """When it was read, in seconds since 1970; None if it has not been read."""
    reason: str | None = None
    """Why the last reading failed."""
    partitions: list[GroupPartition] = []
    left_out: int = 0
    """Number of partitions beyond MOST."""


class GroupWatch:
    """`run` reads the group of the present membership when `ask` has been called."""

    def __init__(self, member: Callable[[], Member | None]) -> None:
        self._member = member
        self._asked = anyio.Event()
        self._answered = anyio.Event()
        self._committed: deque[tuple[float, Mapping[TopicPartition, int]]] = deque(maxlen=RATED)
        self._read_at = -inf  # of `kzconsumer.clock`: the time of `status.at` may be set back
        self.status = GroupStatus()
        self.encoded = msgspec.json.encode(self.status)

    def ask(self) -> None:
        self._asked.set()

    async def present(self) -> GroupStatus:
        """Read within the last INTERVAL, or `reason` says why it is older."""
        if now() - self._read_at > INTERVAL:
            answered = self._answered
            self.ask()
            with anyio.move_on_after(INTERVAL + PATIENCE):
                await answered.wait()
        return self.status

    async def run(self) -> None:
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            try:
                with anyio.fail_after(PATIENCE):
                    self.status = await self._read()
                self._read_at = now() if self.status.at is not None else -inf
            except KzConsumerError as error:
                self._failed(str(error))
            except TimeoutError:
                self._failed("ZooKeeper or the brokers do not answer")
            except Exception:
                log.exception("observing the member failed")  # a fault here must not end the member
                self._failed("internal error, see the log")
            self.encoded = msgspec.json.encode(self.status)
            self._answered.set()
            self._answered = anyio.Event()
            if self.status.at is not None:
                await anyio.sleep(INTERVAL)

    def _failed(self, reason: str) -> None:
        self.status = msgspec.structs.replace(self.status, reason=reason)

    async def _read(self) -> GroupStatus:
        member = self._member()
        if member is None or member.group is None:
            return GroupStatus(reason="not a member of the group at the moment")
        topics = member.group[0].topics
        partitions = sorted(TopicPartition(name, n) for name, topic in topics.items() for n in topic.partitions)
        found = await member.overview.read(partitions[:MOST])
        rates = self._rates({p: each.committed for p, each in found.items() if each.committed is not None})
        return GroupStatus(
            at=time.time(),
            partitions=[_partition(p, each, rates.get(p)) for p, each in found.items()],
            left_out=max(0, len(partitions) - MOST),
        )

    def _rates(self, committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        at = now()
        if self._committed and at - self._committed[-1][0] > 3 * INTERVAL:
            self._committed.clear()  # no client has asked for a while
        self._committed.append((at, committed))
        since, first = self._committed[0]
        if at == since:
            return {}
        return {p: max(0.0, (offset - first[p]) / (at - since)) for p, offset in committed.items() if p in first}


def _partition(partition: TopicPartition, seen: OverviewPartition, rate: float | None) -> GroupPartition:
    end = None if isinstance(seen.end, Why) else Measured(seen.end, 0.0)
    facts = PartitionFacts(
        topic=partition.topic,
        partition=partition.partition,
        position=Why("never committed") if seen.committed is None else seen.committed,
        end=end,
        silent=seen.end if isinstance(seen.end, Why) else None,
    )
    found = partition_lag(facts, 0.0, 0.0)
    return GroupPartition(
        *partition,
        owner=seen.owner,
        committed=seen.committed,
        end=end.value if end is not None else None,
        lag=found.lag,
        why=found.why.reason if found.why is not None else None,
        rate=rate,
    )


#: Observations that are kept: an hour.
REMEMBERED = int(3600 / INTERVAL)
#: Seconds for brokers to list the ends of logs.
ASKING = 3.0
#: Timestamps of next records that are asked for at once.
MOST_TIMES = 100


class Observer:
    """Before `begin` (the member has not joined yet) reports contain less."""

    def __init__(self, settings: Callable[[], Settings], health: Health, lease: Lease) -> None:
        self._settings = settings
        self._health = health
        self._lease = lease
        self._sessions: Sessions | None = None
        self._runner: SinkRunner | None = None
        self._tracks: dict[tuple[TopicPartition, int], Track] = {}
        self._asked: dict[TopicPartition, ListedLog | Why] = {}
        self._written: dict[TopicPartition, tuple[int, int | Why]] = {}  # an offset, and the timestamp of its record
        self._rounds = 0
        self._started = time.time()
        self.group = GroupWatch(lambda: self._sessions.member if self._sessions is not None else None)
        self.history: deque[Point] = deque(maxlen=REMEMBERED)
        """One for each observation, the latest last."""

    @property
    def settings(self) -> Settings:
        return self._settings()

    @property
    def counters(self) -> Counters:
        return self._sessions.counters if self._sessions is not None else Counters()

    @property
    def batches(self) -> BatchCounters:
        return self._runner.batches if self._runner is not None else BatchCounters()

    def begin(self, sessions: Sessions, runner: SinkRunner) -> None:
        self._sessions, self._runner = sessions, runner
        self._health.total = self.total

    def total(self) -> Total:
        """How far the owned partitions are behind, at this moment."""
        return total(each.progress for each in self.partitions())

    async def run(self) -> None:
        while True:
            try:
                if self._sessions is not None:
                    with anyio.move_on_after(2 * ASKING):  # also if ZooKeeper does not answer
                        await self._ask_bounds(self._sessions)
                        await self._ask_times(self._sessions)
                    self._look(self._sessions)
            except Exception:
                log.exception("observing the member failed")  # a fault here must not end the member
            await anyio.sleep(INTERVAL)

    async def _ask_bounds(self, sessions: Sessions) -> None:
        """For partitions whose end no fetch has returned lately: paused, with a full queue, without a leader; and for
        those that are fetched from a replica, which may have less than their leader.
        """
        began = now()
        # The high watermark comes with fetches. Of a partition that is paused, or whose queue is full, nothing is
        # fetched; so its log's end is asked for here, or the lag of a stuck partition would stand still, too, and look
        # well.
        overdue = [each for each in sessions.positions() if began - (each.high_watermark_at or -inf) > INTERVAL]
        self._asked = {}
        if overdue:
            bounds = await sessions.log_bounds([each.topic_partition for each in overdue], ASKING)
            since = {each.topic_partition: each.high_watermark_at for each in overdue}
            for partition, found in bounds.items():
                if isinstance(found, tuple):
                    self._asked[partition] = ListedLog(*(Measured(each.offset, began) for each in found))
                else:
                    self._asked[partition] = why_unknown(found, since[partition])

    async def _ask_times(self, sessions: Sessions) -> None:
        """The timestamps of next records that have not been fetched, each once: of paused partitions, after a claim."""
        behind = [each for each in self.partitions() if each.progress.behind]
        next_offsets = {TopicPartition(each.topic, each.partition): each.offsets["processed"] for each in behind}
        self._written = {p: kept for p, kept in self._written.items() if next_offsets.get(p) == kept[0]}
        waiting = [
            partition
            for each, partition in zip(behind, next_offsets, strict=True)
            if each.progress.why_seconds is not None
            and each.progress.why_seconds.reason == "record not read"
            and not isinstance(self._asked.get(partition), Why)
        ]
        # Those that were asked for without an answer come last: they must not keep the others out.
        due = sorted(waiting, key=self._written.__contains__)[:MOST_TIMES]
        if due:
            found = await sessions.written({each: next_offsets[each] for each in due}, ASKING)
            self._written |= {each: (next_offsets[each], time) for each, time in found.items()}

    def _look(self, sessions: Sessions) -> None:
        rounds = sessions.counters.commits.rounds
        for at, track in self._tracked(sessions.positions()):
            track.look(at, now(), asked=self._asked.get(at.topic_partition), committed=rounds > self._rounds)
        self._rounds = rounds
        self.history.append(point(time.time(), self.partitions()))
        self._health.fault()  # called at intervals, as it detects stalls

    def _tracked(self, positions: list[Position]) -> list[tuple[Position, Track]]:
        """Each position with its track; tracks of partitions no longer owned are dropped."""
        kept = {}
        for at in positions:
            key = at.topic_partition, at.incarnation
            kept[key] = self._tracks.get(key) or Track(at, now())
        self._tracks = kept
        return list(zip(positions, kept.values(), strict=True))

    def partitions(self) -> list[PartitionStatus]:
        if self._sessions is None:
            return []
        held, after = self._lease.held, self.settings.status.stalled_after
        tracked, fetched = self._tracked(self._sessions.positions()), self._sessions.fetched_times()
        busy = self._runner is not None and self._runner.busy
        statuses = [
            track.status(at, now(), time.time(), held, after, self._times_of(at, fetched)) for at, track in tracked
        ]
        return behind_sink(statuses, sink_busy=busy)

    def _times_of(
        self, at: Position, fetched: Mapping[TopicPartition, FetchedTimes]
    ) -> Callable[[int], int | Why | None]:
        """The timestamp of the record at an offset: as fetched, or as it was asked for."""
        times, (asked_at, asked) = fetched.get(at.topic_partition), self._written.get(at.topic_partition, (None, None))

        def written(offset: int) -> int | Why | None:
            known = times.at(offset) if times is not None else None
            return known if known is not None else asked if offset == asked_at else None

        return written

    def report(self) -> Report:
        sessions, runner = self._sessions, self._runner
        member = sessions.member if sessions is not None else None
        group = member.group if member is not None else None
        snapshot, assigned = group if group is not None else (None, {})
        threads: dict[str, dict[str, list[str]]] = {}
        for partition, thread in sorted(assigned.items()):
            threads.setdefault(thread.consumer, {}).setdefault(str(thread), []).append(str(partition))
        partitions = self.partitions()
        me = sessions.consumer if sessions is not None else None
        timeline = self.counters.rebalances.timeline
        return Report(
            version=__version__,
            started=self._started,
            cluster=self.settings.zookeeper.connect,
            group=self.settings.group.id,
            member=me,
            state=self._health.status(total(each.progress for each in partitions)),
            joined=self._health.joined,
            alive=self._health.fault(),
            session=self._session(),
            generation=timeline[-1].generation if timeline else None,
            members=[
                GroupMember(
                    id=name,
                    this=name == me,
                    kzconsumer=registration.ours,
                    pattern=registration.pattern,
                    subscription=dict(registration.subscription),
                    status=registration.status,
                    threads=threads.get(name, {}),
                )
                for name, registration in sorted(snapshot.members.items() if snapshot is not None else ())
            ],
            assigned=[Assigned(*partition, str(thread)) for partition, thread in sorted(assigned.items())],
            partitions=partitions,
            blocked=self._blocked(),
            unreadable=self.counters.rebalances.last == "unreadable",
            missing=_missing(snapshot, me),
            commits_fail=_failing(member.commits_fail) if member is not None else None,
            rebalances_fail=_failing(member.rebalances_fail) if member is not None else None,
            queues=[
                Queue(topic, thread, *cursor.queue.filled)
                for (topic, thread), cursor in (sessions.cursors.items() if sessions is not None else ())
            ],
            batch=_batch(runner.status) if runner is not None and runner.status is not None else None,
            batches=[_batch(status) for status in self.batches.last],
            sink=runner.sink_status if runner is not None else {},
            session_reason=("; ".join(sessions.refusals) or None) if sessions is not None else None,
        )

    def _blocked(self) -> list[BlockedClaim]:
        member = self._sessions.member if self._sessions is not None else None
        if member is None or member.group is None:
            return []
        members = member.group[0].members
        lasting = member.notices.lasting(now()).items()
        found = {partition: f"owned by {blocked_by(why, members).value}" for partition, why in lasting}
        found |= member.notices.lasting_refusals(now())
        return [BlockedClaim(*partition, why) for partition, why in sorted(found.items())]

    def _session(self) -> SessionState:
        if self._lease.held:
            return "held"
        return "doubtful" if self._lease.safe_until else "none"


def _missing(snapshot: GroupSnapshot | None, member: str | None) -> tuple[str, ...]:
    """A pattern may match nothing: only what is subscribed to by name can be missing."""
    registration = snapshot.members.get(member) if snapshot is not None and member is not None else None
    if snapshot is None or registration is None or has_wildcard(registration):
        return ()
    return tuple(sorted(set(registration.subscription).difference(snapshot.topics)))


def _failing(found: Unsuccessful | None) -> Failing | None:
    return None if found is None else Failing(round(time.time() - now() + found.since), found.reason)


def _batch(status: BatchStatus) -> SinkBatch:
    return SinkBatch(status.ranges, status.records, status.stage, status.rounded, status.written, status.ended)
