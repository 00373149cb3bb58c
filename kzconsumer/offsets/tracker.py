"""Progress of one claim: consumed and processed offset, and whether the claim is still open.

Streams and the sink runner hand over and mark; the committer reads. **An offset always means the next record to be
read**: `processed == 7` means that everything below 7 is done, and a commit stores 7.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.leader_epochs import UNKNOWN, LeaderEpochs
from kzconsumer.registry.claim_record import Plan


class OffsetTracker:
    """The contiguous prefix of what is done; ranges may be marked in any order.

    Ranges tile: each begins where the previous one ended, so gaps in the log's offsets (compaction, control records)
    lie inside ranges and cannot stop the prefix. What is done beyond the prefix is kept as disjoint ranges.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        start: int,
        *,
        incarnation: int = 0,
        epoch: int = 0,
        replay: Plan | None = None,
        leader_epoch: int = UNKNOWN,
    ) -> None:
        """With `replay` it is for that range only, which begins at `start`; another tracker follows.

        `epoch` is the partition's reset epoch, `leader_epoch` that of the last record before `start`.
        """
        self.topic_partition = topic_partition
        self.incarnation = incarnation
        self.epoch = epoch
        self.replay = replay
        self.consumed = start
        self.processed = start
        self.leader_epochs = LeaderEpochs(start, leader_epoch)
        self.open = True
        # The last range written to the sink's destination, in this epoch; set by the runner, and first by the claim
        # record. What is written next follows it.
        self.written: tuple[int, int] | None = None
        self.retired = False  # set by the claims: the topic was deleted, nothing more is committed
        self.paused = False  # set by the claims
        self._done_from: list[int] = []
        self._done_until: list[int] = []
        self._on_close: Callable[[], None] | None = None
        self._on_lost: Callable[[], None] | None = None
        self._on_settled: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"<OffsetTracker {self.topic_partition} consumed {self.consumed} processed {self.processed} {state}>"

    @property
    def settled(self) -> bool:
        """Whether all that was handed over is processed."""
        return self.processed >= self.consumed

    @property
    def lost(self) -> bool:
        """Closed without waiting for the work in hand, which another member may be doing."""
        return not self.open and self._on_settled is None

    def restart(self, start: int, leader_epoch: int = UNKNOWN) -> None:
        """Begin at a position found after the claim (a reset), before anything is handed over."""
        assert self.settled, self
        self.consumed = self.processed = start
        self.leader_epochs = LeaderEpochs(start, leader_epoch)

    def give_up_replay(self, start: int, leader_epoch: int = UNKNOWN) -> None:
        """The planned range is no longer to be written: continue as an ordinary claim at `start`."""
        self.replay = None
        self.restart(start, leader_epoch)

    def going_on(self) -> OffsetTracker:
        """Another tracker for the same claim, which begins where this one is processed."""
        tracker = OffsetTracker(
            self.topic_partition,
            self.processed,
            incarnation=self.incarnation,
            epoch=self.epoch,
            leader_epoch=self.leader_epochs.before(self.processed),
        )
        tracker.written = self.written
        return tracker

    def hand_over(self, until: int) -> None:
        """The application or sink has everything below `until`."""
        self.consumed = max(self.consumed, until)

    def mark(self, first: int, until: int) -> bool:
        """The work on `first <= offset < until` is done, as far as that was handed over and the claim is not lost.

        False if it changes nothing.
        """
        first, until = max(first, self.processed), min(until, self.consumed)
        if first >= until or self.lost:
            return False
        if first > self.processed:
            return self._note(first, until)
        reached = bisect_right(self._done_from, until)
        if reached:
            until = max(until, self._done_until[reached - 1])
            del self._done_from[:reached], self._done_until[:reached]
        self.processed = until
        if self._on_settled is not None and self.settled:
            self._on_settled()
        return True

    def _note(self, first: int, until: int) -> bool:
        """Keep a range that is done beyond the prefix, merged with those that it touches."""
        begin, end = bisect_left(self._done_until, first), bisect_right(self._done_from, until)
        if begin < end:
            if self._done_from[begin] <= first and until <= self._done_until[begin]:
                return False
            first, until = min(first, self._done_from[begin]), max(until, self._done_until[end - 1])
        self._done_from[begin:end] = [first]
        self._done_until[begin:end] = [until]
        return True

    def when_closed(self, drop: Callable[[], None]) -> None:
        """`close` calls `drop` once: it drops queued records of this claim."""
        self._on_close = drop

    def when_lost(self, give_up: Callable[[], None] | None) -> None:
        """`give_up` ends the work on records of this claim; called once when it is lost, now if it is."""
        self._on_lost = give_up
        if give_up is not None and self.lost:
            give_up()

    def close(self, on_settled: Callable[[], None] | None = None) -> None:
        """The claim ends: nothing more is handed over. `on_settled` is called when what was handed over is done.

        Without it the claim is lost, also for an earlier caller that waits.
        """
        # Stored first: `drop` may still mark.
        waiting, self._on_settled = self._on_settled, on_settled
        # References are dropped, as messages that an application keeps refer to their tracker.
        if self.open:
            self.open = False
            drop, self._on_close = self._on_close, None
            if drop is not None:
                drop()
        if on_settled is None:
            give_up, self._on_lost = self._on_lost, None
            if give_up is not None:
                give_up()
            if waiting is not None:
                waiting()
        elif self.settled:
            on_settled()
