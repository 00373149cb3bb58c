"""How a fetcher decodes what it has fetched: within bounds, and for which sinks; how far it goes without records."""

from __future__ import annotations

import math
import struct
from itertools import pairwise

import pytest

from kzconsumer.brokers.protocol.log_reads import READ_COMMITTED, FetchedPartition
from kzconsumer.errors import PluginError
from kzconsumer.fetcher.fetch_rules import LOOK_BYTES, Looking, decoding
from kzconsumer.model import TopicPartition
from kzconsumer.records.forms import Unfetched
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.builtin import JsonLinesSink
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.interface import Sink, SinkContext
from tests.support.record_sets import Codec, Record, message_set, record_batch


def fetched(data: bytes, partition: int = 3, topic: str = "orders", end: int = 100) -> FetchedPartition:
    return FetchedPartition(TopicPartition(topic, partition), 0, end, -1, -1, (), memoryview(data))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_that_decompresses_beyond_the_limit_is_corrupt(codec: Codec) -> None:
    bomb = record_batch([Record(None, bytes(50_000))], base_offset=0, codec=codec)
    allowed = decoding(60_000)(fetched(bomb), 0)
    assert (allowed.next_offset, allowed.corrupt) == (1, None)
    refused = decoding(40_000)(fetched(bomb), 0)
    assert refused.corrupt is not None
    said = "it decompresses to more than largest_body = 40000 bytes of the table [fetch]"
    assert said in refused.corrupt.reason


def test_a_sink_gets_columns_by_default() -> None:
    context = SinkContext(group="g", member="m", cluster="", safe_until=lambda: math.inf)
    sink: Sink = JsonLinesSink({}, context)
    assert capabilities(sink).wants == "columns"
    sink.wants = "rows"  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match='wants "rows"; there is columns, ranges'):
        capabilities(sink)


END = 1 << 40


def looking() -> Looking:
    return Looking(READ_COMMITTED, lambda: BatchSettings().most("ranges"))


def looked(at: Looking, data: bytes, start: int = 0, partition: int = 3, topic: str = "orders") -> tuple[int, float]:
    """Where the range ends that begins at `start`, and its bytes."""
    part = fetched(data, partition, topic, END)
    at.weigh(part, start)
    until, records = at.until(part, start), at(part, start).records
    assert isinstance(records, Unfetched)
    assert (records.first, records.until) == (start, until)
    return until, records.nbytes


def of_length(batch: bytes, length: int) -> bytes:
    """As much of a batch of so many bytes as a look needs."""
    return batch[:8] + struct.pack(">i", length - 12) + batch[12:LOOK_BYTES]


TENTH = (512 << 20) / 10
THOUSAND = [Record(None, bytes(10))] * 1000


@pytest.mark.parametrize(
    ("data", "weight"),
    [
        (record_batch(THOUSAND, base_offset=0), 18),
        (message_set(THOUSAND, magic=1, base_offset=0), 44),
        (message_set(THOUSAND, magic=0, base_offset=0), 36),
        (of_length(message_set(THOUSAND, magic=1, base_offset=0, codec="gzip"), 5000), 5),
        (of_length(record_batch(THOUSAND, base_offset=0), 1 << 20), 1048.576),
        (of_length(record_batch(THOUSAND[:1], base_offset=0), 50_000_000), 50e6),
        (of_length(message_set(THOUSAND[:1], magic=0, base_offset=0), 100_000_000), 100e6),
        (of_length(record_batch(THOUSAND[:9], base_offset=0, offset_deltas=range(0, 900, 100)), 80_100), 100),
    ],
    ids=["small", "small-1", "small-0", "compressed-1", "kilobyte", "large", "larger-0", "compacted"],
)
def test_a_range_is_a_tenth_of_a_batch_by_its_offsets_and_by_its_bytes_in_the_log(data: bytes, weight: float) -> None:
    at = looking()
    until, size = looked(at, data)
    assert until == pytest.approx(min(max(int(TENTH / weight), 1), 200_000), rel=0.01)
    assert size == pytest.approx(until * weight, rel=0.01)
    assert looked(at, b"", until)[0] - until == until  # an answer without a batch
    assert looked(at, b"", 7, partition=4)[0] == 7 + until  # whose records came with none so far


def test_ranges_of_a_topic_of_which_nothing_is_known_begin_small_and_double() -> None:
    """Records of a megabyte make no giant first batch; a hole up to the end of a log is passed in some looks."""
    at, starts = looking(), [1000]
    looked(at, record_batch(THOUSAND, base_offset=0), topic="other")
    while starts[-1] < 10_000_000:
        until, size = looked(at, b"", starts[-1])
        assert size == 0
        starts.append(until)
    assert starts[1] - 1000 == int(TENTH / (1 << 20))
    assert max(until - start for start, until in pairwise(starts)) == 200_000
    assert len(starts) < 80
    large = of_length(record_batch(THOUSAND[:1], base_offset=0), 1 << 20)
    assert looked(at, large, 7) == (7 + 51, 51 << 20)


def test_partitions_of_a_topic_may_have_records_of_other_sizes() -> None:
    at = looking()
    large = of_length(record_batch(THOUSAND[:1], base_offset=0), 50_000_000)
    assert looked(at, large, partition=0)[0] == 1
    assert looked(at, record_batch(THOUSAND, base_offset=0), partition=1)[0] == 200_000
    assert looked(at, b"", 1, partition=0)[0] == 2


def test_a_damaged_head_is_no_size_below_a_byte() -> None:
    for length in (-5, 12):
        until, size = looked(looking(), of_length(record_batch(THOUSAND, base_offset=0), length))
        assert (until, size >= 0) == (200_000, True)
