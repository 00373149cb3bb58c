"""Chunks become ranges, limits cut them, and the chunks of closed claims are left out."""

from __future__ import annotations

import math
import sys

import anyio
import pyarrow as pa
import pytest

from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.records.columns import SCHEMA
from kzconsumer.records.forms import Unfetched
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.batch_builder import BatchBuilder
from kzconsumer.sinks.interface import Batch, RangeData
from tests.support.chunks import TOPIC, chunk, hole, progress
from tests.support.plans import plan_of


def builder(max_records: int = 1000, max_bytes: int = 1 << 20) -> BatchBuilder:
    return BatchBuilder(BatchSettings(max_records=max_records, max_bytes=max_bytes))


def ranges(batch: Batch) -> list[OffsetRange]:
    return [part.range for part in batch.ranges]


def cut(collecting: BatchBuilder) -> tuple[Batch, list[Progress]]:
    found = collecting.cut(now=0)
    return found.batch, list(found.parts)


def rows(part: RangeData) -> list[int | None]:
    return pa.Table.from_batches(part.batches).column("offset").to_pylist()


def test_empty() -> None:
    empty = builder()
    assert (bool(empty), empty.full) == (False, False)
    assert cut(empty) == (Batch(()), [])


def test_chunks_of_a_partition_become_one_range() -> None:
    collecting, claim = builder(), progress(start=5)
    for one in (chunk(claim, 5, 8), hole(claim, 8, 10), chunk(claim, 10, 14, offsets=[12])):
        collecting.add(one, now=0)
    assert bool(collecting)
    batch, owned = cut(collecting)
    assert ranges(batch) == [OffsetRange(TOPIC, 0, 5, 14)]
    assert rows(batch.ranges[0]) == [5, 6, 7, 12]
    assert (batch.records, batch.ranges[0].records, owned) == (4, 4, [claim])


def test_full_by_bytes_in_the_log_of_what_is_not_fetched() -> None:
    collecting, claim = BatchBuilder(BatchSettings(), wants="ranges"), progress()
    collecting.add(Chunk(claim, 0, 9, Unfetched(0, 9, 50e6)), now=0)
    assert not collecting.full
    collecting.add(Chunk(claim, 9, 11, Unfetched(9, 11, 50e6)), now=0)
    assert collecting.full
    (part,) = collecting.cut(now=0).batch.ranges
    assert (part.records, part.weight) == (11, 50e6)
    collecting.add(Chunk(claim, 11, 2_000_010, Unfetched(11, 2_000_010)), now=0)
    assert not collecting.full
    collecting.add(Chunk(claim, 2_000_010, 2_000_011, Unfetched(2_000_010, 2_000_011, 10)), now=0)
    assert collecting.full


def test_a_range_without_records_makes_a_batch() -> None:
    collecting, claim = builder(), progress()
    collecting.add(hole(claim, 0, 7), now=0)
    assert bool(collecting)
    batch, owned = cut(collecting)
    assert (ranges(batch), batch.records, owned) == ([OffsetRange(TOPIC, 0, 0, 7)], 0, [claim])


def test_claims_that_were_closed_meanwhile_are_left_out() -> None:
    collecting, going, staying = builder(), progress(0), progress(1)
    collecting.add(chunk(going, 0, 3), now=0)
    collecting.add(chunk(staying, 0, 2), now=0)
    going.close()
    batch, owned = cut(collecting)
    assert (ranges(batch), owned) == ([OffsetRange(TOPIC, 1, 0, 2)], [staying])


def test_a_partition_that_was_lost_and_claimed_again_is_one_range() -> None:
    """A batch never has two ranges of one partition."""
    collecting, before, after = builder(), progress(), progress(start=2)
    collecting.add(chunk(before, 0, 5), now=0)
    before.close()
    collecting.add(chunk(after, 2, 4), now=0)
    batch, owned = cut(collecting)
    assert (ranges(batch), owned) == ([OffsetRange(TOPIC, 0, 2, 4)], [after])


def test_a_range_names_the_topics_incarnation_and_the_reset_epoch() -> None:
    collecting = builder()
    collecting.add(chunk(Progress(TopicPartition(TOPIC, 3), 0, incarnation=0x2A, epoch=7), 0, 1), now=0)
    (part,) = cut(collecting)[0].ranges
    assert (part.topic_partition, part.incarnation, part.epoch) == (TopicPartition(TOPIC, 3), 0x2A, 7)


def test_a_hole_between_chunks_is_reported_as_a_bug() -> None:
    """A range has every record between its ends: joining across a hole would commit undelivered records."""
    collecting, claim = builder(), progress()
    collecting.add(chunk(claim, 0, 3), now=0)
    with pytest.raises(AssertionError):
        collecting.add(chunk(claim, 5, 8), now=0)


def replayed(first: int, until: int, partition: int = 0) -> Progress:
    return Progress(TopicPartition(TOPIC, partition), first, replay=plan_of(first, until))


def test_a_replay_is_a_whole_batch_of_its_own() -> None:
    collecting, replay, other = builder(), replayed(5, 11), progress(1)
    collecting.add(chunk(replay, 5, 8), now=0)
    assert (bool(collecting), collecting.full) == (False, False)  # nothing is written until the whole range is here
    collecting.add(chunk(other, 0, 2), now=0)
    assert ranges(cut(collecting)[0]) == [OffsetRange(TOPIC, 1, 0, 2)]
    collecting.add(chunk(other, 2, 4), now=0)
    collecting.add(chunk(replay, 8, 11), now=0)
    assert collecting.full
    batch, owned = cut(collecting)
    assert (ranges(batch), batch.is_replay, owned) == ([OffsetRange(TOPIC, 0, 5, 11)], True, [replay])
    assert rows(batch.ranges[0]) == list(range(5, 11))
    assert not collecting.full
    batch, owned = cut(collecting)
    assert (ranges(batch), batch.is_replay, owned) == ([OffsetRange(TOPIC, 1, 2, 4)], False, [other])


def test_a_replay_larger_than_the_current_limits() -> None:
    collecting, replay = builder(max_records=2, max_bytes=10), replayed(0, 9)
    collecting.add(chunk(replay, 0, 6), now=0)
    assert not collecting.full
    collecting.add(chunk(replay, 6, 9), now=0)
    assert ranges(cut(collecting)[0]) == [OffsetRange(TOPIC, 0, 0, 9)]


def test_two_replays_are_two_batches() -> None:
    collecting, one, two = builder(), replayed(0, 2), replayed(7, 9, partition=1)
    collecting.add(chunk(one, 0, 2), now=0)
    collecting.add(chunk(two, 7, 9), now=0)
    assert [ranges(cut(collecting)[0]) for _ in range(3)] == [
        [OffsetRange(TOPIC, 0, 0, 2)],
        [OffsetRange(TOPIC, 1, 7, 9)],
        [],
    ]


def test_a_lost_replay_is_left_out() -> None:
    collecting, replay = builder(), replayed(0, 2)
    collecting.add(chunk(replay, 0, 2), now=0)
    replay.close()
    # The batch is due at once, so that a producer that waits to add more can continue.
    assert (collecting.full, collecting.due_at, cut(collecting)) == (True, -math.inf, (Batch(()), []))
    assert (bool(collecting), collecting.full, collecting.due_at) == (False, False, math.inf)


_HELD = """
from pathlib import Path

from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.batch_builder import BatchBuilder
from tests.support.chunks import chunk, progress

collecting, claim = BatchBuilder(BatchSettings()), progress()

def collect(first, until):
    for offset in range(first, until):
        collecting.add(chunk(claim, offset, offset + 1), now=0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

before = collect(0, 500)
print(collect(500, 8_500) - before)
"""


async def test_records_that_arrive_one_by_one_take_no_more_memory_than_others() -> None:
    """Eight thousand pieces of a record would take 6 MB."""
    done = await anyio.run_process([sys.executable, "-c", _HELD], stderr=None)
    assert int(done.stdout) < 2 << 20


def test_small_batches_are_joined_in_order() -> None:
    collecting, claim = builder(), progress()
    for first in range(0, 600, 3):
        collecting.add(chunk(claim, first, first + 3, offsets=[first, first + 2]), now=0)
    batch, _ = cut(collecting)
    assert rows(batch.ranges[0]) == [offset for offset in range(600) if offset % 3 != 1]
    assert [message.offset for message in batch.ranges[0].messages()] == rows(batch.ranges[0])
    assert (batch.records, len(batch.ranges[0].pieces)) == (400, len(batch.ranges[0].batches))
    assert len(batch.ranges[0].batches) < 20
    assert {each.schema for each in batch.ranges[0].batches} == {SCHEMA}
