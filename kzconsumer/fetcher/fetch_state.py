"""Fetch state of one owned partition: the next offset to fetch, and the reasons not to fetch now.

Written by the BrokerFetcher that holds it, and by delivery and offset reset, which it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from kzconsumer.brokers.protocol.log_reads import Diverging
from kzconsumer.fetcher.fetch_rules import EmptyAnswers
from kzconsumer.lag.write_times import FetchedTimes
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Chunk, Progress

if TYPE_CHECKING:
    from kzconsumer.streams.chunk_queue import ChunkQueue


# Growing waits after errors, seconds.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0
REFUSALS_UNLOGGED = 15
"""In a row, of one partition, after which they are logged."""
REFUSALS_APART = 30.0
"""Seconds between two of which the later one begins a new row: a partition may have no records in between."""
EXPANSION = 4.0
"""Assumed growth of records when decoded, until a response has been measured. Too low a value costs memory at once."""


class Answers(msgspec.Struct):
    """Those of one fetch session, which reports of its partitions only what changes; or those without a session."""

    at: float
    """When the last one arrived."""


class OpenTransaction(msgspec.Struct):
    """The first one of a log that is read with READ_COMMITTED: brokers send nothing from there on."""

    offset: int
    since: float
    """When an answer first had it."""
    end: int
    """The high watermark: records from `offset` up to there wait."""
    logged: bool = False
    """It has been open for so long that it may never end."""


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
    """Those that have had it, and would have another one."""
    retry_at: float = 0.0
    failed: bool = False
    """Its stream was given an error: it is not fetched any more."""
    failures: int = 0
    """In a row, at this position: corrupt batches, or a broker that finds them corrupt."""
    refusals: int = 0
    """In a row, at this position: a broker fails for an unknown reason, refuses an offset that its log has, or is not
    the leader. They do not count as `failures`: those decide that a batch is corrupt."""
    refused_at: float = -REFUSALS_APART
    """When the last one came."""
    leader_epoch: int = -1
    """In which its leader leads it; -1 if brokers do not say."""
    verified: bool = False
    """The present leader has served a fetch at the position, after `find_divergence`."""
    diverging: Diverging | None = None
    """The log does not hold what was read before the position: see `find_divergence`. The reset policy decides."""
    decoding: bool = False
    """The last response may not have moved the position: it is not asked for."""
    arriving: bool = False
    """Records of it have come that are still to be queued, or decided about: it stays with its fetcher."""
    expansion: float = EXPANSION
    """Bytes of memory per byte fetched, as last measured: that much less is asked for."""
    cut_short: bool = False
    """A batch was, so all of `max_bytes` is asked for."""
    times: FetchedTimes = msgspec.field(default_factory=FetchedTimes)
    """Of the records that were fetched."""
    empty: EmptyAnswers = msgspec.field(default_factory=EmptyAnswers)
    """The answers without records since the last ones that came."""
    open_transaction: OpenTransaction | None = None
    """None if the last answer had none."""
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
        """Up to when it is known to be the high watermark. None if it is a replica's, which may be behind the leader's:
        a replica says how far its own log can be read, also while it copies nothing.
        """
        if self.preferred == self.broker:
            return None
        if self.answers is None or self.seen_at is None:
            return self.seen_at
        return max(self.seen_at, self.answers.at)

    def saw_end(self, end: int, time: float, answers: Answers | None) -> None:
        """The log can be read up to there, as its leader has answered. `answers`: those of the session, if any."""
        self.high_watermark, self.seen_at, self.answers = end, time, answers
        self.verified = True

    @property
    def held_back(self) -> int:
        """Offsets that cannot be read because a transaction has been open for long."""
        found = self.open_transaction
        return found.end - found.offset if found is not None and found.logged else 0

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

    def restart(self, start: int, leader_epoch: int, replace: Callable[[Progress, Progress], None]) -> None:
        """Begin at a position that is stored, and was found when all that had been handed over was processed.

        `replace` is called if the claim goes on with another progress.
        """
        # The application may still have former records from `start` on in hand, and acknowledge them once more. That
        # must not count for the records that the log has in their place. So the claim goes on with another progress,
        # as after a seek, and what belongs to the former one has no effect. A claim that is being released hands out
        # nothing more, and its final commit knows it by its progress, which ends there.
        former = self.progress
        if start >= former.consumed or not former.open:
            former.restart(start, leader_epoch)
            return
        self.progress = former.elsewhere(start, leader_epoch)
        replace(former, self.progress)
        former.close()

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
        self.failures = self.refusals = 0

    def count_attempt(self, attempts: int) -> bool:
        """Count a failure at this position. False once there have been `attempts` of them in a row."""
        self.failures += 1
        return self.failures < attempts

    def count_refusal(self, now: float) -> bool:
        """Whether this one is to be logged."""
        if now - self.refused_at >= REFUSALS_APART:
            self.refusals = 0
        self.refused_at = now
        self.refusals += 1
        return self.refusals == REFUSALS_UNLOGGED

    def pause(self, now: float) -> None:
        """Wait before the next request, longer each time until `succeed`."""
        self.retry_at = now + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
