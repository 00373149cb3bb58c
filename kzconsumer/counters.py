"""Counters and durations of a member since its start, over all sessions.

Each has one writer, which adds to it once per request, batch or rebalance, never per record; `status` reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

#: Upper bounds of the histograms' buckets, in seconds.
BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Rebalances that are remembered one by one.
TIMELINE = 100

CommitStorage = Literal["zookeeper", "kafka"]
CommitOutcome = Literal["stored", "lost", "refused", "unknown"]
RebalanceOutcome = Literal["done", "blocked", "unreadable", "interrupted"]


class Timing:
    """Durations in seconds: how many, their sum, and how many fell into each bucket (the last one has no bound)."""

    __slots__ = ("buckets", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.buckets = [0] * (len(BOUNDS) + 1)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1


class FetchCounters:
    """From one broker; its fetcher writes it."""

    def __init__(self) -> None:
        self.requests = Timing()
        """From sending a request to handling its response."""
        self.decoding = Timing()
        self.throttled = Timing()
        """For how long the broker has throttled this client, by response."""
        self.bytes = 0


class Rebalance(msgspec.Struct, frozen=True):
    """One rebalance; the numbers are of partitions."""

    at: float
    """Seconds since 1970, when it ended."""
    seconds: float
    reasons: tuple[str, ...]
    outcome: RebalanceOutcome
    generation: int
    members: int | None = None
    kept: int = 0
    moved: int = 0
    released: int = 0
    claimed: int = 0
    blocked: int = 0


class RebalanceCounters:
    """The rebalancer writes it."""

    def __init__(self) -> None:
        self.timeline: deque[Rebalance] = deque(maxlen=TIMELINE)
        """Those that changed something, and the first of several in a row that failed in the same way."""
        self.counts: Counter[tuple[str, RebalanceOutcome]] = Counter()
        """By the kind of the first reason."""
        self.seconds = Timing()
        self.last: RebalanceOutcome | None = None
        """How the last attempt ended."""
        self.attempts = Attempts()
        """A claim that is blocked by another owner is no failure."""

    def add(self, rebalance: Rebalance) -> None:
        self.counts[kind_of(rebalance.reasons[0]), rebalance.outcome] += 1
        self.seconds.add(rebalance.seconds)
        self.last = rebalance.outcome
        last = self.timeline[-1].outcome if self.timeline else None
        changes = rebalance.moved or rebalance.released or rebalance.claimed
        if changes or last is None or rebalance.outcome not in ("done", last):
            self.timeline.append(rebalance)


class Attempts:
    """Since when none of the attempts at one thing has succeeded. One that hangs has not succeeded either.

    Times are those of `kzconsumer.clock`.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        """Why the last one that ended failed; None if it succeeded, or was cancelled."""
        self._failing_since: float | None = None
        self._begun: dict[object, float] = {}

    @contextmanager
    def one(self, now: float) -> Iterator[None]:
        """An attempt that begins. It has failed if it raises or is cancelled; if not, call `succeeded` or `failed`."""
        key = object()
        self._begun[key] = now
        try:
            yield
        except BaseException as error:
            self.failed(str(error) if isinstance(error, Exception) else self.failure, now)
            raise
        finally:
            del self._begun[key]

    def failed(self, reason: str | None, began: float) -> None:
        self.failure = reason
        self._failing_since = began if self._failing_since is None else min(began, self._failing_since)

    def succeeded(self) -> None:
        self.failure = self._failing_since = None

    @property
    def under_way_since(self) -> float | None:
        return min(self._begun.values(), default=None)

    @property
    def unsuccessful_since(self) -> float | None:
        """When the first one began of those that have not succeeded; None if the last one did."""
        known = [each for each in (self._failing_since, self.under_way_since) if each is not None]
        return min(known, default=None)


class CommitCounters:
    """The committer writes it."""

    def __init__(self) -> None:
        self.offsets: Counter[tuple[CommitStorage, CommitOutcome]] = Counter(
            {("zookeeper", "stored"): 0, ("zookeeper", "lost"): 0, ("zookeeper", "unknown"): 0}
        )
        """Of partitions; "lost" if the claim was lost, "refused" by the brokers. A copy in the brokers counts, too."""
        self.rounds = 0
        """Successful commits, also those with nothing to store."""
        self.attempts = Attempts()

    @contextmanager
    def one_round(self, now: float) -> Iterator[None]:
        """A commit, which is counted if it succeeds."""
        with self.attempts.one(now):
            yield
        self.rounds += 1
        self.attempts.succeeded()


class Counters:
    """All counters of one consumer."""

    def __init__(self) -> None:
        self.fetches: dict[int, FetchCounters] = {}
        """By the broker's number."""
        self.records: Counter[str] = Counter()
        """Fetched, by topic."""
        self.bytes: Counter[str] = Counter()
        """Fetched, by topic, as the brokers sent them."""
        self.commits = CommitCounters()
        self.rebalances = RebalanceCounters()
        self.rejected: Counter[tuple[str, str]] = Counter()
        """Records, by class of error and policy ("fail", "skip", "dead-letter")."""

    def of_broker(self, number: int) -> FetchCounters:
        found = self.fetches.get(number)
        if found is None:
            found = self.fetches[number] = FetchCounters()
        return found


def kind_of(reason: str) -> str:
    """A reason without the node, partition or topic that it names, as a label."""
    return reason.split(" ", 1)[0].strip(":")
