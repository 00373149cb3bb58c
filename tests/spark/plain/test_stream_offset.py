"""The offset of a streaming query: what a batch has, and what is delivered already."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer_spark.source.stream_offset import PlannedRange, StreamOffset

NOTHING = StreamOffset("g")


def part(first: int, until: int, partition: int = 0, incarnation: int = 7, epoch: int = 0) -> RangeIdentity:
    return RangeIdentity("t", partition, incarnation, epoch, first, until)


def planned(*ranges: RangeIdentity) -> list[PlannedRange]:
    return [PlannedRange(each, (OffsetRange("t", each.partition, each.first, each.until),)) for each in ranges]


def test_a_batch_has_its_ranges_and_covers_them() -> None:
    end = NOTHING.after(planned(part(0, 5), part(3, 9, 1)))
    assert end.ranges == (part(0, 5), part(3, 9, 1))
    assert end.covers(part(0, 5))
    assert not end.covers(part(0, 6))
    assert not end.covers(part(0, 1, 2))
    assert not NOTHING.covers(part(0, 5))


def test_what_is_delivered_is_left_out() -> None:
    start = NOTHING.after(planned(part(0, 5)))
    assert start.after(planned(part(0, 5))) is start
    assert start.after([]) is start
    assert start.after(planned(part(0, 5), part(0, 2, 1))).ranges == (part(0, 2, 1),)
    assert start.after(planned(part(3, 8))).ranges == (part(5, 8),)


def test_other_partitions_are_remembered() -> None:
    end = NOTHING.after(planned(part(0, 5))).after(planned(part(0, 2, 1)))
    assert end.covers(part(0, 5))


@pytest.mark.parametrize("other", [part(0, 5, incarnation=8), part(0, 5, epoch=1)])
def test_a_recreated_topic_and_reset_offsets_are_delivered_again(other: RangeIdentity) -> None:
    end = NOTHING.after(planned(part(0, 9))).after(planned(other))
    assert end.ranges == (other,)
    assert not end.covers(part(0, 9))


def test_offsets_that_the_log_has_lost_are_not_fetched_and_the_range_is_delivered() -> None:
    holes = PlannedRange(part(0, 20), (OffsetRange("t", 0, 2, 6), OffsetRange("t", 0, 9, 12)))
    end = NOTHING.after(planned(part(0, 3))).after([holes])
    assert end.ranges == (part(3, 6), part(9, 12))
    assert end.covers(part(0, 20))


def test_it_says_how_large_the_records_of_its_own_batch_are() -> None:
    spans = (OffsetRange("t", 0, 0, 3),)
    end = NOTHING.after([PlannedRange(part(0, 3), spans, weight=2.5), *planned(part(0, 3, 1))])
    assert end.weights == {"t-0": 2.5}
    assert StreamOffset.of_json(end.as_json(), "g") == end
    assert end.empty().weights == end.after(planned(part(3, 5))).weights == {}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 9)), max_size=8))
def test_spark_gets_back_what_it_was_given(ranges: list[tuple[int, int, int]]) -> None:
    """As text, by which Spark compares offsets."""
    offset = NOTHING
    for partition, first, length in ranges:
        offset = offset.after(planned(part(first, first + length, partition)))
    text = json.dumps(offset.as_json())
    assert StreamOffset.of_json(json.loads(text), "g") == offset
    assert json.dumps(StreamOffset.of_json(json.loads(text), "g").as_json()) == text


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=12))
def test_nothing_is_delivered_twice(ranges: list[tuple[int, int]]) -> None:
    offset, delivered = NOTHING, list[int]()
    for first, length in ranges:
        end = offset.after(planned(part(first, first + length)))
        if end is not offset:
            delivered += [n for each in end.ranges for n in range(each.first, each.until)]
        offset = end
    assert len(delivered) == len(set(delivered))


def test_an_empty_batch_ends_elsewhere_and_delivers_nothing() -> None:
    start = NOTHING.after(planned(part(0, 5)))
    one = start.empty()
    assert (one.ranges, one.reached) == ((), start.reached)
    assert start != one != one.empty()
    assert one.after(planned(part(0, 5), part(2, 7, 1))).ranges == (part(2, 7, 1),)


def test_offsets_of_another_source_or_group_are_refused() -> None:
    with pytest.raises(ValueError, match="offsets of another source"):
        StreamOffset.of_json({"reached": 5}, "g")
    with pytest.raises(ValueError, match=r"or of a newer version of this one: .*`later`"):
        StreamOffset.of_json(NOTHING.as_json() | {"later": 1}, "g")
    with pytest.raises(ValueError, match=r"^the checkpoint is of group g, not of other: use another one$"):
        StreamOffset.of_json(NOTHING.as_json(), "other")
