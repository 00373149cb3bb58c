"""The progress of an owned partition, and what carries it: positions, leader epochs, chunks, messages.

Streams and the sink runner hand over and mark; the committer reads. **An offset always means the next record to be
read**: `processed == 7` means that everything below 7 is done, and a commit stores 7.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.records import _native
from kzconsumer.records.forms import NO_RECORDS, Records
from kzconsumer.registry.claim_record import Plan


class Position(msgspec.Struct, frozen=True):
    """The positions of one owned partition; None is "not known yet"."""

    topic: str
    partition: int
    thread: str
    """Which stream of the member has it, as the owner node in ZooKeeper names it."""
    fetched: int | None
    """The next offset to fetch. All of these are offsets of the next record, not of the last one."""
    consumed: int
    """The next offset to hand out."""
    processed: int
    """The first offset that is not processed."""
    committed: int | None
    """The offset that is stored for the group."""
    high_watermark: int | None
    """The end of what can be read now; with read_committed the last stable offset."""
    paused: bool = False
    """By `ConsumerConnector.pause`, or `[subscription] paused`."""
    incarnation: int = 0
    """The czxid of the topic's node, which differs for a recreated topic."""
    end: int | None = None
    """The first offset that will not be read, or None if the partition has no end."""
    led: bool = True
    """False while its leader is being searched."""
    leader: int | None = None
    """The broker it is fetched from; None while it is not fetched."""
    queue_full: bool = False
    """Its stream's queue is full, so it is not fetched at the moment."""
    verified: bool = True
    """Its present leader has served a fetch at its position: the log holds what was read before."""
    throttled: bool = False
    """A quota of its broker holds this member back."""
    failed: bool = False
    """Its stream has raised an error, and it is no longer fetched."""
    high_watermark_at: float | None = None
    """When the leader returned `high_watermark`, by `kzconsumer.clock`: while none answers, it says less and less.
    None if a replica returned it, which may be behind its leader."""
    held_back: int = 0
    """Offsets behind a transaction that has been open for a quarter of an hour: with read_committed they cannot be read
    before it ends, and `high_watermark` is where it begins."""
    rate_limited: bool = False
    """`[fetch] rate_limit` holds the next request of this member back."""
    hole_until: int | None = None
    """The log is proved to have no record from `fetched` on up to this offset."""

    @property
    def left(self) -> int | None:
        """Offsets that could be read now and are not processed yet; None while unknown."""
        if self.high_watermark is None:
            return None
        until = self.last_of(self.high_watermark)
        until = self.high_watermark if until is None else min(self.high_watermark, until)
        return max(0, until - self.processed)

    def last_of(self, log_end: int | None) -> int | None:
        """From where on nothing is to be read in a log that ends there: the partition's end, or a hole before that."""
        if self.fetched is None or self.hole_until is None or log_end is None or log_end > self.hole_until:
            return self.end
        return self.fetched if self.end is None else min(self.fetched, self.end)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def at_end(self) -> bool:
        """Whether the application has taken everything that can be read."""
        return self.high_watermark is not None and self.consumed >= self.high_watermark


# The leader epoch of the records before a position distinguishes a log that was replaced from one that grew. An offset
# alone says nothing about a log that was cut off and has grown past it. Of two logs with the same epoch before an
# offset, all records before it are the same (KIP-101, KIP-320).

UNKNOWN: Final = -1
"""The epoch of records from a broker before 0.11, of an offset that another program stored, or behind a gap."""


class LeaderEpochs:
    """The leader epochs of what a claim has read, from the position where it began on.

    An epoch is never lower than that of the last record before the position, since the log would seem to differ then.
    It may be higher: a gap in the offsets counts for the batch behind it.
    """

    __slots__ = ("_epochs", "_from", "until")

    def __init__(self, position: int, epoch: int = UNKNOWN) -> None:
        """`epoch`: of the last record before `position`."""
        self.until = position
        """The last position of which something is known."""
        self._from = [position - 1]  # the offsets from which on each epoch counts
        self._epochs = [epoch]

    def __repr__(self) -> str:
        return f"<LeaderEpochs {list(zip(self._from, self._epochs, strict=True))} until {self.until}>"

    def before(self, position: int) -> int:
        """The epoch of the last record before this position, UNKNOWN outside of what was read."""
        at = bisect_left(self._from, position) - 1
        return self._epochs[at] if at >= 0 and position <= self.until else UNKNOWN

    def extend(self, start: int, runs: Iterable[tuple[int, int]], until: int, needed: int) -> None:
        """What was read from `start` to `until` has these `Decoded.epochs`. Nothing is asked about below `needed`."""
        if start < self.until:  # read again
            keep = max(bisect_left(self._from, start), 1)
            del self._from[keep:], self._epochs[keep:]
        elif start > self.until:
            self._add(self.until, UNKNOWN)
        known = start
        for first, epoch in runs:
            if first < until:
                self._add(first, epoch)
                known = until
        if known < until:
            self._add(known, UNKNOWN)
        self.until = until
        if len(self._from) > 1 and (passed := bisect_left(self._from, needed) - 1) > 0:
            del self._from[:passed], self._epochs[:passed]

    def _add(self, first: int, epoch: int) -> None:
        if epoch != self._epochs[-1]:
            self._from.append(first)
            self._epochs.append(epoch)


class Progress:
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
        """With `replay` it is for that range only, which begins at `start`; another progress follows.

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
        # The last range written to the sink's destination, in this epoch; first that of the claim record. What is
        # written next follows it.
        self.written: tuple[int, int] | None = None
        self.retired = False  # set by the claims: the topic was deleted, nothing more is committed or redelivered
        self.paused = False  # set by the claims
        self._end: int | None = None  # nothing from there on is handed over
        self._done_from: list[int] = []
        self._done_until: list[int] = []
        self._on_close: Callable[[Progress], None] | None = None
        self._on_lost: Callable[[], None] | None = None
        self._on_settled: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"<Progress {self.topic_partition} consumed {self.consumed} processed {self.processed} {state}>"

    @property
    def settled(self) -> bool:
        """Whether all that was handed over is processed."""
        return self.processed >= self.consumed

    @property
    def lost(self) -> bool:
        """Closed without waiting for the work in hand, which another member may be doing."""
        return not self.open and self._on_settled is None

    def restart(self, start: int, leader_epoch: int = UNKNOWN) -> None:
        """Begin at a position found after the claim (a reset), before anything from there on is handed over."""
        assert self.settled, self
        self.consumed = self.processed = start
        self.leader_epochs = LeaderEpochs(start, leader_epoch)
        if not self.open:
            self._end = start

    def give_up_replay(self, start: int, leader_epoch: int = UNKNOWN) -> None:
        """The planned range is no longer to be written: continue as an ordinary claim at `start`."""
        self.replay = None
        self.restart(start, leader_epoch)

    def in_epoch(self, epoch: int) -> None:
        """Offsets mean other records from now on. A new epoch begins a new chain of ranges."""
        if epoch != self.epoch:
            self.epoch, self.written = epoch, None

    def going_on(self) -> Progress:
        """Another progress for the same claim, which begins where this one is processed."""
        progress = self.elsewhere(self.processed, self.leader_epochs.before(self.processed))
        progress.replay = None
        return progress

    def elsewhere(self, start: int, leader_epoch: int = UNKNOWN) -> Progress:
        """Another progress for the same claim, which begins at `start`. This one is to be closed."""
        other = Progress(
            self.topic_partition,
            start,
            incarnation=self.incarnation,
            epoch=self.epoch,
            replay=self.replay,
            leader_epoch=leader_epoch,
        )
        other.written, other.paused = self.written, self.paused
        other._on_close = self._on_close
        return other

    def hand_over(self, until: int) -> None:
        """The application or sink has everything below `until`."""
        self.consumed = max(self.consumed, until if self._end is None else min(until, self._end))

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

    def wrote(self, first: int, until: int) -> bool:
        """The destination has this range: the next one follows it, and the work on it is done. Returns as `mark`."""
        self.written = first, until
        return self.mark(first, until)

    @property
    def done_beyond(self) -> list[tuple[int, int]]:
        """The ranges that are done beyond `processed`, as (first, until), in order and with gaps between them."""
        return list(zip(self._done_from, self._done_until, strict=True))

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

    def when_closed(self, drop: Callable[[Progress], None]) -> None:
        """`close` calls `drop` once, with the progress that is closed: it drops the queued records of that."""
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
        # References are dropped, as messages that an application keeps refer to their progress.
        if self.open:
            self.open = False
            drop, self._on_close = self._on_close, None
            if drop is not None:
                drop(self)
        if on_settled is None:
            give_up, self._on_lost = self._on_lost, None
            if give_up is not None:
                give_up()
            if waiting is not None:
                waiting()
        elif self.settled:
            on_settled()


# What travels from a fetcher to a stream or a sink.
#
# A chunk carries the progress of its partition: it still belongs to this member if `chunk.progress.open`.


class Chunk(msgspec.Struct, eq=False):
    """What one fetch brought for one claim: every record with `first <= offset < until`.

    `records` are in the form that the consumer wants, and empty if the range holds none. `size` is what the chunk
    counts in the budgets of queues, in bytes. `error` ends the claim's records: all before it have been queued.
    `at_end`: the partition is not fetched any further (`kzconsumer.end_offsets`, a range that is replayed).
    `broker`: id of the one that it was fetched from.
    """

    progress: Progress
    first: int
    until: int
    records: Records = NO_RECORDS
    size: int = 0
    error: Exception | None = None
    at_end: bool = False
    broker: int = 0

    def rest(self, row: int, first: int) -> Chunk:
        """The records from index `row` on, for offsets from `first` on. It keeps the memory of all records."""
        records = self.records.slice(row)
        return Chunk(self.progress, first, self.until, records, self.size, at_end=self.at_end, broker=self.broker)


Message = _native.Message


class HandedOut(NamedTuple):
    """The range acknowledged with a message or batch: `first <= offset < until` of a claim, with gaps of the log."""

    progress: Progress
    first: int
    until: int
    records: int


def load(lot: _native.Lot, records: Records, progress: Progress, begin: int) -> None:
    """Hand out the records as messages, which stand for all of the claim from offset `begin` on."""
    lot.load(records.decoded, *progress.topic_partition, progress, begin)


def handed_out(message: Message) -> HandedOut | None:
    """The range that acknowledging the message completes; None if no stream has made it."""
    return _one_record(_native.range_of(message))


def last_handed_out(lot: _native.Lot) -> HandedOut | None:
    """The same of the message that was taken last; None if there is none."""
    return _one_record(lot.last())


def _one_record(found: tuple[Progress, int, int] | None) -> HandedOut | None:
    return None if found is None else HandedOut(*found, 1)
