"""Random chunks at random times: ranges tile, no range waits longer than its bound, and limits hold."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.records.forms import ColumnRecords
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.batch_builder import BatchBuilder
from kzconsumer.sinks.interface import Batch
from tests.support.schedules import schedules

PARTITIONS = 4
LARGEST_CHUNK = 7
ROWS = pa.record_batch({"offset": pa.array(range(LARGEST_CHUNK), pa.int64())})
ROW_BYTES = 8

floors = st.none() | st.integers(1, 20)
settings_of_batches = st.builds(
    lambda records, size, time, least, smallest: BatchSettings(
        max_records=records,
        max_bytes=size * ROW_BYTES,
        max_time=time,
        min_records=least and min(least, records),
        min_bytes=smallest and min(smallest, size) * ROW_BYTES,
    ),
    st.just(1000) | st.integers(1, 40),
    st.just(1000) | st.integers(1, 40),
    st.sampled_from([1.0, 10.0]),
    floors,
    floors,
)
# Partition, records (0: a range without records), and the time that passes before it arrives.
arrivals = schedules(
    st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, LARGEST_CHUNK), st.sampled_from([0.0, 0.3, 2.0, 7.0])), 60
)


@dataclass
class Waiting:
    """What a partition has in the builder, by the test's own count."""

    since: float
    records: int = 0
    cut: list[tuple[int, int]] = field(default_factory=list)


class Model:
    """Cuts like the runner, as soon as a batch is due, and checks every batch."""

    def __init__(self, limits: BatchSettings) -> None:
        self.limits = limits
        self.builder = BatchBuilder(limits)
        self.owned = [Progress(TopicPartition("t", n), 0) for n in range(PARTITIONS)]
        self.offsets = [0] * PARTITIONS
        self.waiting: dict[int, Waiting] = {}
        self.done = [0] * PARTITIONS
        self.now = 0.0

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.builder.due_at <= until:
            self.now = max(self.now, self.builder.due_at)
            self.cut()
        self.now = until

    def arrive(self, partition: int, records: int) -> None:
        first = self.offsets[partition]
        self.offsets[partition] = until = first + max(records, 1)
        rows = ColumnRecords(ROWS.slice(0, records))
        self.builder.add(Chunk(self.owned[partition], first, until, rows), self.now)
        self.waiting.setdefault(partition, Waiting(self.now)).records += records
        held = sum(each.records for each in self.waiting.values())
        assert held < self.most + LARGEST_CHUNK
        assert self.builder.full == (held >= self.most)
        self.pass_time(0)

    @property
    def most(self) -> int:
        records, size = self.limits.most("columns")
        return min(records, -(-size // ROW_BYTES))

    def large(self, partition: int) -> bool:
        """At the floor: as large as a file should be."""
        least = [each for each in (self.limits.min_records, self.limits.min_bytes) if each is not None]
        if not least:
            return True
        records = self.waiting[partition].records
        return records >= (self.limits.min_records or 1 << 60) or records * ROW_BYTES >= (
            self.limits.min_bytes or 1 << 60
        )

    def cut(self) -> None:
        full = self.builder.full
        parts = self.builder.cut(self.now).parts
        assert parts, "a batch that is due has something in it"
        going = {part.partition for part in parts.values()}
        assert len(going) == len(parts)
        for progress, part in parts.items():
            assert progress is self.owned[part.partition]
            assert part.first == self.done[part.partition], "ranges tile"
            self.done[part.partition] = part.until
            assert part.records == self.waiting[part.partition].records
        longest = self.limits.max_time
        small = {p for p, each in self.waiting.items() if not self.large(p) and self.now - each.since < longest / 2}
        assert not small & going or going == small == set(self.waiting), "small ones go early only where all are small"
        for partition in set(self.waiting) - going:
            assert not self.large(partition)
            assert self.now - self.waiting[partition].since < longest / 2
        assert full or any(self.waiting[p].since + longest <= self.now for p in going)
        for partition in going:
            del self.waiting[partition]

    def check(self) -> None:
        held = sum(each.records for each in self.waiting.values())
        assert (self.builder._records, self.builder._bytes) == (held, held * ROW_BYTES)
        for partition, each in self.waiting.items():
            assert self.now - each.since < self.limits.max_time, f"{partition} waits for too long"


@given(settings_of_batches, arrivals)
def test_batches(limits: BatchSettings, chunks: list[tuple[int, int, float]]) -> None:
    model = Model(limits)
    for partition, records, seconds in chunks:
        model.pass_time(seconds)
        model.arrive(partition, records)
        model.check()
    model.pass_time(limits.max_time)
    assert not model.waiting
    assert model.done == model.offsets


def test_a_quiet_partition_waits_while_a_busy_one_is_written() -> None:
    model = Model(BatchSettings(max_records=30, max_time=10.0, min_records=10))
    model.arrive(0, 2)
    for _ in range(8):
        model.pass_time(0.3)
        model.arrive(1, 7)
    assert (model.done[0], model.done[1]) == (0, 56)  # two batches, of the busy one alone
    model.pass_time(10)
    assert model.done == model.offsets


def test_a_batch_does_not_wait_when_every_partition_is_at_its_end() -> None:
    builder = BatchBuilder(BatchSettings(max_time=600.0, min_records=100))
    owned = [Progress(TopicPartition("t", n), 0) for n in range(2)]
    builder.add(Chunk(owned[0], 0, 3, ColumnRecords(ROWS.slice(0, 3)), at_end=True), 0.0)
    assert builder.due_at < 0
    builder.add(Chunk(owned[1], 0, 5, ColumnRecords(ROWS.slice(0, 5))), 0.0)
    assert builder.due_at == 600
    builder.add(Chunk(owned[1], 5, 7, at_end=True), 1.0)
    assert builder.due_at < 0
    assert builder.cut(1.0).batch.records == 8
    assert builder.cut(1.0).batch == Batch(())
