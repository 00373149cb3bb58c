"""Progress of one claim: consumed >= processed, and whether the claim is still open.

Pure. Owns the consumed and processed offsets of one partition from claim to release. Streams and the sink runner hand
over and mark; the committer reads. **An offset always means the next record to be read**: `processed == 7` says that
everything below 7 is done, and 7 is what a commit stores.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import Plan


class OffsetTracker:
    """The contiguous prefix of what is done, though ranges may be marked in any order.

    Ranges tile: each begins where the one handed over before it ended, so gaps in the log's own offsets (compaction,
    control records) lie inside ranges and cannot stop the prefix. What is done beyond the prefix is kept as ranges
    apart from each other: there are never more of them than ranges in between that are not done.
    """

    __slots__ = (
        "_done_from",
        "_done_until",
        "_on_close",
        "_on_lost",
        "_on_settled",
        "consumed",
        "epoch",
        "incarnation",
        "open",
        "paused",
        "processed",
        "replay",
        "retired",
        "topic_partition",
        "written",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        start: int,
        *,
        incarnation: int = 0,
        epoch: int = 0,
        replay: Plan | None = None,
    ) -> None:
        """With a `replay` it is that range's alone, which begins at `start`: another tracker goes on behind it."""
        self.topic_partition = topic_partition
        self.incarnation = incarnation
        self.epoch = epoch
        self.replay = replay
        self.consumed = start
        self.processed = start
        self.open = True
        self.written: tuple[int, int] | None = None  # by the sink's runner: the last range that its destination took
        self.retired = False  # written by the claims: its topic is gone, what is processed is not committed any more
        self.paused = False  # written by the claims: nothing of it is fetched or handed out for the time being
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
        """Nothing that was handed over is still being worked on."""
        return self.processed >= self.consumed

    @property
    def lost(self) -> bool:
        """Closed, and nobody waits for the work in hand: others may be doing it."""
        return not self.open and self._on_settled is None

    def restart(self, start: int) -> None:
        """Begin at a position found only after the claim (a reset); nothing may have been handed over yet."""
        assert self.settled, self
        self.consumed = self.processed = start
        self.written = None

    def give_up_replay(self, start: int) -> None:
        """The planned range is not written any more: an ordinary claim goes on at `start`."""
        self.replay = None
        self.restart(start)

    def hand_over(self, until: int) -> None:
        """The application or sink has everything below `until`."""
        self.consumed = max(self.consumed, until)

    def mark(self, first: int, until: int) -> bool:
        """The work on `first <= offset < until` is done; of it counts what has been handed over, unless it is lost.

        False when nothing of it was news.
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
        """Keep a range that is done beyond the prefix, as one with those that it touches."""
        begin, end = bisect_left(self._done_until, first), bisect_right(self._done_from, until)
        if begin < end:
            if self._done_from[begin] <= first and until <= self._done_until[begin]:
                return False
            first, until = min(first, self._done_from[begin]), max(until, self._done_until[end - 1])
        self._done_from[begin:end] = [first]
        self._done_until[begin:end] = [until]
        return True

    def when_closed(self, drop: Callable[[], None]) -> None:
        """Who holds records of this claim drops them in `drop`, which `close` calls once."""
        self._on_close = drop

    def when_lost(self, give_up: Callable[[], None] | None) -> None:
        """Who works on records of this claim gives up in `give_up`; called at once if there is no more to lose."""
        self._on_lost = give_up
        if give_up is not None and self.lost:
            give_up()

    def close(self, on_settled: Callable[[], None] | None = None) -> None:
        """The claim ends: nothing more is handed over. `on_settled` is called when what was handed over is done.

        Without it nobody waits for the work in hand, nor does an earlier caller any more: the claim is lost.
        """
        # Stored first: what `drop` marks is still ours, unless nobody waits for it.
        waiting, self._on_settled = self._on_settled, on_settled
        # Each is called once and let go of: messages that an application keeps refer to their tracker.
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
