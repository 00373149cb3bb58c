"""Observations of one owned partition since it was claimed: its lag, rate, time left, stalls and judgement."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from math import inf
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from kzconsumer.lag.partition import (
    FRESH,
    History,
    Measured,
    PartitionFacts,
    PartitionLag,
    Reason,
    Why,
    partition_lag,
    time_left,
)
from kzconsumer.offsets.progress import Position

# Burrow's status of a partition, from recent commits. Source: Burrow 1.9, `core/internal/evaluator/caching.go`. A
# commit of an unchanged offset counts, as with Kafka.

#: Commits that a judgement is based on, at most.
WINDOW = 15

Judgement: TypeAlias = Literal["OK", "WARN", "STOP", "STALL", "REWIND"]


class Commit(NamedTuple):
    """A stored offset and its lag then, None if unknown."""

    at: float
    offset: int
    lag: int | None


def judge(
    commits: Sequence[Commit], lag: int | None, now: float, ends: Sequence[int] = (), alone: float = inf
) -> Judgement | None:
    """`commits`, oldest first, are the window; `lag` is that of the last one now. None while there is nothing to judge.

    STOP: no commit for longer than the window spans (`alone`: seconds that a single commit counts as), and none of the
    recent `ends` of the log was reached. REWIND: an offset went back, below one that was not reached again since.
    STALL: commits that do not advance. WARN: they advance, and the lag never shrinks. All of these only while behind;
    STALL and WARN only where the lag was never 0 in the window.
    """
    if not commits or lag is None:
        return None
    if lag <= 0:
        return "OK"
    last = commits[-1]
    span = last.at - commits[0].at if len(commits) > 1 else alone
    if now - last.at > span and not any(end <= last.offset for end in ends):
        return "STOP"
    steps = list(pairwise(commits))
    back = next((n for n, (before, after) in enumerate(steps) if after.offset < before.offset), None)
    if back is not None and all(after.offset < commits[back].offset for after in islice(commits, back + 1, None)):
        return "REWIND"
    if len(commits) < 2 or any(commit.lag == 0 for commit in commits):
        return "OK"
    if all(after.offset == before.offset for before, after in steps):
        return "STALL"
    known = [commit.lag for commit in commits if commit.lag is not None]
    return "OK" if any(after < before for before, after in pairwise(known)) else "WARN"


#: Seconds between two observations.
INTERVAL = 5.0

Kind: TypeAlias = Literal["fetched", "consumed", "processed", "committed"]
KINDS: tuple[Kind, ...] = ("fetched", "consumed", "processed", "committed")


State: TypeAlias = Literal[
    "stalled", "commits stop", "commits stall", "commits go back", "unknown", "paused", "behind", "caught up"
]
_JUDGED: dict[Judgement | None, State] = {
    "STOP": "commits stop",
    "STALL": "commits stall",
    "REWIND": "commits go back",
}


class PartitionStatus(msgspec.Struct, frozen=True):
    """One owned partition; None, or a missing kind, means "not known"."""

    topic: str
    partition: int
    owner: str
    leader: int | None
    offsets: dict[Kind, int]
    end: int | None
    """The high watermark, or the last stable offset, as last known."""
    state: State
    """In one word what the figures say, the worst that applies first; all views show this one."""
    progress: PartitionLag
    """From the processed offset: how far behind, since when, and why that is unknown. The views' source."""
    lag: dict[Kind, int]
    """In offsets; that of "processed" is the one in `progress`."""
    lag_seconds: dict[Kind, float]
    """How long ago the next record was written."""
    rate: float | None
    """Records processed per second, lately."""
    eta: float | None
    """Seconds until nothing is left at the present rates; None if the log grows as fast."""
    paused: bool
    standing: float
    """Seconds for which it has not advanced, and is behind or not known to have caught up."""
    hindrance: Hindrance | None
    """Why it does not advance; None if it has caught up."""
    stalled: bool
    judgement: Judgement | None
    complete: float
    """The share of the judgement's window that has been observed."""
    held_back: int = 0
    """Offsets behind `end` that cannot be read before a transaction ends, which has been open for long."""


class ListedLog(NamedTuple):
    """A log as its leader listed it."""

    start: Measured
    end: Measured


class Track:
    """Times are those of `kzconsumer.clock`."""

    def __init__(self, at: Position, time: float) -> None:
        self._history = History(at.processed, time)
        self._commits: deque[Commit] = deque(maxlen=WINDOW)
        self._asked: ListedLog | None = None
        self._silent: Why | None = None

    def look(self, at: Position, time: float, *, asked: ListedLog | Why | None, committed: bool) -> None:
        """`asked`: the log as its leader listed it, or why it did not; None if it was not asked.

        `committed`: a commit has succeeded since the last look.
        """
        self._silent = asked if isinstance(asked, Why) else None
        if isinstance(asked, ListedLog):
            self._asked = asked
        found = self._lag(at, at.processed, time, time)
        self._history.advance(at.processed, found.behind, time)
        self._history.look(at.processed, self._end(at), time)
        if committed and at.committed is not None:
            self._commits.append(Commit(time, at.committed, self._lag(at, at.committed, time, time).lag))

    def _end(self, at: Position) -> Measured | None:
        """The newest reading: a log that was truncated ends earlier than before."""
        fetched, listed = None, self._asked.end if self._asked is not None else None
        if at.high_watermark is not None and at.high_watermark_at is not None:
            fetched = Measured(at.high_watermark, at.high_watermark_at)
        elif at.high_watermark is not None and listed is not None:  # a replica has nothing that its leader has not
            listed = Measured(max(listed.value, at.high_watermark), listed.at)
        known = [each for each in (fetched, listed) if each is not None]
        return max(known, key=lambda each: each.at, default=None)

    def _lag(
        self, at: Position, offset: int, time: float, wall: float, written: int | Why | None = None
    ) -> PartitionLag:
        end = self._end(at)
        facts = PartitionFacts(
            topic=at.topic,
            partition=at.partition,
            position=offset,
            start=self._asked.start if self._asked is not None else None,
            end=end,
            silent=self._silent,
            written=written,
            until=at.last_of(end.value if end is not None and time - end.at <= FRESH else None),
        )
        return partition_lag(facts, time, wall, self._history.growth)

    def status(
        self,
        at: Position,
        time: float,
        wall: float,
        lease_held: bool,
        stalled_after: float,
        written: Callable[[int], int | Why | None] = lambda offset: None,
    ) -> PartitionStatus:
        """`wall`: seconds since 1970. `written`: the timestamp, in ms since 1970, of the record at an offset."""
        offsets: dict[Kind, int] = {kind: offset for kind in KINDS if (offset := getattr(at, kind)) is not None}
        by_offset = {each: self._lag(at, each, time, wall, written(each)) for each in set(offsets.values())}
        found = by_offset[at.processed]
        self._history.advance(at.processed, found.behind, time)
        standing = self._history.standing(found.behind is not False, time)
        rate, end = self._history.rate, self._end(at)
        log_rate = 0.0 if at.end is not None and end is not None and end.value >= at.end else self._history.log_rate
        stalled = standing >= stalled_after
        judgement = None
        if at.committed is not None:  # what is behind the last record of a log is no lag of commits
            waits = by_offset[at.committed]
            judgement = judge(self._commits, 0 if waits.behind is False else waits.lag, time)
        if found.age is not None and found.age <= FRESH:
            found = msgspec.structs.replace(found, age=0.0)  # else the document of a quiet member would always change
        return PartitionStatus(
            topic=at.topic,
            partition=at.partition,
            owner=at.thread,
            leader=at.leader,
            offsets=offsets,
            end=end.value if end is not None else None,
            state=_state(found, paused=at.paused, stalled=stalled, judgement=judgement),
            progress=found,
            lag={kind: lag for kind, offset in offsets.items() if (lag := by_offset[offset].lag) is not None},
            lag_seconds={
                kind: age for kind, offset in offsets.items() if (age := by_offset[offset].seconds) is not None
            },
            rate=0.0 if stalled and rate is not None else rate,
            eta=time_left(found.left if found.lag is not None else None, rate, log_rate),
            paused=at.paused,
            standing=standing,
            hindrance=hindrance(at, lease_held, self._silent) if found.behind is not False else None,
            stalled=stalled,
            judgement=judgement,
            complete=len(self._commits) / WINDOW,
            held_back=at.held_back,
        )


def _state(found: PartitionLag, *, paused: bool, stalled: bool, judgement: Judgement | None) -> State:
    if paused:
        return "paused"
    if stalled:
        return "stalled"
    if found.behind is None:
        return "unknown"
    return _JUDGED.get(judgement) or ("behind" if found.behind else "caught up")


Hindrance: TypeAlias = Literal[
    "session doubtful",
    "failed",
    "paused",
    "no leader",
    "brokers unreachable",
    "broker error",
    "not permitted",
    "dead letter not written",
    "sink slow",
    "queue full",
    "collecting",
    "throttled",
    "rate limit",
    "no records received",
]


def hindrance(at: Position, lease_held: bool, silent: Why | None = None) -> Hindrance:
    """The first reason that applies, from what stops everything to what stops this partition alone.

    `silent`: why the log's end is unknown. "collecting": the batch is not due; "throttled": by a quota of the broker;
    "rate limit": by that of `[fetch]`; "no records received": the broker has records and does not send them, or does
    not answer.
    """
    if not lease_held:
        return "session doubtful"
    if at.failed:
        return "failed"
    if at.paused:
        return "paused"
    unanswered = _UNANSWERED.get(silent.reason) if silent is not None else None
    if not at.led:
        return unanswered or "no leader"
    if at.consumed > at.processed:
        return "sink slow"
    if at.queue_full:
        return "queue full"
    if at.fetched is not None and at.fetched > at.consumed:
        return "collecting"
    if at.throttled:
        return "throttled"
    if at.rate_limited:
        return "rate limit"
    return unanswered or "no records received"


_UNANSWERED: dict[Reason, Hindrance] = {
    "brokers unreachable": "brokers unreachable",
    "broker error": "broker error",
    "no leader": "no leader",
    "not permitted": "not permitted",
}
_BEHIND_SINK: tuple[Hindrance, ...] = ("collecting", "queue full")


def behind_dead_letters(partitions: list[PartitionStatus]) -> list[PartitionStatus]:
    """While dead letters of a batch cannot be written, the sink is not why its partitions wait."""
    return [
        msgspec.structs.replace(each, hindrance="dead letter not written") if each.hindrance == "sink slow" else each
        for each in partitions
    ]


def behind_sink(partitions: list[PartitionStatus], *, sink_busy: bool) -> list[PartitionStatus]:
    """What waits behind a batch that the sink is writing is "sink slow", too."""
    if not sink_busy and not any(each.stalled and each.hindrance == "sink slow" for each in partitions):
        return partitions
    return [
        msgspec.structs.replace(each, hindrance="sink slow")
        if (sink_busy or each.stalled) and each.hindrance in _BEHIND_SINK
        else each
        for each in partitions
    ]
