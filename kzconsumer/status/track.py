"""Observations of one owned partition since it was claimed: its lag, rate, time left, stalls and judgement."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from kzconsumer.offsets.position import Position
from kzconsumer.status.judgement import WINDOW, Commit, Judgement, judge

#: Seconds between two observations.
INTERVAL = 5.0
#: Observations from which rates are computed.
RATED = 13

Kind: TypeAlias = Literal["fetched", "consumed", "processed", "committed"]
KINDS: tuple[Kind, ...] = ("fetched", "consumed", "processed", "committed")


class PartitionStatus(msgspec.Struct, frozen=True):
    """One owned partition; None, or a missing kind, means "not known"."""

    topic: str
    partition: int
    owner: str
    leader: int | None
    offsets: dict[Kind, int]
    end: int | None
    """The high watermark, or the last stable offset."""
    lag: dict[Kind, int]
    """In offsets."""
    lag_seconds: dict[Kind, float]
    """How long ago the next record was written."""
    rate: float | None
    """Records processed per second, lately."""
    eta: float | None
    """Seconds until nothing is left at the present rates; None if the log grows as fast."""
    paused: bool
    standing: float
    """Seconds for which it has been behind without advancing."""
    hindrance: Hindrance | None
    """Why it does not advance; None if it is not behind."""
    stalled: bool
    judgement: Judgement | None
    complete: float
    """The share of the judgement's window that has been observed."""


class _Look(msgspec.Struct, frozen=True):
    at: float
    processed: int
    end: int | None


class Track:
    """Times are those of `kzconsumer.clock`."""

    def __init__(self, at: Position, time: float) -> None:
        self._end: int | None = None
        self._growth = LogGrowth()
        self._looks: deque[_Look] = deque(maxlen=RATED)
        self._commits: deque[Commit] = deque(maxlen=WINDOW)
        self._processed = at.processed
        self._since = time

    def look(self, at: Position, time: float, *, end: int | None, committed: bool) -> None:
        """`end`: the log's end as a broker listed it, if not fetched. `committed`: a commit has succeeded since."""
        self._advance(at, time)
        ends = [each for each in (at.high_watermark, end) if each is not None]
        if ends:
            self._end = max(ends)
            self._growth.saw(self._end, time)
        self._looks.append(_Look(time, at.processed, self._end))
        if committed and at.committed is not None:
            self._commits.append(Commit(time, at.committed, _lag(self._end, at.committed)))

    def _advance(self, at: Position, time: float) -> None:
        if at.processed != self._processed or not behind(at, self._known_end(at)):
            self._processed, self._since = at.processed, time

    def _known_end(self, at: Position) -> int | None:
        known = [end for end in (self._end, at.high_watermark) if end is not None]
        return max(known, default=None)

    def status(self, at: Position, time: float, lease_held: bool, stalled_after: float) -> PartitionStatus:
        self._advance(at, time)
        end = self._known_end(at)
        offsets: dict[Kind, int] = {kind: offset for kind in KINDS if (offset := getattr(at, kind)) is not None}
        lag = {kind: behind_by for kind, offset in offsets.items() if (behind_by := _lag(end, offset)) is not None}
        seconds = {kind: found for kind in lag if (found := self._seconds(offsets[kind], lag[kind], time)) is not None}
        standing = time - self._since
        is_behind = behind(at, end)
        rate, growth = self._rates()
        left = lag.get("processed")
        if left is not None and at.end is not None and end is not None:
            left, growth = max(0, min(end, at.end) - at.processed), 0.0 if end >= at.end else growth
        return PartitionStatus(
            topic=at.topic,
            partition=at.partition,
            owner=at.thread,
            leader=at.leader,
            offsets=offsets,
            end=end,
            lag=lag,
            lag_seconds=seconds,
            rate=rate,
            eta=_eta(left, rate, growth),
            paused=at.paused,
            standing=standing if is_behind else 0.0,
            hindrance=hindrance(at, lease_held) if is_behind else None,
            stalled=is_behind and standing >= stalled_after,
            judgement=judge(self._commits, lag.get("committed"), time),
            complete=len(self._commits) / WINDOW,
        )

    def _seconds(self, offset: int, lag: int, time: float) -> float | None:
        if lag == 0:
            return 0.0
        written = self._growth.reached(offset)
        return None if written is None else max(0.0, time - written)

    def _rates(self) -> tuple[float | None, float | None]:
        """Records per second: processed, and appended to the log."""
        if len(self._looks) < 2 or self._looks[-1].at <= self._looks[0].at:
            return None, None
        first, last = self._looks[0], self._looks[-1]
        passed = last.at - first.at
        growth = (last.end - first.end) / passed if first.end is not None and last.end is not None else None
        return (last.processed - first.processed) / passed, growth


def _lag(end: int | None, offset: int) -> int | None:
    return None if end is None else max(0, end - offset)


def _eta(left: int | None, rate: float | None, growth: float | None) -> float | None:
    if left == 0:
        return 0.0
    if left is None or rate is None or growth is None or rate <= growth:
        return None
    return left / (rate - growth)


Hindrance: TypeAlias = Literal[
    "session doubtful", "failed", "paused", "no leader", "sink slow", "queue full", "collecting", "no records received"
]


def hindrance(at: Position, lease_held: bool) -> Hindrance:
    """The first reason that applies, from what stops everything to what stops this partition alone.

    "collecting": the batch is not due; "no records received": the broker has records and does not send them.
    """
    if not lease_held:
        return "session doubtful"
    if at.failed:
        return "failed"
    if at.paused:
        return "paused"
    if not at.led:
        return "no leader"
    if at.consumed > at.processed:
        return "sink slow"
    if at.queue_full:
        return "queue full"
    if at.fetched is not None and at.fetched > at.consumed:
        return "collecting"
    return "no records received"


_BEHIND_SINK: tuple[Hindrance, ...] = ("collecting", "queue full")


def behind_sink(partitions: list[PartitionStatus]) -> list[PartitionStatus]:
    """What waits behind a batch that the sink does not write is "sink slow", too."""
    if not any(each.stalled and each.hindrance == "sink slow" for each in partitions):
        return partitions
    return [
        msgspec.structs.replace(each, hindrance="sink slow")
        if each.stalled and each.hindrance in _BEHIND_SINK
        else each
        for each in partitions
    ]


def behind(at: Position, end: int | None) -> bool:
    """Something is left to process; without a leader, or after a failure, also while that is unknown."""
    if end is None:
        return not at.led or at.failed
    return (end if at.end is None else min(end, at.end)) > at.processed


#: Ends kept at most; half of them are dropped when there would be more.
MOST = 128


class _Seen(NamedTuple):
    end: int
    first: float
    last: float


class LogGrowth:
    """When a log had reached which end. Times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._seen: list[_Seen] = []

    def saw(self, end: int, at: float) -> None:
        """The log ended there at that time. An end below the previous one means a new log."""
        last = self._seen[-1] if self._seen else None
        if last is not None and end < last.end:
            self._seen.clear()
        elif last is not None and end == last.end:
            self._seen[-1] = last._replace(last=at)
            return
        if len(self._seen) >= MOST:
            del self._seen[1:-1:2]
        self._seen.append(_Seen(end, at, at))

    def reached(self, offset: int) -> float | None:
        """About when the record at an offset was written; None if before the first observation, or not yet."""
        below = bisect_right(self._seen, offset, key=lambda seen: seen.end) - 1
        if below < 0 or below == len(self._seen) - 1:
            return None
        before, after = self._seen[below], self._seen[below + 1]
        share = (offset - before.end) / (after.end - before.end)
        return before.last + share * (after.first - before.last)
