"""Fetch state of one owned partition: the next offset to fetch, and the reasons not to fetch now; limits of a rate.

Written by the BrokerFetcher that holds it, and by delivery and offset reset, which it calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kzconsumer.brokers.protocol.log_reads import Diverging
from kzconsumer.fetcher.reading import EmptyAnswers
from kzconsumer.lag.partition import FetchedTimes
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Chunk, Progress

if TYPE_CHECKING:
    from kzconsumer.streams.chunk_queue import ChunkQueue


# Growing waits after errors, seconds.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0
EXPANSION = 4.0
"""Assumed growth of records when decoded, until a response has been measured. Too low a value costs memory at once."""


class Answers(msgspec.Struct):
    """Those of one fetch session, which reports to its partitions only what changes."""

    at: float
    """When the last one arrived."""


class FetchState(msgspec.Struct, eq=False):
    """`position` is None until a claim without stored offset has been given one by the reset policy."""

    progress: Progress
    queue: ChunkQueue
    position: int | None
    max_bytes: int
    high_watermark: int | None = None
    seen_at: float | None = None
    """When the response arrived that had it."""
    answers: Answers | None = None
    """Of the session that has reported it, and would report another one."""
    retry_at: float = 0.0
    failed: bool = False
    """Its stream was given an error: it is not fetched any more."""
    failures: int = 0
    """In a row, at this position: corrupt batches, or a broker that cannot read them."""
    leader_epoch: int = -1
    """In which its leader leads it; -1 if brokers do not say."""
    verified: bool = False
    """The present leader has served a fetch at the position, after `find_divergence`."""
    diverging: Diverging | None = None
    """The log does not hold what was read before the position: see `find_divergence`. The reset policy decides."""
    decoding: bool = False
    """The last response may not have moved the position."""
    expansion: float = EXPANSION
    """Bytes of memory per byte fetched, as last measured: that much less is asked for."""
    times: FetchedTimes = msgspec.field(default_factory=FetchedTimes)
    """Of the records that were fetched."""
    empty: EmptyAnswers = msgspec.field(default_factory=EmptyAnswers)
    """The answers without records since the last ones that came."""
    reset_due: bool = False
    stop: int | None = None
    """End offset of a bounded run."""
    broker: int = 0
    """Id of the one that it is fetched from, or was last."""
    fetcher: int = -1
    """Number of the fetcher that has it, or had it last."""
    preferred: int | None = None
    """Id of the replica to fetch from instead of the leader, which has named it (KIP-392)."""
    preferred_until: float = 0.0
    _pause: float = FIRST_PAUSE

    def __post_init__(self) -> None:
        self.reset_due = self.position is None

    @property
    def topic_partition(self) -> TopicPartition:
        return self.progress.topic_partition

    @property
    def open(self) -> bool:
        return self.progress.open

    @property
    def epoch(self) -> int:
        """The leader epoch of the last record before the position; -1 if it is unknown."""
        return -1 if self.position is None else self.progress.leader_epochs.before(self.position)

    @property
    def high_watermark_at(self) -> float | None:
        """Up to when it is known to be the high watermark."""
        if self.answers is None or self.seen_at is None:
            return self.seen_at
        return max(self.seen_at, self.answers.at)

    def saw_end(self, end: int, time: float, answers: Answers | None) -> None:
        """The log can be read up to there, as its leader has answered. `answers`: those of the session, if any."""
        self.high_watermark, self.seen_at, self.answers = end, time, answers
        self.verified = True

    def left_session(self) -> None:
        """Its high watermark is not reported any more."""
        self.seen_at, self.answers = self.high_watermark_at, None

    @property
    def may_learn(self) -> bool:
        """An answer that has nothing of it says something: the log holds the position, or sends nothing from it on."""
        return (
            not self.verified
            or self.answers is None
            or self.position is None
            or self.high_watermark is None
            or (self.position < self.high_watermark)
        )

    def led_by(self, leader_epoch: int) -> None:
        """Another leader, or the same one again: its log has to be checked."""
        self.leader_epoch = leader_epoch
        self.verified = False
        if self.diverging is not None:  # the log of the former leader, which was not acted upon
            self.diverging, self.reset_due = None, self.position is None

    @property
    def end(self) -> int | None:
        """Nothing is fetched from this offset on: the end of a bounded run or of a range that is replayed."""
        return self.progress.replay.until if self.progress.replay is not None else self.stop

    @property
    def has_room(self) -> bool:
        return self.queue.has_room_for(self.broker)

    def fetchable(self, now: float) -> bool:
        """The queue has room, and no pause, error, pending reset or end offset forbids it.

        At the end offset, or behind it, one answer shows whether the log holds the position.
        """
        return (
            self.progress.open
            and not self.progress.paused
            and not self.reset_due
            and not self.decoding
            and (self.end is None or self.position is None or self.position < self.end or not self.verified)
            and self.has_room
            and now >= self.retry_at
        )

    def prefer(self, replica: int, until: float) -> None:
        """The leader wants it to be fetched from another replica."""
        self.preferred, self.preferred_until = replica, until

    def move_to(self, position: int) -> None:
        """Away from what was fetched. Behind a lower position the log has other records than those fetched before."""
        if self.position is not None and position < self.position:
            self.times = FetchedTimes()
        self.position = position

    def pass_over(self, first: int, until: int) -> None:
        """Continue behind offsets that the log does not have; queued after what was fetched before."""
        at_end = self.end is not None and until >= self.end
        self.queue.put(Chunk(self.progress, first, until, at_end=at_end))
        self.position = until

    def fail(self, error: Exception) -> None:
        """Have the stream raise `error` after everything queued; the partition is not fetched any more."""
        self.failed = True
        at = self.position if self.position is not None else self.progress.consumed
        self.queue.put(Chunk(self.progress, at, at, error=error))

    def succeed(self) -> None:
        self._pause = FIRST_PAUSE
        self.failures = 0

    def count_attempt(self, attempts: int) -> bool:
        """Count a failure at this position. False once there have been `attempts` of them in a row."""
        self.failures += 1
        return self.failures < attempts

    def pause(self, now: float) -> None:
        """Wait before the next request, longer each time until `succeed`."""
        self.retry_at = now + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)


# Fetch rate limit of one member: bytes per second, of all brokers together.

# Seconds whose allowance may be saved up while nothing is fetched.
BURST = 1.0


class RateLimit:
    """Without `per_second` there is none. A response may exceed what is left: the next request waits for it."""

    def __init__(self, per_second: float | None, burst: float = BURST) -> None:
        """`burst`: seconds whose allowance may be saved up."""
        self._per_second = per_second
        self._burst = burst
        self._paid_at = 0.0  # the time by which the rate allows what was fetched

    def change(self, per_second: int | None) -> None:
        """Set another rate; a wait due to the old one ends."""
        self._per_second = per_second
        self._paid_at = 0.0

    def spend(self, now: float, size: int) -> None:
        if self._per_second is not None:
            self._paid_at = max(self._paid_at, now - self._burst) + size / self._per_second

    def wait(self, now: float) -> float:
        """Seconds until the next request may go out; 0 if it may."""
        return max(self._paid_at - now, 0.0)


# How a fetch loop keeps to a broker's quota for consumers: it asks later, and for less.
#
# Brokers before 2.0 hold a response back. Those from 2.0 on answer at once, without records, and read nothing more
# from the connection for that time (KIP-219); up to 2.5 a response that is too large for the quota is never answered
# otherwise (KAFKA-9677). Times are seconds of the caller's clock.

# Seconds that a response should be held back at most: shorter waits for smaller responses.
LONGEST = 1.0
# Seconds over which brokers measure a rate (`quota.window.num`, `quota.window.size.seconds`).
WINDOW = 10.0
# Empty answers in a row, each with a short wait, after which less is asked for. The fewest bytes are mostly headers.
PATIENT = 3
FEWEST_BYTES = 1024
LONGEST_PATIENCE = 120.0
SHOWN = 15.0
"""Seconds after a throttled response for which the broker counts as throttling."""


class Throttle:
    """Of one fetch loop. `most` is how many bytes to ask for."""

    def __init__(self, most: int) -> None:
        self._limit = most
        self.most = most
        self.last = 0.0
        """Seconds that the last response was, or is, throttled for."""
        self._until = 0.0
        self._empty = 0  # throttled answers in a row
        self._throttled_at = -SHOWN

    def limit(self, most: int) -> None:
        """Never ask for more bytes."""
        self._limit, self.most = most, min(self.most, most)

    def answered(self, now: float, seconds: float, size: int, asked: int, *, muted: bool) -> bool:
        """A response of `size` bytes of records came, throttled for so many seconds. True if throttling begins by that.

        `asked`: bytes that it could have had. `muted`: the broker answers nothing more until then; else it has held the
        response back for so long.
        """
        self.last = seconds
        self._empty = self._empty + 1 if seconds > 0 and size == 0 else 0
        if seconds <= 0:
            if size >= self.most // 2:
                self.most = min(self.most + self.most // 4, self._limit)
            return False
        begins = not self.throttling(now)
        self._throttled_at = now + (seconds if muted else 0.0)
        if muted:
            self._until = now + seconds
        if size == 0 and seconds <= LONGEST and self._empty <= PATIENT:
            pass  # it fits after that time, unless others with the same quota are quicker
        elif size == 0:
            # The broker had `asked` bytes at most, and throttles for (rate - quota) / quota * window seconds. Half of
            # what follows from this leaves room for what it has counted before.
            self.most = max(int(min(asked, self.most) / (1 + seconds / WINDOW) / 2), FEWEST_BYTES)
        elif seconds > LONGEST:
            self.most = max(int(size * LONGEST / seconds), FEWEST_BYTES)
        return begins

    def unanswered(self, waited: float) -> None:
        """No response came in so many seconds: a quota may hold back what is much too large for it.

        What was not received counts, too, so that the next response may be held back for longer. A broker that is
        stuck does not take a new connection, and is not waited for.
        """
        self.most = max(self.most // 16, FEWEST_BYTES)
        self.last = min(max(self.last, waited), LONGEST_PATIENCE / 2)

    def wait(self, now: float) -> float:
        """Seconds until the next request may go out; 0 if it may."""
        return max(self._until - now, 0.0)

    def patience(self, usual: float) -> float:
        """Seconds to wait for the next response."""
        return max(usual, 2 * self.last)

    def throttling(self, now: float) -> bool:
        """Whether it throttles, or has done so lately."""
        return now - self._throttled_at < SHOWN
