"""Observes a running member at intervals, and makes reports of it for the status server.

Keeps a history of each owned partition (`partition_health`) while it is owned, and of all together for an hour.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from math import inf

import anyio

from kzconsumer.brokers.leaders import why_unknown
from kzconsumer.clock import now
from kzconsumer.counters import Counters
from kzconsumer.group.assignment import GroupSnapshot
from kzconsumer.lag.partition import Measured, Why
from kzconsumer.lag.totals import Total, total
from kzconsumer.lag.write_times import FetchedTimes
from kzconsumer.logs.logger import get_logger
from kzconsumer.member import Unsuccessful
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Position
from kzconsumer.registry.claim_record import blocked_by
from kzconsumer.registry.group_records import has_wildcard
from kzconsumer.sessions import Sessions
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.runner import BatchCounters, BatchStatus, SinkRunner
from kzconsumer.status.group_watch import GroupWatch
from kzconsumer.status.health import Health
from kzconsumer.status.partition_health import (
    INTERVAL,
    ListedLog,
    PartitionStatus,
    Track,
    behind_dead_letters,
    behind_sink,
)
from kzconsumer.status.report import (
    Assigned,
    BlockedClaim,
    Failing,
    GroupMember,
    MisplacedPartition,
    Point,
    Queue,
    Report,
    SessionState,
    SinkBatch,
    point,
)
from kzconsumer.version import __version__
from kzconsumer.zookeeper.session import Lease

log = get_logger("kzconsumer.status")

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
        shown = behind_sink(statuses, sink_busy=busy)
        return behind_dead_letters(shown) if self._sessions.rejects.waiting else shown

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
            misplaced=[
                MisplacedPartition(*partition, owner)
                for partition, owner in sorted(member.misplaced.items() if member is not None else ())
            ],
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
            session_reason=(sessions.why_refused or None) if sessions is not None else None,
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
