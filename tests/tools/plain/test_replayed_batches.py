"""What a replay writes, of random ranges into a target in memory that has some of them: each missing offset once, in
batches as large as `[batch]` allows.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Self, cast

import pyarrow as pa
import pytest

from kzconsumer.clock import now
from kzconsumer.errors import NotDoneError, SinkError
from kzconsumer.model import OffsetRange, RangeIdentity, TopicPartition
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.interface import Batch, HeldRange, Holdings, RecordsRejectedError, Rejected
from kzconsumer_tools import replay as module
from kzconsumer_tools.replay import Replayed, replay
from tests.support.extent import seeds
from tests.support.range_data import range_data, record

Place = tuple[str, int, int]
INCARNATIONS = {"a": 7, "b": 8}


class Reader:
    """Logs in which every third offset has no record; a batch of records is at most four long."""

    def __init__(self) -> None:
        self.same: list[Mapping[str, int]] = []

    async def require_same(self, incarnations: Mapping[str, int]) -> None:
        self.same.append(incarnations)

    async def read(self, turn: Sequence[OffsetRange]) -> AsyncIterator[tuple[TopicPartition, pa.RecordBatch]]:
        assert len({each.topic_partition for each in turn}) == len(turn)
        for part in turn:
            there = [offset for offset in range(part.first, part.until) if has_record(offset)]
            for n in range(0, len(there), 4):
                some = there[n : n + 4]
                data = range_data(part.topic, part.partition, some[0], some[-1] + 1, [*map(record, some)], batches=1)
                yield part.topic_partition, data.batches[0]


def has_record(offset: int) -> bool:
    return offset % 3 != 0


class Shelf:
    """`wants`: columns, or ranges that it fetches itself."""

    def __init__(self, wants: str, there: Collection[OffsetRange], rejected: Collection[Place] = ()) -> None:
        self.wants = wants
        self.batches: list[Batch] = []
        self.opened: list[object] = []
        self.fails: Exception | None = None
        self._rejected = rejected
        self._there = [
            HeldRange(
                identity=RangeIdentity(each.topic, each.partition, incarnation, 0, each.first, each.until),
                records_in=1, records_out=1, records_quarantined=0,
            )
            for each in there for incarnation in (INCARNATIONS[each.topic], 99)
        ]  # fmt: skip

    async def __aenter__(self) -> Self:
        self.opened.append(self)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.opened.append(error[0])

    async def holdings(self, *, count_rows: bool) -> Holdings:
        assert not count_rows
        others = HeldRange(
            identity=RangeIdentity("a", 0, 99, 0, 0, 1000), records_in=1, records_out=1, records_quarantined=0
        )  # of an earlier topic of that name
        return Holdings(destination="shelf", fingerprint="f", ranges=(*self._there, others))

    async def write(self, batch: Batch) -> None:
        if self.fails is not None:
            raise self.fails
        bad = [place for place in places(batch) if place in self._rejected]
        if bad and self.wants == "columns":
            raise RecordsRejectedError([Rejected(*place, "odd", "odd") for place in bad[:2]])
        self.batches.append(batch)


def places(batch: Batch) -> list[Place]:
    """Of its records, or offsets if it has none."""
    return [
        (part.topic, part.partition, offset)
        for part in batch.ranges
        for offset in ([m.offset for m in part.messages()] if part.fetched else range(part.first, part.until))
    ]


def ranges_of(chance: random.Random) -> list[OffsetRange]:
    return [
        OffsetRange(topic, number, first := chance.randrange(40), first + chance.randrange(1, 40))
        for topic, number in (("a", 0), ("a", 1), ("b", 0))
    ]


async def replayed(shelf: Shelf, wanted: Collection[OffsetRange], limits: BatchSettings) -> tuple[Replayed, list[Any]]:
    shown: list[Any] = []
    reader = Reader()
    done = await replay(
        cast("Any", reader),
        cast("Any", shelf),
        wanted,
        INCARNATIONS,
        limits,
        now() - module.SETTLED,
        lambda *at: shown.append(at),
    )
    asked = [{part.topic: part.incarnation for part in batch.ranges} for batch in shelf.batches]
    assert all(each in reader.same for each in asked) == (shelf.wants == "columns" or not asked)
    return done, shown


@pytest.mark.parametrize("wants", ["columns", "ranges"])
@pytest.mark.parametrize("seed", seeds(12, 2000))
async def test_each_missing_offset_is_written_once(wants: str, seed: int) -> None:
    chance = random.Random(seed)
    wanted, there = ranges_of(chance), chance.sample(ranges_of(chance), chance.randint(0, 3))
    most = chance.randint(3, 20)
    limits = BatchSettings(max_records=most) if seed % 4 else BatchSettings(max_bytes=1)
    of = {(each.topic, each.partition, n) for each in wanted for n in range(each.first, each.until)}
    held = {(each.topic, each.partition, n) for each in there for n in range(each.first, each.until)}
    missing = of - held
    records = {place for place in missing if has_record(place[2])} if wants == "columns" else missing
    rejected = set(chance.sample(sorted(records), min(3, len(records)))) if wants == "columns" else set()
    shelf = Shelf(wants, there, rejected)
    done, shown = await replayed(shelf, wanted, limits)
    written = [place for batch in shelf.batches for place in places(batch)]
    assert sorted(written) == sorted(records - rejected), "each once"
    for batch in shelf.batches:
        assert len({part.topic_partition for part in batch.ranges}) == len(batch.ranges)
        assert all(part.incarnation == INCARNATIONS[part.topic] and part.epoch == 0 for part in batch.ranges)
    sizes = [batch.records for batch in shelf.batches]
    if wants == "ranges" and limits.max_records is not None:
        assert max(sizes, default=0) <= max(most, 3)
    elif wants == "columns" and not rejected:
        assert max(sizes, default=0) < (most + 4 if limits.max_records is not None else 5)
    assert shown[-1] == (len(of), len(of))
    assert shown[0] == (len(of & held), len(of))
    assert [at for at, _ in shown] == sorted(at for at, _ in shown)
    assert done == Replayed(
        destination="shelf", partitions=3, offsets=len(of), there=len(of & held),
        ranges=sum(len(batch.ranges) for batch in shelf.batches), records=sum(sizes), rejected=len(rejected),
    )  # fmt: skip
    assert shelf.opened == [shelf, None]


async def test_a_batch_is_as_large_as_it_may_be() -> None:
    """Of 80 records in batches of four: the one that reaches the limit ends it. Without a limit there is one."""
    wanted = [OffsetRange("a", 0, 0, 120)]
    for most, sizes in ((8, [8] * 10), (9, [12] * 6 + [8]), (None, [80])):
        shelf = Shelf("columns", ())
        await replayed(shelf, wanted, BatchSettings(max_records=most))
        assert [batch.records for batch in shelf.batches] == sizes
    whole = Shelf("ranges", ())
    await replayed(whole, [*wanted, OffsetRange("b", 0, 5, 25)], BatchSettings(max_records=50))
    assert [sorted(part.range for part in batch.ranges) for batch in whole.batches] == [
        [OffsetRange("a", 0, 0, 25), OffsetRange("b", 0, 5, 25)],
        [OffsetRange("a", 0, 25, 75)],
        [OffsetRange("a", 0, 75, 120)],
    ]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError("full"), SinkError("OSError: full")), (NotDoneError("not now"), NotDoneError("not now"))],
)
async def test_a_sink_that_fails_is_closed_with_its_error(error: Exception, raised: Exception) -> None:
    shelf = Shelf("columns", ())
    shelf.fails = error
    with pytest.raises(type(raised), match=f"^{raised}$"):
        await replayed(shelf, [OffsetRange("a", 0, 0, 5)], BatchSettings())
    assert shelf.opened == [shelf, type(raised)]
