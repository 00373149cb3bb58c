"""A partition's log as a model: what a leader answers to a fetch, and which records it has.

It has what logs of real brokers have: control records, aborted transactions, batches of which compaction left some
records or none, gaps between batches, and a hole at the end; or it is in tiered storage up to `local`, which excludes
compaction.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from kzconsumer.brokers.protocol.error_codes import NONE, OFFSET_OUT_OF_RANGE
from kzconsumer.brokers.protocol.log_reads import READ_COMMITTED, FetchedPartition
from kzconsumer.model import TopicPartition
from tests.support.record_sets import Record, control_batch, record_batch

_PRODUCER = 7
_MOST_IN_BATCH = 6


class _Batch(NamedTuple):
    first: int
    last: int
    offsets: tuple[int, ...]
    """Of its records that are there, control records included."""
    control: bool = False
    aborted: bool = False
    transaction: int = -1
    """Its first offset, of an aborted one."""

    @property
    def data(self) -> bytes:
        if self.control:
            return control_batch(self.first, producer_id=_PRODUCER, commit=False)
        return record_batch(
            [Record(None, b"%d" % offset) for offset in self.offsets],
            base_offset=self.first,
            offset_deltas=[offset - self.first for offset in self.offsets],
            last_offset_delta=self.last - self.first,
            transactional=self.aborted,
            producer_id=_PRODUCER if self.aborted else -1,
        )


class ModelLog:
    """`high` and `stable` are the high watermark and the last stable offset, `local` the first offset on the disks."""

    def __init__(self, chance: random.Random, isolation: int) -> None:
        self._chance = chance
        self._committed = isolation == READ_COMMITTED
        self.start = chance.choice((0, 0, 3))
        self._batches: list[_Batch] = []
        self.tiered = chance.random() < 0.3
        at = self.start
        for _ in range(chance.randrange(1, 9)):
            at += 0 if self.tiered else chance.choice((0, 0, 0, 1, 5))  # compaction may leave no batch
            at = self._append(at)
        self.end = at + (0 if self.tiered else chance.choice((0, 0, 0, 1, 4)))
        # Batches are replicated, and begin transactions, as a whole; what follows them may have been compacted away.
        bounds = [self.start, *(batch.last + 1 for batch in self._batches), *(each.first for each in self._batches)]
        self.high = chance.choice((self.end, chance.choice(bounds)))
        self.stable = chance.choice((self.high, chance.choice([bound for bound in bounds if bound <= self.high])))
        self.local = chance.choice(self._batches).first if self.tiered else self.start
        self.damaged_from = self.end
        """A batch is corrupt if the one before it ends there or behind it. (In a gap, nobody knows where it begins.)"""

    def _append(self, at: int) -> int:
        last = at + self._chance.randrange(_MOST_IN_BATCH)
        kept = tuple(offset for offset in range(at, last + 1) if self.tiered or self._chance.random() < 0.8)
        if self._chance.random() < 0.75:
            self._batches.append(_Batch(at, last, kept))
            return last + 1
        self._batches.append(_Batch(at, last, kept, aborted=True, transaction=at))
        self._batches.append(_Batch(last + 1, last + 1, (last + 1,), control=True))
        return last + 2

    @property
    def visible(self) -> set[int]:
        """The offsets of all records that a consumer gets if it may read up to the end."""
        hidden = "aborted" if self._committed else ""
        return {
            offset
            for batch in self._batches
            if not batch.control and not (hidden and batch.aborted)
            for offset in batch.offsets
            if offset >= self.start
        }

    def settle(self) -> None:
        """All replicas have everything, and no transaction is open."""
        self.high = self.stable = self.end

    def retain(self) -> None:
        """Retention deletes something, perhaps all."""
        self.start = self._chance.randint(self.start, self.high)
        self.local = max(self.local, self.start)
        self._batches = [batch for batch in self._batches if batch.last >= self.start]

    def compact(self) -> None:
        """Some records below the last stable offset go, and some batches."""
        kept = []
        for batch in self._batches:
            if self.tiered or batch.control or batch.last >= self.stable:
                kept.append(batch)
            elif self._chance.random() < 0.7:
                offsets = tuple(offset for offset in batch.offsets if self._chance.random() < 0.8)
                kept.append(batch._replace(offsets=offsets))
        self._batches = kept

    def fetch(self, partition: TopicPartition, offset: int, most: int) -> FetchedPartition:
        """As a leader that reads it from its disks, or from tiered storage in time: at least one batch."""
        limit = self.stable if self._committed else self.high
        lost = not self.start <= offset <= self.end
        found = bytearray()
        aborted = []
        before = self.start
        for batch in self._batches:
            corrupt, before = before >= self.damaged_from, batch.last + 1
            if lost or batch.last < offset:
                continue
            if batch.last >= limit or (found and len(found) >= most):
                break
            found += batch.data
            found[-1] ^= corrupt
            if batch.aborted and self._committed:
                aborted.append((_PRODUCER, batch.transaction))
        return FetchedPartition(
            topic_partition=partition,
            error=OFFSET_OUT_OF_RANGE if lost else NONE,
            high_watermark=-1 if lost else self.high,
            last_stable_offset=-1 if lost else self.stable,
            log_start_offset=-1 if lost else self.start,
            aborted=tuple(aborted),
            records=memoryview(bytes(found)),
        )
