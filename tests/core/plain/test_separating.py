"""Halving a range until the records that a destination refuses are found, and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.errors import ContentRefusedError, SinkError
from kzconsumer.records.forms import Unfetched
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer.sinks.sink_rejections import MOST_REFUSED, Separating
from tests.support.range_data import range_data, record


def offsets_of(part: RangeData) -> list[int]:
    unfetched = [piece for piece in part.pieces if isinstance(piece, Unfetched)]
    if unfetched:
        return [offset for piece in unfetched for offset in range(piece.first, piece.until)]
    return [message.offset for message in part.messages()]


class Database:
    """Refuses a batch by what is in it. `tried` has the offsets of each trial."""

    def __init__(self, refuses: Callable[[Collection[int]], bool]) -> None:
        self.tried: list[list[int]] = []
        self._refuses = refuses

    async def trial(self, batch: Batch) -> None:
        (part,) = batch.ranges
        offsets = offsets_of(part)
        assert offsets, "nothing is tried without records"
        assert (part.first, part.until) == (0, 1000)
        self.tried.append(offsets)
        if self._refuses(offsets):
            raise ContentRefusedError("value too long")


def poisoned(*bad: int) -> Database:
    return Database(lambda offsets: not set(bad).isdisjoint(offsets))


def part_of(offsets: Collection[int] | None, *, batches: int = 3) -> RangeData:
    """Of these offsets; None: of all, which are not fetched."""
    if offsets is None:
        spans = Unfetched(0, 400), Unfetched(500, 1000)
        return msgspec.structs.replace(range_data("t", 0, 0, 1000, []), pieces=spans)
    return range_data("t", 0, 0, 1000, [record(offset) for offset in sorted(offsets)], batches)


@given(st.sets(st.integers(0, 999), min_size=1, max_size=60), st.data())
async def test_exactly_the_refused_records_are_found(offsets: set[int], data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.sampled_from(sorted(offsets)), max_size=5))
    database = poisoned(*bad)
    found = await Separating(database.trial).refused(part_of(offsets))
    assert [each.offset for each in found] == sorted(bad)
    assert {(each.topic, each.partition, each.error_class, each.reason) for each in found} <= {
        ("t", 0, "refused", "value too long")
    }
    halvings = math.ceil(math.log2(max(len(offsets), 2)))
    assert len(database.tried) <= 1 + 2 * halvings * max(len(bad), 1)


async def test_of_a_range_that_executors_fetch() -> None:
    database = poisoned(0, 399, 500, 999)
    found = await Separating(database.trial).refused(part_of(None))
    assert [each.offset for each in found] == [0, 399, 500, 999]


@pytest.mark.parametrize(
    "refuses",
    [
        lambda offsets: {3, 700} <= set(offsets),  # two rows of one key
        lambda offsets: len(offsets) > 900,  # too large a transaction
        lambda offsets: {3, 400} <= set(offsets) or 900 in offsets,  # and one that is refused by itself
    ],
)
async def test_what_is_refused_as_a_whole_only_names_no_record(refuses: Callable[[Collection[int]], bool]) -> None:
    assert await Separating(Database(refuses).trial).refused(part_of(range(1000))) == []


async def test_too_many_refused_records_are_no_single_records() -> None:
    """Also a bound on the number of trials, if a destination refuses everything for a reason of its own."""
    database = Database(lambda offsets: True)
    assert await Separating(database.trial).refused(part_of(range(1000))) == []
    assert len(database.tried) <= 20 * MOST_REFUSED


@pytest.mark.parametrize("trials", range(1, 14))
async def test_an_outage_rejects_nothing(trials: int) -> None:
    """After any number of trials, of which some have found the record already."""
    database = poisoned(1, 613)
    left = trials

    async def trial(batch: Batch) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise SinkError("connection refused")
        await database.trial(batch)

    with pytest.raises(SinkError, match="connection refused"):
        await Separating(trial).refused(part_of(range(1000)))
