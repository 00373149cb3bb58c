"""What is left of the ranges of a batch that was planned before the log lost records, or the topic was deleted."""

from __future__ import annotations

from kzconsumer.model import OffsetRange, RangeIdentity, TopicPartition
from kzconsumer_spark.source.group_source import left

GONE = "topic t was deleted"


def part(partition: int, first: int, until: int, incarnation: int = 1) -> RangeIdentity:
    return RangeIdentity("t", partition, incarnation, 0, first, until)


def span(partition: int, first: int, until: int) -> OffsetRange:
    return OffsetRange("t", partition, first, until)


def test_a_log_that_begins_within_behind_or_before_a_range() -> None:
    ranges = [part(0, 5, 10), part(1, 5, 10), part(2, 5, 10), part(3, 5, 10), part(4, 5, 10)]
    starts = {TopicPartition("t", n): start for n, start in enumerate((4, 5, 7, 10))}
    found, lost = left(ranges, {}, starts)
    assert found == [span(0, 5, 10), span(1, 5, 10), span(2, 7, 10), span(4, 5, 10)]
    assert [each.range for each in lost] == [span(2, 5, 7), span(3, 5, 10)]
    assert {each.reason for each in lost} == {"retention has removed them from the log"}


def test_ranges_of_two_topics_of_one_name() -> None:
    found, lost = left([part(0, 0, 3, 1), part(1, 0, 3, 2)], {("t", 1): GONE}, {})
    assert found == [span(1, 0, 3)]
    assert lost == [(span(0, 0, 3), GONE)]
    assert str(lost[0].error()) == (
        't-0[0..3) is planned and not committed, and topic t was deleted. Set [offsets] reset = "smallest" to go on '
        "without them"
    )


def test_spans_of_one_range() -> None:
    found, lost = left([part(0, 0, 3), part(0, 6, 9)], {}, {TopicPartition("t", 0): 7})
    assert found == [span(0, 7, 9)]
    assert [each.range for each in lost] == [span(0, 0, 3), span(0, 6, 7)]
