"""The timestamp of the next record: from the framing of fetched batches, and between them."""

from __future__ import annotations

import pytest

from kzconsumer.lag.write_times import MOST_TIMES, FetchedTimes
from kzconsumer.records import decode as framing
from kzconsumer.records.decode import batch_times
from tests.support.reachable import reachable
from tests.support.record_sets import Record, message_set, record_batch


def records(*times: int) -> list[Record]:
    return [Record(b"k", b"v", (), time) for time in times]


def times_in(data: bytes) -> list[tuple[int, int]]:
    return list(batch_times(memoryview(data)))


def test_batches_have_the_times_of_their_first_and_last_record() -> None:
    data = record_batch(records(100, 107, 110), base_offset=7, codec="zstd") + record_batch(
        records(120), base_offset=10
    )
    assert times_in(data) == [(7, 100), (9, 110), (10, 120)]
    assert times_in(record_batch(records(1, 2), base_offset=0, log_append_time=500)) == [(0, 500), (1, 500)]


def test_old_messages() -> None:
    assert times_in(message_set(records(100, 110), magic=1, base_offset=3)) == [(3, 100), (4, 110)]
    assert times_in(message_set(records(100, 110), magic=1, base_offset=3, codec="gzip")) == [(4, 110)]
    assert times_in(message_set(records(100, 110), magic=0, base_offset=3)) == []


def test_records_without_timestamp_and_bytes_cut_short() -> None:
    assert times_in(record_batch(records(-1, -1), base_offset=0)) == []
    whole = record_batch(records(1, 2), base_offset=0)
    for size in range(len(whole)):
        assert times_in(whole[:size]) == []
    assert times_in(b"\xff" * 200) == []


def test_only_some_batches_of_a_large_response_are_looked_at() -> None:
    data = b"".join(record_batch(records(n), base_offset=n) for n in range(1, 3 * framing.MOST))
    assert len(times_in(data)) == framing.MOST


def test_times_between_two_records_are_interpolated() -> None:
    times = FetchedTimes()
    assert times.at(0) is None
    times.saw([(10, 1_000), (20, 2_000)], until=40)
    assert [times.at(offset) for offset in (9, 10, 15, 20, 39)] == [None, 1_000, 1_500, 2_000, 2_000]
    assert times.at(40) is None, "it has not been fetched: its record may be days younger"
    times.saw([(40, 9_000)], until=41)
    assert (times.at(30), times.at(40)) == (5_500, 9_000)


def test_what_is_fetched_again_changes_nothing() -> None:
    times = FetchedTimes()
    times.saw([(10, 1_000), (20, 2_000)], until=21)
    times.saw([(10, 1_000), (20, 2_000)], until=15)
    assert times.at(20) == 2_000
    times.saw([(10, 1_000), (20, 2_000), (30, 9_000)], until=31)
    times.saw([(20, 2_000)], until=21)
    assert (times.at(25), times.at(30)) == (5_500, 9_000), "what was fetched with it counts"


def test_they_are_bounded() -> None:
    times = FetchedTimes()
    for offset in range(10_000):
        times.saw([(offset, offset * 5)], until=offset + 1)
    assert len(reachable(times)) < 4 * MOST_TIMES
    for offset in (0, 1_234, 9_999):
        assert times.at(offset) == pytest.approx(offset * 5)
