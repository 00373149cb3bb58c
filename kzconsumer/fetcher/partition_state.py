"""Fetch state of one claim: the next offset to fetch, and the reasons not to fetch now.

Written by the BrokerFetcher that holds it, and by delivery and offset reset, which it calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kzconsumer.brokers.protocol.fetch import Diverging
from kzconsumer.fetcher.empty_answers import EmptyAnswers
from kzconsumer.lag.fetched_times import FetchedTimes
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.streams.chunk import Chunk

if TYPE_CHECKING:
    from kzconsumer.streams.chunk_queue import ChunkQueue

# Growing waits after errors, seconds.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0
EXPANSION = 4.0
"""Assumed growth of records when decoded, until a response has been measured. Too low a value costs memory at once."""


class PartitionFetchState(msgspec.Struct, eq=False):
    """`position` is None until a claim without stored offset has been given one by the reset policy."""

    tracker: OffsetTracker
    queue: ChunkQueue
    position: int | None
    max_bytes: int
    high_watermark: int | None = None
    high_watermark_at: float | None = None
    """When the response arrived that had it."""
    retry_at: float = 0.0
    failed: bool = False
    """Its stream was given an error: it is not fetched any more."""
    failures: int = 0
    """In a row, at this position: corrupt batches, or a broker that cannot read them."""
    leader_epoch: int = -1
    """In which its leader leads it; -1 if brokers do not say."""
    verified: bool = False
    """The present leader has served a fetch at the position, after `log_check`."""
    diverging: Diverging | None = None
    """The log does not hold what was read before the position: `log_check` has found it, the reset policy decides."""
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
    preferred: int | None = None
    """Id of the replica to fetch from instead of the leader, which has named it (KIP-392)."""
    preferred_until: float = 0.0
    _pause: float = FIRST_PAUSE

    def __post_init__(self) -> None:
        self.reset_due = self.position is None

    @property
    def topic_partition(self) -> TopicPartition:
        return self.tracker.topic_partition

    @property
    def open(self) -> bool:
        return self.tracker.open

    @property
    def epoch(self) -> int:
        """The leader epoch of the last record before the position; -1 if it is unknown."""
        return -1 if self.position is None else self.tracker.leader_epochs.before(self.position)

    def led_by(self, leader_epoch: int) -> None:
        """Another leader, or the same one again: its log has to be checked."""
        self.leader_epoch = leader_epoch
        self.verified = False
        if self.diverging is not None:  # the log of the former leader, which was not acted upon
            self.diverging, self.reset_due = None, self.position is None

    @property
    def end(self) -> int | None:
        """Nothing is fetched from this offset on: the end of a bounded run or of a range that is replayed."""
        return self.tracker.replay.until if self.tracker.replay is not None else self.stop

    @property
    def has_room(self) -> bool:
        return self.queue.has_room_for(self.broker)

    def fetchable(self, now: float) -> bool:
        """The queue has room, and no pause, error, pending reset or end offset forbids it.

        At the end offset, or behind it, one answer shows whether the log holds the position.
        """
        return (
            self.tracker.open
            and not self.tracker.paused
            and not self.reset_due
            and not self.decoding
            and (self.end is None or self.position is None or self.position < self.end or not self.verified)
            and self.has_room
            and now >= self.retry_at
        )

    def prefer(self, replica: int, until: float) -> None:
        """The leader wants it to be fetched from another replica."""
        self.preferred, self.preferred_until = replica, until

    def pass_over(self, first: int, until: int) -> None:
        """Continue behind offsets that the log does not have; queued after what was fetched before."""
        at_end = self.end is not None and until >= self.end
        self.queue.put(Chunk(self.tracker, first, until, at_end=at_end))
        self.position = until

    def fail(self, error: Exception) -> None:
        """Have the stream raise `error` after everything queued; the partition is not fetched any more."""
        self.failed = True
        at = self.position if self.position is not None else self.tracker.consumed
        self.queue.put(Chunk(self.tracker, at, at, error=error))

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
