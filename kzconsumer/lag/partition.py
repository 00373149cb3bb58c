"""The lag of one partition: in offsets and in seconds, each known, bounded from below, or unknown with its reason.

And what several looks show.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias

import msgspec

from kzconsumer.lag.write_times import LogGrowth

#: Seconds for which a reading of a log's end counts as present. Only so long a lag of 0 is shown, and a partition
#: counts as caught up.
FRESH = 15.0
#: Seconds after which it is not shown any more. In between a lag above 0 is shown with the reading's age.
STALE = 60.0
#: Seconds that the clock of a producer or broker may be ahead of ours.
SKEW = 5.0

Reason: TypeAlias = Literal[
    "not read yet",  # nothing has been asked so far
    "reading too old",  # there was an answer, and none since
    "no leader",  # the partition has none
    "brokers unreachable",  # no broker answers
    "broker error",  # the broker that should know answers, with an error or with something else
    "not permitted",  # an ACL forbids it
    "topic gone",  # the cluster has no such topic or partition: not behind, and not part of a sum
    "never committed",  # there is no stored offset
    "offset unreadable",  # the stored offset is no number
    "offset of an earlier topic",  # stored before the topic was created again: members do not use it
    "offset after the log's end",  # the log is another one, or has lost records
    "no timestamps",  # brokers before 0.10, or the old message format
    "timestamp in the future",  # the record's timestamp is no time at which it was written
    "record not read",  # the record's timestamp has not been looked up, or the leader did not answer
    "kept by another client",  # such as a Storm spout, in nodes of its own
]


#: The reasons why there was no answer, for which a figure is not examined rather than known to be unknown.
UNASKED: frozenset[Reason] = frozenset(
    (
        "not read yet",
        "reading too old",
        "brokers unreachable",
        "broker error",
        "not permitted",
        "kept by another client",
    )
)

#: Those for which somebody has to do something before the figure can be known.
FAULTS: frozenset[Reason] = frozenset(
    ("no leader", "offset unreadable", "offset of an earlier topic", "offset after the log's end")
)


class Why(msgspec.Struct, frozen=True):
    """Why a value is unknown; `since` when, if that is known; `detail` is an error's text, for people."""

    reason: Reason
    since: float | None = None
    detail: str = ""


class Measured(msgspec.Struct, frozen=True):
    """An offset, and when it was read."""

    value: int
    at: float


class PartitionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What has been read of one partition of a group."""

    topic: str
    partition: int
    position: int | Why
    """The next offset to be processed: a member's, or the stored offset. Read before `end`."""
    start: Measured | None = None
    """The log's first offset; None if it was not asked."""
    end: Measured | None = None
    """The last answer: the high watermark, or the last stable offset."""
    silent: Why | None = None
    """Why there is no newer `end`; None if the leader answers."""
    written: int | Why | None = None
    """Timestamp, in ms since 1970, of the first record at or after `position`; None if it was not looked up."""
    until: int | None = None
    """Where a bounded run ends: records from there on are not to be processed."""


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer. `lag` is None exactly if `why` says why, `seconds` exactly if `why_seconds` does."""

    topic: str
    partition: int
    lag: int | None
    """Offsets from the position, or from the log's start if that is later, to the log's end."""
    at_least: int
    """What the lag cannot be below, by the last known end; the lag itself where that is known."""
    age: float | None
    """Seconds since the log's end was read; None if it never was."""
    why: Why | None
    seconds: float | None
    """Since the next record was written; 0 if there is none."""
    why_seconds: Why | None
    lost: int | None
    """Offsets between the position and the log's start: deleted without having been processed. None if unknown."""
    behind: bool | None
    """Whether something is left to process, up to `until`; None if unknown."""
    left: int | None
    """How many offsets that are, as far as is known."""

    @property
    def gone(self) -> bool:
        """The topic or partition was deleted: its offset is left over."""
        return self.why is not None and self.why.reason == "topic gone"


def partition_lag(
    facts: PartitionFacts,
    now: float,
    wall: float,
    growth: LogGrowth | None = None,
    *,
    fresh_for: float = FRESH,
    stale_after: float = STALE,
) -> PartitionLag:
    """`now` is of the clock of the readings, `wall` in seconds since 1970. `growth`: if no timestamp is known.

    A view without room for the age of a reading (metrics) sets `fresh_for` and `stale_after` to 0: then the end of an
    earlier reading only says what the lag is at least.
    """
    end, start = facts.end, facts.start
    age = None if end is None else max(0.0, now - end.at)
    fresh = age is not None and age <= fresh_for
    stale = facts.silent or (Why("reading too old", end.at) if end is not None else Why("not read yet"))
    if facts.silent is not None and facts.silent.reason == "topic gone":
        return _unknown(facts, facts.silent, age)
    if isinstance(facts.position, Why):
        return _without_position(facts, facts.position, age, empty=fresh and _is_empty(facts))
    lost = None if start is None else max(0, start.value - facts.position)
    first = facts.position + (lost or 0)
    if facts.until is not None and first >= facts.until and end is None:
        return _unknown(facts, stale, age, lost=lost, behind=False, left=0)
    if end is None or age is None:
        return _unknown(facts, stale, age, lost=lost)
    if first > end.value:
        return _unknown(facts, Why("offset after the log's end") if fresh else stale, age, lost=lost)
    bound = end.value - first
    left = bound if facts.until is None else max(0, min(bound, facts.until - first))
    known = fresh or (bound > 0 and age <= stale_after)
    # A log's end does not go back: what was behind the last known end still is.
    done = fresh or (facts.until is not None and first >= facts.until)
    behind = True if left else False if done else None
    seconds, why_seconds = _age(facts, first, now, wall, growth) if bound else (0.0, None) if fresh else (None, stale)
    return PartitionLag(
        topic=facts.topic,
        partition=facts.partition,
        lag=bound if known else None,
        at_least=bound,
        age=age,
        why=None if known else stale,
        seconds=seconds,
        why_seconds=why_seconds,
        lost=lost,
        behind=behind,
        left=left if behind is not None else None,
    )


def _age(
    facts: PartitionFacts, first: int, now: float, wall: float, growth: LogGrowth | None
) -> tuple[float | None, Why | None]:
    """Seconds since the record at `first`, which exists, was written."""
    why = facts.written if isinstance(facts.written, Why) else Why("record not read")
    if isinstance(facts.written, int):
        passed = wall - facts.written / 1000
        if passed >= -SKEW:
            return max(0.0, passed), None
        why = Why("timestamp in the future")
    grown = growth.reached(first) if growth is not None else None
    return (None, why) if grown is None else (max(0.0, now - grown), None)


def _is_empty(facts: PartitionFacts) -> bool:
    return facts.start is not None and facts.end is not None and facts.start.value == facts.end.value


def _without_position(facts: PartitionFacts, why: Why, age: float | None, *, empty: bool) -> PartitionLag:
    """Of an empty log nothing is left to process, wherever the group would begin."""
    if empty and why.reason == "never committed":
        return PartitionLag(
            topic=facts.topic, partition=facts.partition, lag=0, at_least=0, age=age, why=None, seconds=0.0,
            why_seconds=None, lost=0, behind=False, left=0,
        )  # fmt: skip
    return _unknown(facts, why, age)


def _unknown(
    facts: PartitionFacts,
    why: Why,
    age: float | None,
    *,
    lost: int | None = None,
    behind: bool | None = None,
    left: int | None = None,
) -> PartitionLag:
    return PartitionLag(
        topic=facts.topic, partition=facts.partition, lag=None, at_least=0, age=age, why=why, seconds=None,
        why_seconds=why, lost=lost, behind=behind, left=left,
    )  # fmt: skip


# What others can know of a partition that a member owns: its owner node, its stored offset, and its log.

#: Seconds in which a member that works has stored an offset: longer than it collects records or waits to commit.
STALLED_FOR_OTHERS = 300.0


def standing_for_others(found: PartitionLag, owned: float, committed: float | None) -> float | None:
    """Seconds for which the owner of a partition that is behind has stored no offset though it had records to process.

    `owned`: seconds since it was claimed; `committed`: since its offset was stored, None if that is not known. The
    result is less than STALLED_FOR_OTHERS, or all three times are known, or it is None.
    """
    known = [each for each in (owned, committed, found.seconds) if each is not None]
    standing = min(known)
    return standing if len(known) == 3 or standing < STALLED_FOR_OTHERS else None


# One partition, looked at again and again: growth, rates, and since when it stands still.

#: Looks from which rates are computed.
RATED = 13


class _Look(msgspec.Struct, frozen=True):
    at: float
    position: int
    end: Measured | None


class History:
    """Of one partition of one group, from one claim or one reading on. Times are seconds of any monotonic clock."""

    def __init__(self, position: int | None, at: float) -> None:
        self.growth = LogGrowth()
        self._looks: deque[_Look] = deque(maxlen=RATED)
        self._position = position
        self._since = at

    def look(self, position: int, end: Measured | None, at: float) -> None:
        """To be called at intervals, after `advance`. `end`: the last known one."""
        if end is not None:
            self.growth.saw(end.value, end.at)
        self._looks.append(_Look(at, position, end))

    def advance(self, position: int | None, behind: bool | None, at: float) -> None:
        """`behind`: whether something is left to process. While that is unknown, nothing is concluded."""
        if position != self._position or behind is False:
            self._position, self._since = position, at

    def standing(self, behind: bool | None, at: float) -> float:
        """Seconds for which it has been behind without advancing; 0 while it is not known to be behind."""
        return at - self._since if behind else 0.0

    @property
    def rate(self) -> float | None:
        """Offsets processed per second, lately. None while unknown."""
        span = self._span()
        return None if span is None else (span[1].position - span[0].position) / (span[1].at - span[0].at)

    @property
    def log_rate(self) -> float | None:
        """Offsets appended to the log per second, lately. None while unknown, also without two readings of its end."""
        span = self._span()
        if span is None or (first := span[0].end) is None or (last := span[1].end) is None or last.at <= first.at:
            return None
        return (last.value - first.value) / (last.at - first.at)

    def _span(self) -> tuple[_Look, _Look] | None:
        if len(self._looks) < 2 or self._looks[-1].at <= self._looks[0].at:
            return None
        return self._looks[0], self._looks[-1]


def time_left(left: int | None, rate: float | None, log_rate: float | None) -> float | None:
    """Seconds until nothing is left at these rates; None if unknown, or if the log grows as fast."""
    if left == 0:
        return 0.0
    if left is None or rate is None or log_rate is None or rate <= log_rate:
        return None
    return left / (rate - log_rate)
